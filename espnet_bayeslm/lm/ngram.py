"""A back-off n-gram as an LM of a whole vocabulary."""

from __future__ import annotations

import functools
import logging
import math
from typing import Any, Dict, Hashable, List, Optional, Sequence, Tuple, Union

import kenlm
import numpy as np
import torch

from espnet_bayeslm.lm.arpa import ArpaTable
from espnet_bayeslm.lm.scoring import IncrementalLM, Step
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.ngram_files import arpa_order, load_kenlm

LN_10 = math.log(10.0)
UNK, BOS, EOS = "<unk>", "<s>", "</s>"
# The memory of the contexts that are kept, in bytes, and the least number of them.
_KEPT_BYTES, _MIN_KEPT = 1 << 26, 64
# A larger part of the vocabulary that the n-gram does not know: it is over other tokens.
_MAX_UNKNOWN = 0.5

State = Tuple[int, ...]


class KenlmTable:
    """Any n-gram that KenLM reads, asked word by word; otherwise as `ArpaTable`."""

    def __init__(self, path: PathLike, *, words: Sequence[str], history: Sequence[str]):
        self._options = {"words": words, "history": history}
        self._path, self._history = path, history
        self._model = load_kenlm(path)
        self.order = self._model.order
        self.known = np.array([word in self._model for word in words])
        self._asked = [UNK, *(w for w, known in zip(words, self.known, strict=True) if known)]
        self._places = np.where(self.known, np.cumsum(self.known), 0)

    def state(self, context: Sequence[int]) -> Any:
        """KenLM's state, in which the words are left out that change nothing."""
        state = kenlm.State()
        self._model.NullContextWrite(state)
        for index in context[max(len(context) + 1 - self.order, 0) :]:
            after = kenlm.State()
            self._model.BaseScore(state, self._history[index], after)
            state = after
        return state

    def log10_probs(self, state: Any) -> np.ndarray:
        """log10 p of each word of the vocabulary after a context, (V,) float32."""
        score, after = self._model.BaseScore, kenlm.State()
        probs = (score(state, word, after) for word in self._asked)
        return np.fromiter(probs, np.float32, len(self._asked))[self._places]

    def __reduce__(self) -> Any:
        """Read the file again."""
        return functools.partial(KenlmTable, self._path, **self._options), ()

    def __deepcopy__(self, memo: Any) -> KenlmTable:
        """Table itself: nothing changes it."""
        return self


Table = Union[ArpaTable, KenlmTable]


def load_table(path: PathLike, *, words: Sequence[str], history: Sequence[str]) -> Table:
    """N-gram of a file: in arrays if it is an ARPA file, perhaps compressed.

    `words` are predicted, and `history` has them as they stand in a context, (V,) each.
    """
    order = arpa_order(path)
    if order:
        load_kenlm(path)  # for its checks
    table: Table = (ArpaTable if order else KenlmTable)(path, words=words, history=history)
    how = "in arrays" if order else "asked word by word, which an ARPA file need not be"
    logging.info(f"Loaded {path}: {table.order}-gram, {how}")
    return table


class LogProbLM(IncrementalLM):
    """An LM that gives ln p in the place of logits: the probabilities may not sum to 1."""

    @torch.no_grad()
    def batch_score(self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor) -> Step:
        """Score the next token of each hypothesis, in evaluation mode."""
        with self.scoring():
            return self._read(ys, states)

    def forward(self, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Ln p of tokens (B, L) as logits (B, L, V), and the state after the last token."""
        return self.compute(input, hidden)


class NgramLM(LogProbLM):
    """A back-off n-gram over the tokens of an ESPnet LM, `<blank>` first and `<sos/eos>` last.

    ln p of a token is KenLM's: a token that the n-gram does not know has the probability of
    `<unk>`. `<sos/eos>` is scored as `</s>`, and as the first token of a context it is `<s>`.
    `<blank>` has probability 0 in a search. In `forward` it has the probability that the n-gram
    gives to words that are no tokens. The softmax of ESPnet's model then changes nothing, unless
    several tokens share the probability of `<unk>` and the sum is more than 1.

    Attributes:
        unknown: Tokens that the n-gram does not know, without the special ones.
    """

    def __init__(self, path: PathLike, tokens: Sequence[str]):
        super().__init__()
        self.vocab_size = len(tokens)
        # ESPnet's transducer searches begin hypotheses with <blank>
        history = [BOS, *tokens[1:-1], BOS]
        self._table = load_table(path, words=[UNK, *tokens[1:-1], EOS], history=history)
        self.order = self._table.order
        rest = [token for token in tokens[1:-1] if token != UNK]
        known = dict(zip(tokens, self._table.known, strict=True))
        self.unknown = [token for token in rest if not known[token]]
        if len(self.unknown) > _MAX_UNKNOWN * len(rest):
            examples = ", ".join(map(repr, self.unknown[:5]))
            raise InputError(
                f"does not know {len(self.unknown)} of the {len(rest)} tokens of the LM"
                f" ({examples}, ...)",
                path=path,
                remedy="Train it on text in the tokens of the LM's token_list.",
            )
        self._rows: Dict[Hashable, np.ndarray] = {}
        self._max_rows = max(_KEPT_BYTES // (8 * self.vocab_size), _MIN_KEPT)
        # has no elements, and tells which device and type the results are to have
        self.register_buffer("like", torch.empty(0), persistent=False)

    def _row(self, context: State) -> np.ndarray:
        """Ln p of each token after a context, (V,) float64; <blank> has the remainder."""
        key = self._table.state(context)
        row = self._rows.pop(key, None)
        if row is None:
            row = self._table.log10_probs(key).astype(np.float64) * LN_10
            with np.errstate(divide="ignore"):
                row[0] = np.log(max(1 - np.exp(row[1:]).sum(), 0.0))
            if len(self._rows) >= self._max_rows:
                self._rows.pop(next(iter(self._rows)))
        self._rows[key] = row  # the last is the one used last
        return row

    def _last(self, tokens: Sequence[int]) -> State:
        """History of the tokens so far, as a state keeps it."""
        return tuple(tokens[max(len(tokens) + 1 - self.order, 0) :])

    def _log_probs(self, states: Sequence[State]) -> torch.Tensor:
        """Ln p after contexts, (B, V); <blank> has the remainder."""
        rows = np.stack([self._row(state) for state in states])
        return torch.from_numpy(rows).to(self.like)

    def _score(self, states: List[State]) -> Step:
        log_probs = self._log_probs(states)
        log_probs[:, 0] = -math.inf
        return log_probs, states

    def zero_state(self) -> State:
        """State before the first token."""
        return ()

    def begin(self, tokens: torch.Tensor) -> Step:
        """Score the next token after prefixes."""
        return self._score([self._last(row) for row in tokens.tolist()])

    def advance(self, tokens: torch.Tensor, states: List[State]) -> Step:
        """Score the next token after one more token of each hypothesis."""
        pairs = zip(states, tokens.tolist(), strict=True)
        return self._score([self._last((*state, token)) for state, token in pairs])

    def compute(
        self, input: torch.Tensor, hidden: Optional[List[State]]
    ) -> Tuple[torch.Tensor, List[State]]:
        """Ln p of each next token, (B, L, V); the state holds the last tokens of each row."""
        before = hidden if hidden is not None else [self.zero_state() for _ in input]
        rows = [(*state, *row) for state, row in zip(before, input.tolist(), strict=True)]
        log_probs = [
            self._log_probs(
                [self._last(row[: len(state) + n]) for n in range(1, input.size(1) + 1)]
            )
            for state, row in zip(before, rows, strict=True)
        ]
        return torch.stack(log_probs), [self._last(row) for row in rows]

    def __getstate__(self) -> Dict[str, Any]:
        """State of a copy: it fills its own cache."""
        return {**self.__dict__, "_rows": {}}

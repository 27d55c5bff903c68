"""A back-off n-gram as an LM of a whole vocabulary."""

from __future__ import annotations

import math
from array import array
from typing import Any, Dict, Hashable, List, Optional, Sequence, Set, Tuple, Union

import kenlm
import numpy as np
import torch

from espnet_bayeslm.lm.beam_search import IncrementalLM, Step, TokenIds
from espnet_bayeslm.ngram.ngram_files import arpa_ngrams, arpa_order, load_kenlm, log10_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG

LN_10 = math.log(10.0)
UNK, BOS, EOS = "<unk>", "<s>", "</s>"
# Id of the unknown word, the words that KenLM takes for it, and log10 p where a file has none.
_UNK_ID, _UNKNOWN, _MISSING_UNK = 0, (b"<unk>", b"<UNK>"), -100.0
# The memory of the contexts that are kept, in bytes, and the least number of them.
_KEPT_BYTES, _MIN_KEPT = 1 << 26, 64
# Contexts whose states are kept, at most
_KEPT_STATES = 1 << 16
# A larger part of the vocabulary that the n-gram does not know: it is over other tokens.
_MAX_UNKNOWN = 0.5

State = Tuple[int, ...]
# Word ids (G, k) int64 of the n-grams of order k; log10 p of the last word, and of the back-off
# weight, (G,) float32.
Ngrams = Tuple[np.ndarray, np.ndarray, np.ndarray]


def read_arpa(path: PathLike, wanted: Set[bytes]) -> Tuple[Dict[bytes, int], List[Ngrams]]:
    """N-grams of an ARPA file, perhaps compressed, of the words `wanted` and the unknown word.

    Returns:
        Ids of the words that the file has, `_UNK_ID` for the unknown word; the n-grams by order.
    """
    ids = dict.fromkeys(_UNKNOWN, _UNK_ID)
    parts = [(array("q"), array("f"), array("f")) for _ in range(arpa_order(path))]
    for line in arpa_ngrams(path):
        order, fields = line.order, line.fields
        if order == 1 and fields[1] in wanted:
            ids.setdefault(fields[1], len(ids) + 1 - len(_UNKNOWN))
        found = [ids.get(word, -1) for word in fields[1 : order + 1]]
        if -1 not in found:
            words, probs, backoffs = parts[order - 1]
            words.extend(found)
            probs.append(log10_of(fields[0], path, line.number))
            backoff = fields[order + 1 :]
            backoffs.append(log10_of(backoff[0], path, line.number) if backoff else 0.0)
    return ids, [
        (np.array(words).reshape(-1, k), np.array(probs), np.array(backoffs))
        for k, (words, probs, backoffs) in enumerate(parts, 1)
    ]


class ArpaTable:
    """The n-gram of an ARPA file, in arrays, over a vocabulary of V words.

    The arrays hold KenLM's numbers, in float32, and sums are taken in KenLM's order: the results
    equal KenLM's bit for bit.
    A tree with the first words of the n-grams at its top: the n-grams of order k are sorted by
    (row of the first k - 1 words in order k - 1, last word), two numbers in one key.

    Args:
        path: The file.
        words: (V,), the words that are predicted.
        history: (V,), the words as they stand in a context.

    Attributes:
        order: The highest order.
        known: (V,) bool, True if the n-gram knows the word; any other word counts as `<unk>`.
    """

    def __init__(self, path: PathLike, *, words: Sequence[str], history: Sequence[str]):
        ids, orders = read_arpa(path, {word.encode() for word in (*words, *history)})
        self.order = len(orders)
        self._predicted = np.array([ids.get(word.encode(), _UNK_ID) for word in words])
        self._history = [ids.get(word.encode(), _UNK_ID) for word in history]
        self.known = self._predicted != _UNK_ID
        self._num_words = max(ids.values()) + 1
        self._unigrams = np.full(self._num_words, _MISSING_UNK, np.float32)
        backoffs = np.zeros(self._num_words, np.float32)
        (words_of, probs, own), *longer = orders
        self._unigrams[words_of[:, 0]], backoffs[words_of[:, 0]] = probs, own
        # of orders 1 to n; of order 1 the row is the word, and there is nothing to look up
        self._keys = [np.arange(self._num_words)]
        self._probs = [self._unigrams]
        self._backoffs = [backoffs]
        for ngrams in longer:
            self._add_order(*ngrams)

    def _add_order(self, words: np.ndarray, probs: np.ndarray, backoffs: np.ndarray) -> None:
        rows = words[:, 0]
        for level, column in enumerate(words.T[1:-1], 1):
            # each context is there: KenLM has read the file
            rows = np.searchsorted(self._keys[level], rows * self._num_words + column)
        # KenLM takes the first of n-grams that are there twice, and so does unique
        keys, chosen = np.unique(rows * self._num_words + words[:, -1], return_index=True)
        self._keys.append(keys)
        self._probs.append(probs[chosen])
        self._backoffs.append(backoffs[chosen])

    def _row(self, words: Sequence[int]) -> int:
        """Row of an n-gram in its order, -1 where it is not in the file."""
        row = words[0]
        for keys, word in zip(self._keys[1:], words[1:], strict=False):
            key = row * self._num_words + word
            row = int(keys.searchsorted(key))
            if row == len(keys) or keys[row] != key:
                return -1
        return row

    def _children(self, order: int, row: int) -> slice:
        """Rows in order + 1 of the n-grams that go on from a row of an order."""
        ends = (row * self._num_words, (row + 1) * self._num_words)
        return slice(*self._keys[order].searchsorted(ends))

    def state(self, context: Sequence[int]) -> Tuple[int, ...]:
        """Rows of the context's last word, last two words, and so on; words are indices.

        A context has fewer words than the order. Long ones that change nothing are left out:
        different contexts may have one state.
        """
        words = [self._history[index] for index in context]
        rows = [self._row(words[start:]) for start in range(len(words) - 1, -1, -1)]
        while rows:
            order, row = len(rows), rows[-1]
            children = self._children(order, row)
            if row >= 0 and (children.start < children.stop or self._backoffs[order - 1][row]):
                break
            rows.pop()
        return tuple(rows)

    def log10_probs(self, state: Tuple[int, ...]) -> np.ndarray:
        """log10 p of each word of the vocabulary after a context, (V,) float32."""
        values = self._unigrams.copy()
        for order, row in enumerate(state, 1):
            if row >= 0:
                # all back off; probabilities of the file replace the result
                values += self._backoffs[order - 1][row]
                found = self._children(order, row)
                values[self._keys[order][found] - row * self._num_words] = self._probs[order][found]
        return values[self._predicted]

    def __deepcopy__(self, memo: Any) -> ArpaTable:
        """Table itself: nothing changes it."""
        return self


class KenlmTable:
    """Table of an n-gram that KenLM reads, which is asked word by word."""

    def __init__(self, path: PathLike, words: Sequence[str], history: Sequence[str]):
        self._arguments, self._history = (path, words, history), history
        self._model = load_kenlm(path)
        self.order = self._model.order
        self.known = np.array([word in self._model for word in words])
        self._asked = [UNK, *(w for w, known in zip(words, self.known, strict=True) if known)]
        self._places = np.where(self.known, np.cumsum(self.known), 0)

    def state(self, context: Sequence[int]) -> Any:
        """KenLM's state, in which the words are left out that change nothing."""
        state = kenlm.State()
        self._model.NullContextWrite(state)
        for index in context:
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
        return KenlmTable, self._arguments

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
    LOG.info(f"Loaded {path}: {table.order}-gram, {how}")
    return table


class LogProbLM(IncrementalLM):
    """An LM that gives ln p in the place of logits: the probabilities may not sum to 1."""

    @torch.no_grad()
    def batch_score(self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor) -> Step:
        """Score the next token of each hypothesis, in evaluation mode."""
        return self._read(ys, states)

    def search_rows(self, tokens: torch.Tensor, states: List[Any]) -> Tuple[np.ndarray, List[Any]]:
        """Score as `advance` does, (B, V) float64 in NumPy, and the new states."""
        log_probs, after = self.advance(tokens, states)
        return log_probs.cpu().double().numpy(), after


class NgramLM(LogProbLM):
    """A back-off n-gram over the tokens of an ESPnet LM or recogniser.

    ln p of a token is KenLM's: a token that the n-gram does not know has the probability of
    `<unk>`. `<sos/eos>` is scored as `</s>`, and as the first token of a context it is `<s>`.
    `<blank>` has probability 0 in a search. In `forward` it has the probability that the n-gram
    gives to words that are no tokens. The softmax of ESPnet's model then changes nothing, unless
    several tokens share the probability of `<unk>` and the sum is more than 1.

    Args:
        path: The n-gram.
        tokens: The tokens.
        ids: Ids of blank, start and end; None: `<blank>` is the first, `<sos/eos>` the last.

    Attributes:
        unknown: Tokens that the n-gram does not know, without the special ones.
    """

    def __init__(self, path: PathLike, tokens: Sequence[str], ids: Optional[TokenIds] = None):
        super().__init__()
        self.vocab_size = len(tokens)
        self.blank, sos, eos = ids or TokenIds.of(len(tokens), None)
        self.sos = sos
        special = {n for n in (self.blank, sos, eos) if n is not None}
        words = [UNK if n in special else token for n, token in enumerate(tokens)]
        words[eos] = EOS
        # ESPnet's transducer searches begin hypotheses with <blank>
        history = [BOS if n in special else token for n, token in enumerate(tokens)]
        self._table = load_table(path, words=words, history=history)
        self.order = self._table.order
        rest = [n for n, token in enumerate(tokens) if n not in special and token != UNK]
        self.unknown = [tokens[n] for n in rest if not self._table.known[n]]
        if len(self.unknown) > _MAX_UNKNOWN * len(rest):
            examples = ", ".join(map(repr, self.unknown[:5]))
            raise InputError(
                f"does not know {len(self.unknown)} of the {len(rest)} tokens of the LM"
                f" ({examples}, ...)",
                path=path,
                remedy="Make it by `bayeslm ngram --asr_exp EXP` of the LM or recogniser.",
            )
        self._rows: Dict[Hashable, np.ndarray] = {}
        self._states: Dict[State, Any] = {}
        self._max_rows = max(_KEPT_BYTES // (8 * self.vocab_size), _MIN_KEPT)
        # has no elements, and tells which device and type the results are to have
        self.register_buffer("like", torch.empty(0), persistent=False)

    def _row(self, context: State) -> np.ndarray:
        """Ln p of each token after a context, (V,) float64; <blank> has the remainder."""
        key = self._states.get(context)
        if key is None:
            if len(self._states) >= _KEPT_STATES:
                self._states.clear()
            key = self._states[context] = self._table.state(context)
        row = self._rows.pop(key, None)
        if row is None:
            row = self._table.log10_probs(key).astype(np.float64) * LN_10
            if self.blank is not None:
                row[self.blank] = -math.inf
                with np.errstate(divide="ignore"):
                    row[self.blank] = np.log(max(1 - np.exp(row).sum(), 0.0))
            if len(self._rows) >= self._max_rows:
                self._rows.pop(next(iter(self._rows)))
        self._rows[key] = row  # the last is the one used last
        return row

    def _rows_after(
        self, tokens: torch.Tensor, states: Sequence[State]
    ) -> Tuple[np.ndarray, List[State]]:
        """Ln p after one more token (B,) of each context, (B, V) float64; the contexts then."""
        longer = [(*state, token) for state, token in zip(states, tokens.tolist(), strict=True)]
        after = [words[max(len(words) + 1 - self.order, 0) :] for words in longer]
        return np.array([self._row(state) for state in after]), after

    def search_rows(
        self, tokens: torch.Tensor, states: List[State]
    ) -> Tuple[np.ndarray, List[State]]:
        """Score the next token after one more token of each hypothesis, without tensors."""
        rows, after = self._rows_after(tokens, states)
        if self.blank is not None:
            rows[:, self.blank] = -math.inf
        return rows, after

    def zero_state(self) -> State:
        """State before the first token."""
        return ()

    def advance(self, tokens: torch.Tensor, states: List[State]) -> Step:
        """Score the next token after one more token of each hypothesis."""
        rows, after = self.search_rows(tokens, states)
        return torch.from_numpy(rows).to(self.like), after

    def forward(self, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Ln p of each next token, (B, L, V); the state holds the last tokens of each row."""
        states = [()] * len(input) if hidden is None else hidden
        columns = []
        for tokens in input.unbind(1):
            rows, states = self._rows_after(tokens, states)
            columns.append(torch.from_numpy(rows).to(self.like))
        return torch.stack(columns, dim=1), states

    def __getstate__(self) -> Dict[str, Any]:
        """State of a copy: it fills its own cache."""
        return {**self.__dict__, "_rows": {}, "_states": {}}

"""Words of any LM in the search of a recogniser with other tokens: an ESPnet LM over its tokens.

When a token begins a word, the word before it is complete. Its ln P is paid then, one step late, as
a constant over the next tokens, and `<sos/eos>` pays the last word and the sentence's end. A small
LM of the recogniser's own tokens looks ahead: it scores each token at once. What it gave a word is
taken back when the word is paid, and a finished hypothesis has the ln P of its text; or it stays,
log-linearly.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from typeguard import typechecked

from espnet_bayeslm.decoding.ctc_ends import CTCEnds, CTCPrefix
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.lm.beam_search import Step
from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.lm.ngram import LogProbLM
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.scoring.word_scores import END
from espnet_bayeslm.utils.errors import InputError

# The look-ahead rules an end out that is so many nats less likely than the likeliest token
END_MARGIN = 8.0
# CTC rules an end out whose ln p is below this
CTC_END = -8.0

Payment = Tuple[Any, str]
"""A word, or `END`, after some words, for which the state of the mixture stands."""


class FusionState(NamedTuple):
    """A hypothesis.

    Attributes:
        words: State of the mixture after the complete words.
        due: Complete words that are not paid yet.
        owed: What the look-ahead gave these words, in nats.
        piece: Letters of the word that has begun.
        spent: What the look-ahead gave this word, in nats.
        ahead: State of the look-ahead.
        row: What the look-ahead gives each next token, (V,); None before the first token.
        length: Number of tokens.
        heard: The tokens as the recogniser's CTC has heard them; None: no CTC is asked.
    """

    words: Any
    due: Tuple[Payment, ...] = ()
    owed: float = 0.0
    piece: str = ""
    spent: float = 0.0
    ahead: Any = None
    row: Optional[np.ndarray] = None
    length: int = 0
    heard: Optional[CTCPrefix] = None


class _Loaded:
    """A mixture that is loaded once for each device, and shared by copies of an LM."""

    def __init__(self, options: MixtureOptions, text_forms: Mapping[str, str]):
        self._options, self._text_forms = options, text_forms
        self._of_device: Dict[str, Mixture] = {}

    def on(self, device: str) -> Mixture:
        """Mixture on a device."""
        if device not in self._of_device:
            mixture = Mixture.load(self._options, device)
            mixture.prepare(None, self._text_forms)
            self._of_device[device] = mixture
        return self._of_device[device]

    def __deepcopy__(self, memo: Any) -> _Loaded:
        """Mixtures themselves: no search changes them."""
        return self


class FusionLM(LogProbLM):
    """Components that score words, as an LM of a recogniser's tokens.

    Args:
        vocab_size: Number of tokens.
        tokens: The recogniser's tokens, `<blank>` first and `<sos/eos>` last.
        components: Options of `ComponentOptions`: `lms`, `ngrams`, `num_samples`, ...
        text_forms: Form in which each pretrained LM reads text, by the component's name.
        weights: Weights of the components, of sum 1.
        digests: Digest of each component's files, by its name; an empty mapping: not checked.
        normalize: What is done to a word before an LM reads it, as `--normalize`.
        ahead: Components of the look-ahead, an LM of the recogniser's tokens, as `MixtureLM` has
            them; None: there is none.
        ahead_weight: Weight of the look-ahead where the components' mixture has weight 1.
        takes_back: False: scores of a look-ahead stay in the totals (`ahead_stays`); True: its part
            of a word is taken back when the word is paid.
        end_margin: The look-ahead rules an end out that is so many nats less likely than the
            likeliest token.
        ctc_features: Size of the output of the recogniser's encoder, whose CTC rules ends out too;
            0: no CTC is asked.
        interval: Words are paid at each so many tokens of a hypothesis, and before its end: a large
            LM reads the words of several tokens in the time of one.
    """

    # ESPnet's transducer search asks for it
    rnn_type = "fusion"
    only_decodes = "words are paid one step late in it, so its scores are no probabilities"

    @typechecked
    def __init__(
        self,
        vocab_size: int,
        tokens: Optional[list] = None,
        components: Any = None,
        text_forms: Any = None,
        weights: Optional[list] = None,
        digests: Any = None,
        normalize: str = "",
        ahead: Any = None,
        ahead_weight: float = 0.5,
        takes_back: bool = True,
        end_margin: float = END_MARGIN,
        ctc_features: int = 0,
        interval: int = 1,
    ):
        super().__init__()
        if not components or tokens is None or len(tokens) != vocab_size:
            raise InputError(
                f"lm fusion: expected `components` and {vocab_size} `tokens`",
                remedy="Let `bayeslm export --format fusion` write the configuration.",
            )
        self.vocab_size = vocab_size
        self.ahead: Optional[MixtureLM] = None
        if ahead is not None:
            self.ahead = MixtureLM(vocab_size, components=ahead, tokens=tokens)
        self.ctc = CTCEnds(vocab_size, ctc_features) if ctc_features else None
        self._encoded: Optional[torch.Tensor] = None
        self.ahead_weight, self.ahead_stays = ahead_weight, ahead is not None and not takes_back
        self.end_margin, self.interval = end_margin, interval
        # a search, and the state of the mixture before its first word
        self._begun: Tuple[Any, Any] = (None, None)
        self._words = TokenWords(tokens)
        self._normalization = Normalization(normalize)
        self._normalization.check_by_word("lm fusion")
        options = MixtureOptions(**components, weights=[1.0] if weights is None else weights)
        self._loaded = _Loaded(options, text_forms or {})
        for component in self._loaded.on("cpu").components:
            known = (digests or {}).get(component.name, component.fingerprint)
            if known != component.fingerprint:
                raise InputError(
                    f"{component.name}: its files have changed since the fusion was written",
                    remedy="Write it again: bayeslm export --format fusion.",
                )
        # has no elements, and tells which device and type the results are to have
        self.register_buffer("like", torch.empty(0), persistent=False)

    def zero_state(self) -> FusionState:
        """State before the first token."""
        search = self._search, str(self.like.device)
        if self._begun[0] != search:
            # utterances of a batch share prefixes
            self._begun = search, self._mixture().begin()
        ahead = None if self.ahead is None else self.ahead.zero_state()
        return FusionState(self._begun[1], ahead=ahead)

    @torch.no_grad()
    def batch_score(self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor) -> Step:
        """Score the next token of each hypothesis; `xs` is the encoder's output, (B, T, D)."""
        # of one utterance: frames of padding would mislead CTC
        is_one = isinstance(xs, torch.Tensor) and (len(xs) == 1 or xs.stride(0) == 0)
        self._encoded = xs[0] if is_one and self.ctc is not None else None
        return super().batch_score(ys, states, xs)

    def advance(self, tokens: torch.Tensor, states: List[FusionState]) -> Step:
        """Score the next token after one more token of each hypothesis."""
        rows, ahead = self._look_ahead(tokens, states)
        # NumPy reads single numbers sooner
        columns = rows.cpu().numpy()
        moved = [self._moved(*pair) for pair in zip(tokens.tolist(), states, strict=True)]
        heard = self._heard(tokens.tolist(), states)
        can_end = self._can_end(columns, heard)
        # a hypothesis that may end pays for all its words, its last one and the end
        pays = [
            end or new.length % self.interval == 0 for new, end in zip(moved, can_end, strict=True)
        ]
        due = [new.due if now else () for new, now in zip(moved, pays, strict=True)]
        for new, end in zip(moved, can_end, strict=True):
            last = self._payments(new.words, new.piece) if end else []
            due.append((*last, (self._after(new.words, last), END)) if end else ())
        paid = self._paid(due)
        shifts, ends, after = [0.0] * len(moved), [-math.inf] * len(moved), []
        for n, new in enumerate(moved):
            if can_end[n]:
                taken = 0.0 if self.ahead_stays else columns[n, -1]
                ends[n] = paid[len(moved) + n] - new.spent - taken
            if pays[n]:
                shifts[n] = paid[n] - new.owed
                new = new._replace(due=(), owed=0.0)
            after.append(new._replace(ahead=ahead[n], row=columns[n], heard=heard[n]))
        found = rows + rows.new_tensor(shifts)[:, None]
        found[:, -1] += rows.new_tensor(ends)
        found[:, 0] = -torch.inf
        return found, after

    def forward(self, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Score each next token, (B, L, V); the state holds the hypotheses."""
        states, columns = hidden, []
        if states is None:
            with self.scoring():  # a new search
                states = [self.zero_state() for _ in input]
        for tokens in input.unbind(1):
            scores, states = self.advance(tokens, states)
            columns.append(scores)
        return torch.stack(columns, dim=1), states

    def text_log_probs(self, hypotheses: Sequence[Sequence[int]]) -> List[float]:
        """Ln P by the components of the texts of some token sequences, without the look-ahead."""
        texts = [self._normalization.words(self._words.words(ids)) for ids in hypotheses]
        return [float(s.log_probs.sum()) for s in self._mixture().word_scores(texts)]

    def _mixture(self) -> Mixture:
        """Mixture of the components, where the look-ahead is."""
        return self._loaded.on(str(self.like.device))

    def _look_ahead(
        self, tokens: torch.Tensor, states: Sequence[FusionState]
    ) -> Tuple[torch.Tensor, Sequence[Any]]:
        """Weighted ln P of each next token by the look-ahead, (B, V), and its states."""
        if self.ahead is None:
            return self.like.new_zeros(len(tokens), self.vocab_size), [None] * len(tokens)
        log_probs, ahead = self.ahead.advance(tokens, [state.ahead for state in states])
        return self.ahead_weight * log_probs, ahead

    def _heard(
        self, tokens: Sequence[int], states: Sequence[FusionState]
    ) -> Sequence[Optional[CTCPrefix]]:
        """Hypotheses with one more token each, as the recogniser's CTC has heard them."""
        encoded, ctc = self._encoded, self.ctc
        if encoded is None or ctc is None:
            return [None] * len(states)
        known = [state.heard for state in states if state.heard is not None]
        if len(known) < len(states) or len(known[0].log_probs) != len(encoded):
            # an utterance begins, or more of it has been spoken
            ids = [prefix.tokens for prefix in known]
            known = [ctc.begin(encoded)] * len(states)
            for column in zip(*ids, strict=True):
                known = ctc.after(known, column)
        if any(state.row is None for state in states):  # the start of a sentence
            return known
        return ctc.after(known, tokens)

    def _can_end(self, rows: np.ndarray, heard: Sequence[Optional[CTCPrefix]]) -> List[bool]:
        """True for each hypothesis whose end neither the look-ahead nor CTC rules out.

        Hypotheses that have too many words may end: ESPnet stops a search by their scores.
        """
        near = rows[:, -1] >= rows[:, 1:].max(1) - self.end_margin * self.ahead_weight
        return [
            can_end and (prefix is None or prefix.end_log_prob > CTC_END)
            for can_end, prefix in zip(near.tolist(), heard, strict=True)
        ]

    def _moved(self, token: int, state: FusionState) -> FusionState:
        """A hypothesis after one more token."""
        if state.row is None:  # the start of a sentence
            return state
        gain = 0.0 if self.ahead_stays else float(state.row[token])
        text, length = self._words.texts[token], state.length + 1
        if not (self._words.opens[token] and state.piece):
            piece, spent = state.piece + text, state.spent + gain
            return state._replace(piece=piece, spent=spent, length=length)
        payments = self._payments(state.words, state.piece)
        return state._replace(
            words=self._after(state.words, payments),
            due=(*state.due, *payments),
            owed=state.owed + state.spent,
            piece=text,
            spent=gain,
            length=length,
        )

    def _payments(self, words: Any, piece: str) -> List[Payment]:
        """Words of some letters, as LMs read them, each after the words before it."""
        found: List[Payment] = []
        for word in self._normalization.words([self._words.word(piece)]) if piece else []:
            found.append((words, word))
            words = self._after(words, found[-1:])
        return found

    def _after(self, words: Any, payments: Sequence[Payment]) -> Any:
        """State after the last of some payments; that of `words` without any."""
        return self._mixture().after(*payments[-1]) if payments else words

    def _paid(self, due: Sequence[Sequence[Payment]]) -> List[float]:
        """Sums of ln P of some payments by the mixture; all are computed at once."""
        payments = [payment for own in due for payment in own]
        if not payments:
            return [0.0] * len(due)
        states, words = zip(*payments, strict=True)
        log_probs = self._mixture().next_words(states, words)
        totals = np.split(log_probs, np.cumsum([*map(len, due)])[:-1])
        return [float(part.sum()) for part in totals]

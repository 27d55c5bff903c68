"""Words of any LM in the search of a recogniser with other tokens: an ESPnet LM over its tokens.

When a token begins a word, the word before it is complete. Its ln P is paid then, one step late, as
a constant over the next tokens, and `<sos/eos>` pays the last word and the sentence's end. A small
LM of the recogniser's own tokens looks ahead: it scores each token at once. What it gave a word is
taken back when the word is paid, and a finished hypothesis has the ln P of its text; or it stays,
log-linearly.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from typeguard import typechecked

from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.lm.ngram import LogProbLM
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.scoring.interpolation import combined
from espnet_bayeslm.scoring.token_words import TokenWords
from espnet_bayeslm.scoring.word_scores import END, Component
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.mixture_weights import check_weights

# The look-ahead rules an end out that is so many nats less likely than the likeliest token
END_MARGIN = 6.0

Words = Tuple[Any, ...]
"""State of each component after some words."""
Payment = Tuple[Words, str]
"""A word, or `END`, after some words."""


class FusionState(NamedTuple):
    """A hypothesis.

    Attributes:
        words: State of each component after the complete words.
        piece: Letters of the word that has begun.
        ahead: State of the look-ahead.
        spent: What the look-ahead gave the word that has begun, in nats.
        row: What it gives each next token, (V,); None before the first token.
    """

    words: Words
    piece: str = ""
    ahead: Any = None
    spent: float = 0.0
    row: Optional[torch.Tensor] = None


class _Loaded:
    """Components that are loaded once for each device, and shared by copies of an LM."""

    def __init__(self, options: ComponentOptions, text_forms: Mapping[str, str]):
        self._options, self._text_forms = options, text_forms
        self._of_device: Dict[str, List[Component]] = {}

    def on(self, device: str) -> List[Component]:
        """Components on a device."""
        if device not in self._of_device:
            found = self._options.components(device)
            for component in found:
                if component.pretrained is not None:
                    component.pretrained.prepare([], self._text_forms.get(component.name))
            self._of_device[device] = found
        return self._of_device[device]

    def __deepcopy__(self, memo: Any) -> _Loaded:
        """Components themselves: no search changes them."""
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
        takes_back: True if the look-ahead's part of a word is taken back when the word is paid.
        end_margin: The look-ahead rules an end out that is so many nats less likely than the
            likeliest token.

    Raises:
        InputError: The tokens make no words, a component is missing or has changed, or the
            look-ahead has other tokens.
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
        self.ahead_weight, self.takes_back = ahead_weight, takes_back
        self.end_margin = end_margin
        self._words = TokenWords(tokens)
        self._normalization = Normalization(normalize)
        self._loaded = _Loaded(ComponentOptions(**components), text_forms or {})
        found = self._loaded.on("cpu")
        self.weights = check_weights(weights if weights is not None else [1.0], len(found))
        for component in found:
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
        ahead = None if self.ahead is None else self.ahead.zero_state()
        components = self._components()
        return FusionState(tuple(c.scorer.begin() for c in components), ahead=ahead)

    def advance(self, tokens: torch.Tensor, states: List[FusionState]) -> Step:
        """Score the next token after one more token of each hypothesis."""
        rows, ahead = self._look_ahead(tokens, states)
        moved = [self._moved(*pair) for pair in zip(tokens.tolist(), states, strict=True)]
        # each hypothesis pays for a word that is complete; one that may end pays for all
        due = [payments for *_, payments in moved]
        for (new, *_), can_end in zip(moved, self._can_end(rows), strict=True):
            last = self._payments(new.words, new.piece) if can_end else []
            due.append([*last, (self._after(new.words, last), END)] if can_end else [])
        paid = self._paid(due)
        found, after = rows.clone(), []
        for n, (new, back, _) in enumerate(moved):
            found[n] += paid[n] - back
            end = found[n, -1] + paid[len(moved) + n]
            if self.takes_back:
                end -= new.spent + rows[n, -1]
            found[n, -1] = end if due[len(moved) + n] else -torch.inf
            after.append(new._replace(ahead=ahead[n], row=rows[n]))
        found[:, 0] = -torch.inf
        return found, after

    def forward(self, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Score each next token, (B, L, V); the state holds the hypotheses."""
        states = [self.zero_state() for _ in input] if hidden is None else hidden
        columns = []
        for tokens in input.unbind(1):
            scores, states = self.advance(tokens, states)
            columns.append(scores)
        return torch.stack(columns, dim=1), states

    def _components(self) -> List[Component]:
        """Components where the look-ahead is."""
        return self._loaded.on(str(self.like.device))

    def _look_ahead(
        self, tokens: torch.Tensor, states: Sequence[FusionState]
    ) -> Tuple[torch.Tensor, Sequence[Any]]:
        """What the look-ahead gives each next token, (B, V), and its states."""
        if self.ahead is None:
            return self.like.new_zeros(len(tokens), self.vocab_size), [None] * len(tokens)
        log_probs, ahead = self.ahead.advance(tokens, [state.ahead for state in states])
        return self.ahead_weight * log_probs, ahead

    def _can_end(self, rows: torch.Tensor) -> List[bool]:
        """True for each hypothesis whose end the look-ahead does not rule out."""
        near = rows[:, -1] > rows[:, 1:].max(1).values - self.end_margin * self.ahead_weight
        return near.tolist()

    def _moved(self, token: int, state: FusionState) -> Tuple[FusionState, float, List[Payment]]:
        """A hypothesis after one more token, what is taken back, and the words that have ended."""
        if state.row is None:  # the start of a sentence
            return state, 0.0, []
        gain, text = float(state.row[token]), self._words.texts[token]
        if not (self._words.opens[token] and state.piece):
            return state._replace(piece=state.piece + text, spent=state.spent + gain), 0.0, []
        payments = self._payments(state.words, state.piece)
        words = self._after(state.words, payments)
        back = state.spent if self.takes_back else 0.0
        return state._replace(words=words, piece=text, spent=gain), back, payments

    def _payments(self, words: Words, piece: str) -> List[Payment]:
        """Words of some letters, as LMs read them, each after the words before it."""
        found: List[Payment] = []
        for word in self._normalization.words([self._words.word(piece)]) if piece else []:
            found.append((words, word))
            words = self._after(words, found[-1:])
        return found

    def _after(self, words: Words, payments: Sequence[Payment]) -> Words:
        """State after the last of some payments; that of `words` without any."""
        if not payments:
            return words
        before, word = payments[-1]
        scorers = (c.scorer for c in self._components())
        return tuple(s.after(own, word) for s, own in zip(scorers, before, strict=True))

    def _paid(self, due: Sequence[Sequence[Payment]]) -> List[float]:
        """Sums of ln P of some payments by the mixture; all are computed at once."""
        payments = [payment for own in due for payment in own]
        if not payments:
            return [0.0] * len(due)
        states, words = zip(*payments, strict=True)
        components = self._components()
        columns = zip(*states, strict=True)
        log_probs = np.stack(
            [
                component.scorer.next_words(own, words)
                for component, own in zip(components, columns, strict=True)
            ]
        )
        totals = np.split(combined(log_probs, self.weights), np.cumsum([*map(len, due)])[:-1])
        return [float(part.sum()) for part in totals]

"""Words of any LM in the search of a recogniser with other tokens: an ESPnet LM over its tokens.

When a token begins a word, the word before it is complete. Its ln P is paid then, one step late, as
a constant over the next tokens, and `<sos/eos>` pays the last word and the sentence's end. A small
LM of the recogniser's own tokens looks ahead: it scores each token at once, and what it gave a word
is taken back when the word is paid. A finished hypothesis thus has the ln P of its text.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.lm.ngram import LogProbLM
from espnet_bayeslm.lm.scoring import IncrementalLM, Step
from espnet_bayeslm.scoring.interpolation import combined
from espnet_bayeslm.scoring.reader import SPACE, WORD_MARK
from espnet_bayeslm.scoring.word_scores import END, WordScorer
from espnet_bayeslm.utils.errors import InputError

# An end that the look-ahead gives so many nats less than the best token is ruled out
END_MARGIN = 12.0


class TokenWords:
    """How the tokens of a recogniser make words.

    Attributes:
        opens: (V,), True for each token that begins a word.
        texts: (V,), the letters that each token adds to a word.
    """

    def __init__(self, tokens: Sequence[str]):
        if any(token.startswith(WORD_MARK) for token in tokens):
            self.opens = [token.startswith(WORD_MARK) for token in tokens]
            self.texts = [token.removeprefix(WORD_MARK) for token in tokens]
        elif SPACE in tokens:
            self.opens = [token == SPACE for token in tokens]
            self.texts = ["" if token == SPACE else token for token in tokens]
        else:  # no blanks: each token is a word
            self.opens, self.texts = [True] * len(tokens), list(tokens)


class FusionState(NamedTuple):
    """A hypothesis.

    Attributes:
        words: State of each component after the complete words.
        piece: Letters of the word that has begun.
        ahead: State of the look-ahead.
        spent: What the look-ahead gave the word that has begun, in nats.
        row: What it gives each next token, (V,); None: nothing.
    """

    words: Tuple[Any, ...]
    piece: str = ""
    ahead: Any = None
    spent: float = 0.0
    row: Optional[torch.Tensor] = None


class FusionLM(LogProbLM):
    """Components that score words, as an LM of a recogniser's tokens.

    Args:
        tokens: The recogniser's tokens, `<blank>` first and `<sos/eos>` last.
        scorers: The components.
        weights: Their weights, which sum to 1.
        ahead: The look-ahead, an LM of the recogniser's tokens; None: there is none.
        ahead_weight: Its weight where the mixture's is 1.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        scorers: Sequence[WordScorer],
        weights: Sequence[float],
        *,
        ahead: Optional[IncrementalLM] = None,
        ahead_weight: float = 1.0,
    ):
        super().__init__()
        self.vocab_size = len(tokens)
        self.ahead, self.ahead_weight = ahead, ahead_weight
        if ahead is not None and ahead.vocab_size != len(tokens):
            raise InputError(
                f"the look-ahead has {ahead.vocab_size} tokens, and the recogniser {len(tokens)}",
                remedy="Train it with the recogniser's token list.",
            )
        self._words = TokenWords(tokens)
        self._scorers, self._weights = list(scorers), np.array(weights)
        self.register_buffer("like", torch.empty(0), persistent=False)

    def zero_state(self) -> FusionState:
        """State before the first token."""
        ahead = None if self.ahead is None else self.ahead.zero_state()
        return FusionState(tuple(scorer.begin() for scorer in self._scorers), ahead=ahead)

    def advance(self, tokens: torch.Tensor, states: List[FusionState]) -> Step:
        """Score the next token after one more token of each hypothesis."""
        rows, ahead = self._look_ahead(tokens, states)
        new, paid = self._moved(tokens, states)
        found = rows + torch.tensor(paid).to(rows).unsqueeze(1)
        found[:, -1] = torch.tensor(self._ends(rows, new, paid)).to(rows)
        found[:, 0] = -torch.inf
        after = [s._replace(ahead=a, row=r) for s, a, r in zip(new, ahead, rows, strict=True)]
        return found, after

    def forward(self, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Score each next token, (B, L, V); the state holds the hypotheses."""
        states = [self.zero_state()] * len(input) if hidden is None else hidden
        columns = []
        for tokens in input.unbind(1):
            scores, states = self.advance(tokens, states)
            columns.append(scores)
        return torch.stack(columns, dim=1), states

    def _look_ahead(
        self, tokens: torch.Tensor, states: Sequence[FusionState]
    ) -> Tuple[torch.Tensor, Sequence[Any]]:
        """What the look-ahead gives each next token, (B, V), and its states."""
        if self.ahead is None:
            return self.like.new_zeros(len(tokens), self.vocab_size), [None] * len(tokens)
        logits, ahead = self.ahead.advance(tokens, [state.ahead for state in states])
        return self.ahead_weight * logits.log_softmax(-1), ahead

    def _moved(
        self, tokens: torch.Tensor, states: Sequence[FusionState]
    ) -> Tuple[List[FusionState], List[float]]:
        """Hypotheses after one more token, and what the words that it ended are worth."""
        new, paid, ended = [], [0.0] * len(states), []
        for n, (token, state) in enumerate(zip(tokens.tolist(), states, strict=True)):
            if state.row is None:  # the start of a sentence
                new.append(state)
                continue
            gain = float(state.row[token])
            if self._words.opens[token] and state.piece:
                ended.append(n)
                new.append(state._replace(piece=self._words.texts[token], spent=gain))
            else:
                piece = state.piece + self._words.texts[token]
                new.append(state._replace(piece=piece, spent=state.spent + gain))
        before = [states[n] for n in ended]
        values = self._next([s.words for s in before], [s.piece for s in before])
        for n, state, value in zip(ended, before, values, strict=True):
            pairs = zip(self._scorers, state.words, strict=True)
            words = tuple(scorer.after(own, state.piece) for scorer, own in pairs)
            new[n], paid[n] = new[n]._replace(words=words), value - state.spent
        return new, paid

    def _ends(
        self, rows: torch.Tensor, states: Sequence[FusionState], paid: Sequence[float]
    ) -> List[float]:
        """Score of the end of each hypothesis: its last word's and the end's own."""
        found = [-np.inf] * len(states)
        possible = range(len(states))
        if self.ahead is not None:
            near = rows[:, -1] > rows.max(1).values - END_MARGIN * self.ahead_weight
            possible = near.nonzero().squeeze(1).tolist()
        lasts = [n for n in possible if states[n].piece]
        words = dict(
            zip(
                lasts,
                self._next([states[n].words for n in lasts], [states[n].piece for n in lasts]),
                strict=True,
            )
        )
        finals = []
        for n in possible:
            state, after = states[n], states[n].words
            if state.piece:
                pairs = zip(self._scorers, state.words, strict=True)
                after = tuple(scorer.after(own, state.piece) for scorer, own in pairs)
            finals.append(after)
        ends = self._next(finals, [END] * len(finals))
        for n, end in zip(possible, ends, strict=True):
            found[n] = paid[n] + words.get(n, 0.0) + end - states[n].spent
        return found

    def _next(self, states: Sequence[Tuple[Any, ...]], words: Sequence[str]) -> List[float]:
        """Ln P of a word, or of the end, after each state, by the mixture."""
        if not words:
            return []
        columns = zip(*states, strict=True)
        pairs = zip(self._scorers, columns, strict=True)
        return combined(
            np.stack([scorer.next_words(own, words) for scorer, own in pairs]), self._weights
        ).tolist()

"""Scoring of one token after the other, for beam search."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch
from espnet2.lm.abs_model import AbsLM

from espnet_bayeslm.kernels.product import keeping_packed, searches

Step = Tuple[torch.Tensor, List[Any]]


class TokenIds(NamedTuple):
    """Ids of the tokens of a search that are neither text nor marks within it.

    Attributes:
        blank: Of a CTC or transducer; None: there is none.
        sos: Token before a sentence.
        eos: Token after a sentence.
    """

    blank: Optional[int] = 0
    sos: int = -1
    eos: int = -1

    @classmethod
    def of(cls, vocab_size: int, given: Optional[Mapping[str, Any]]) -> TokenIds:
        """Ids from 0 among so many tokens; None: ESPnet's, `<blank>` first, `<sos/eos>` last."""
        blank, sos, eos = cls(**(given or {}))
        return cls(blank, sos % vocab_size, eos % vocab_size)


class IncrementalLM(AbsLM):
    """An ESPnet LM whose state after a prefix is kept, so that a token costs one step.

    ESPnet's own searches call `score` and `batch_score`. Its transducer searches give only the last
    token of hypotheses of different lengths, which is enough here as for any recurrent LM.

    Attributes:
        vocab_size: Number of tokens.
        sos: Id of the token before a sentence; None: the last of the vocabulary, as in ESPnet.
        eos: Id of the token after a sentence; None: the last of the vocabulary, as in ESPnet.
        blank: Id of the token by which a transducer's search begins; None: there is none.
    """

    vocab_size: int
    sos: Optional[int] = None
    eos: Optional[int] = None
    blank: Optional[int] = 0
    _search = 0

    @abstractmethod
    def zero_state(self) -> Any:
        """A hypothesis' state before its first token."""

    def zero_states(self, count: int) -> List[Any]:
        """States of the hypotheses of a batch before their first tokens, utterance by utterance."""
        return [self.zero_state() for _ in range(count)]

    @abstractmethod
    def advance(self, tokens: torch.Tensor, states: List[Any]) -> Step:
        """Read one more token (B,) of each hypothesis, with the weights as they are now.

        The prefixes of the states may have different lengths. Returns logits (B, vocab_size) and
        the new states.
        """

    def score(self, y: torch.Tensor, state: Any, x: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        """Ln p of each next token (vocab_size,) after the prefix y (L,), and the state."""
        log_probs, states = self.batch_score(y.unsqueeze(0), [state], x)
        return log_probs.squeeze(0), states[0]

    @torch.no_grad()
    def batch_score(self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor) -> Step:
        """Score the next token of each hypothesis, without a new sample.

        Args:
            ys: Prefixes that begin with <sos/eos>, (B, L); of hypotheses with a state only the
                last token is read.
            states: States that an earlier call returned for the prefixes without their last token;
                None at the start.
            xs: Encoder output (not used).

        Returns:
            ln p, (B, vocab_size); the new states.
        """
        logits, states = self._read(ys, states)
        return logits.log_softmax(dim=-1), states

    def _read(self, ys: torch.Tensor, states: List[Any]) -> Step:
        """Logits and new states of the next token, (B, vocab_size), in evaluation mode."""
        # ESPnet's transducer searches write the start of a sentence as <blank>
        if self.blank is not None:
            sos = self.vocab_size - 1 if self.sos is None else self.sos
            ys = ys.masked_fill(ys == self.blank, sos)
        begins = all(state is None for state in states)
        read = 0 if begins else ys.size(1) - 1
        with self.scoring(goes_on=not begins):
            if begins:
                states = self.zero_states(len(states))
            # a transducer's hypothesis may still be empty where others are not
            states = [self.zero_state() if state is None else state for state in states]
            for tokens in ys[:, read:].unbind(1):
                logits, states = self.advance(tokens, states)
        return logits, states

    @contextlib.contextmanager
    def scoring(self, *, goes_on: bool = False) -> Iterator[None]:
        """Hold evaluation mode: ESPnet's transducer programs leave an LM in training mode.

        Args:
            goes_on: True within one search, whose weights stay; else they may have changed in any
                way since the last call.
        """
        if not goes_on:
            self._search = next(searches)
        training = self.training
        if training:
            self.eval()
        try:
            with keeping_packed(self._search):
                yield
        finally:
            if training:
                self.train()

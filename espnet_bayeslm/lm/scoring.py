"""Scoring of one token after the other, for beam search."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, List, Optional, Tuple

import torch
from espnet2.lm.abs_model import AbsLM


class IncrementalLM(AbsLM):
    """An ESPnet LM whose state after a prefix is kept, so that a token costs one step."""

    @abstractmethod
    def before_scoring(self) -> None:
        """Do what has to be done before each call of `batch_score`."""

    @abstractmethod
    def compute(self, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, Any]:
        """Return logits and the new state, as `forward`, with the weights as they are now."""

    @abstractmethod
    def stack_states(self, states: List[Any]) -> Any:
        """Return the batch's state from the hypotheses' states."""

    @abstractmethod
    def split_state(self, state: Any) -> List[Any]:
        """Return the hypotheses' states from the batch's state."""

    @abstractmethod
    def num_consumed(self, state: Any) -> Optional[int]:
        """Return how many tokens a hypothesis' state has seen; None: all but the last."""

    def score(self, y: torch.Tensor, state: Any, x: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        """Return ln p of each next token (vocab_size,) after the prefix y (L,), and the state."""
        log_probs, states = self.batch_score(y.unsqueeze(0), [state], x)
        return log_probs.squeeze(0), states[0]

    def batch_score(
        self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor
    ) -> Tuple[torch.Tensor, List[Any]]:
        """Score the next token of each hypothesis, never with a new draw.

        Args:
            ys: Prefixes that begin with <sos/eos>, (B, L).
            states: Their states, or None at the start.
            xs: Encoder output (not used).

        Returns:
            ln p, (B, vocab_size); the new states.
        """
        self.before_scoring()
        if states[0] is None:
            tokens, state = ys, None
        else:
            consumed = self.num_consumed(states[0])
            tokens = ys[:, -1:] if consumed is None else ys[:, consumed:]
            state = self.stack_states(states)
        logits, state = self.compute(tokens, state)
        return logits[:, -1].log_softmax(dim=-1), self.split_state(state)

"""Capabilities that scoring asks of an LM; each is optional, since ESPnet's own LMs have none."""

from __future__ import annotations

from typing import (
    Any,
    ContextManager,
    List,
    Optional,
    Protocol,
    Tuple,
    TypeGuard,
    runtime_checkable,
)

import torch
from torch import nn

from espnet_bayeslm.lm.tree import TokenTree

Pair = Tuple[torch.Tensor, torch.Tensor]


@runtime_checkable
class RandomLM(Protocol):
    """An LM with random weights, activations or outputs."""

    def sampled(self, index: int, *, seed: int = 0) -> ContextManager[None]:
        """Hold sample number `index` for all that is computed within."""
        ...

    def locations(self) -> List[Any]:
        """Places where something is random; none in a point-estimate LM."""
        ...

    def kl(self) -> torch.Tensor:
        """KL(posterior || prior) of all that is random, in nats, ()."""
        ...


class TreeLM(Protocol):
    """An LM that computes prefix trees: each distinct prefix once."""

    vocab_size: int
    decoder: nn.Linear

    def tree_outputs(self, tree: TokenTree, state: Optional[Pair] = None, /) -> torch.Tensor:
        """Input of the output projection after each node, (T, M).

        The state of a recurrent LM before the roots is h and c; None: that at a text's beginning.
        """
        ...


class RecurrentTreeLM(TreeLM, Protocol):
    """A `TreeLM` that continues from its state."""

    def tree_states(self, tree: TokenTree, state: Optional[Pair] = None, /) -> Pair:
        """States h and c after each node, (nlayers, T, unit) each."""
        ...

    def zero_state(self) -> Pair:
        """State of a hypothesis before its first token."""
        ...

    def stack_states(self, states: List[Pair], /) -> Pair:
        """State of a batch from the states of its hypotheses."""
        ...

    def split_state(self, state: Pair, /) -> List[Pair]:
        """States of the hypotheses of a batch."""
        ...


def has_trees(lm: object) -> TypeGuard[TreeLM]:
    """True if an LM computes prefix trees, as it is now."""
    return bool(getattr(lm, "computes_trees", False))


def has_tree_states(lm: object) -> TypeGuard[RecurrentTreeLM]:
    """True if an LM continues from its state after a node of a prefix tree, as it is now."""
    return bool(getattr(lm, "continues_trees", False))

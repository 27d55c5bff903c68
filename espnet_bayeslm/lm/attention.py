"""Transformer LMs: whole sequences, prefix trees, and the steps of a beam search."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Callable, List, Optional

import torch
from torch import nn

from espnet_bayeslm.layers.key_value_cache import CachedStep, KeyValueCache, Prefix
from espnet_bayeslm.layers.transformer import attention
from espnet_bayeslm.layers.tree_attention import TreeAttention
from espnet_bayeslm.lm.projected import ProjectedLM
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.lm.tree import TokenTree

# Maps (layer from 0, query, key, value) to the attention of all heads, (..., M) each
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class AttentionLM(ProjectedLM):
    """A Transformer LM; a hypothesis' state is its keys and values.

    Attributes:
        head: Number of attention heads.
        att_unit: M, the width.
        attention_dropout_rate: Dropout of the attention weights.
        hides_padding: True if no token sees an earlier one that is 0.
    """

    embed: nn.Embedding
    head: int
    att_unit: int
    attention_dropout_rate: float
    hides_padding = False

    @abstractmethod
    def num_layers(self) -> int:
        """Number of layers."""

    @abstractmethod
    def embed_at(self, tokens: torch.Tensor, positions: torch.Tensor, end: int) -> torch.Tensor:
        """Input of the first layer, (..., M), for tokens (...) at positions below `end`, (...)."""

    @abstractmethod
    def run_layers(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Run all layers, (..., M) -> (..., M)."""

    def projected(  # type: ignore[override]
        self, input: torch.Tensor, keep: Optional[List[torch.Tensor]] = None
    ) -> torch.Tensor:
        """Input of the output projection, (B, L, M); `keep` collects keys and values."""
        length, mask = input.size(1), None
        if self.hides_padding:
            causal = torch.ones(length, length, dtype=torch.bool, device=input.device).tril()
            mask = (causal & (input != 0).unsqueeze(1)).unsqueeze(1)  # (B, 1, L, L)
        rate = self.attention_dropout_rate if self.training else 0.0

        def attend(layer: int, *heads: torch.Tensor) -> torch.Tensor:
            if keep is not None:
                keep.append(torch.stack(heads[1:], dim=1))
            return attention(*heads, heads=self.head, mask=mask, dropout_rate=rate)

        positions = torch.arange(length, device=input.device)
        return self.run_layers(self.embed_at(input, positions, length), attend)

    def tree_outputs(self, tree: TokenTree) -> torch.Tensor:
        """Input of the output projection at each node of prefix trees, (T, M).

        Computed with the mean or the sample of `drawn`, in evaluation mode. A node's position is
        its depth.
        """
        x = self.embed_at(tree.tokens, tree.depths, len(tree.level_sizes))
        nodes = TreeAttention(tree, x.dtype)

        def attend(layer: int, *heads: torch.Tensor) -> torch.Tensor:
            return nodes.attend(*heads, heads=self.head)

        return self.run_layers(x[nodes.order], attend)[nodes.rows]

    def zero_state(self) -> Prefix:
        """State of a hypothesis without a token, in a cache of its own."""
        return self._cache().empty()

    def _cache(self) -> KeyValueCache:
        like = self.embed.weight.detach()
        return KeyValueCache(self.num_layers(), self.head, self.att_unit, like)

    def begin(self, tokens: torch.Tensor) -> Step:
        """Read prefixes from their start and cache their keys and values."""
        keys_values: List[torch.Tensor] = []
        x = self.projected(tokens, keys_values)
        return self.project(x[:, -1]), self._cache().begin(keys_values)

    def advance(self, tokens: torch.Tensor, states: List[Any]) -> Step:
        """Read one more token of each hypothesis; token 0, which no prefix has, is visible here."""
        step = CachedStep(states)
        x = self.embed_at(tokens, step.positions, step.end)
        return self.project(self.run_layers(x, step.attend)), step.prefixes

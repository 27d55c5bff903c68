"""ESPnet's `transformer` LM (pre-norm, ReLU)."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, List, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.layers.key_value_cache import CachedStep, KeyValueCache, Prefix
from espnet_bayeslm.layers.transformer import split_heads
from espnet_bayeslm.layers.tree_attention import TreeAttention
from espnet_bayeslm.lm.espnet import BayesESPnetLM, parameters
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.lm.tree import TokenTree
from espnet_bayeslm.utils.quiet import quiet_imports

with quiet_imports():
    from espnet2.lm.transformer_lm import TransformerLM

Heads = Tuple[torch.Tensor, ...]


class Transformer(BayesESPnetLM):
    """`TransformerLM`; a hypothesis' state is its keys and values."""

    backbone = "transformer"
    espnet_class = TransformerLM
    parameters_at: ClassVar = {
        "embedding": ("embed.weight",),
        "attention": parameters(
            *(f"encoder.encoders.{{k}}.self_attn.linear_{name}" for name in ("q", "k", "v", "out"))
        ),
        "ffn": parameters("encoder.encoders.{k}.feed_forward.w_1"),
        "ffn_out": parameters("encoder.encoders.{k}.feed_forward.w_2"),
        "output": parameters("decoder"),
    }

    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.encoder.encoders)

    def projected(self, input: torch.Tensor, keep: Any = None) -> torch.Tensor:
        """Input of the output projection, (B, L, M); `keep` collects keys and values."""
        x = self.encoder.embed(self.embed(input))
        length = input.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=input.device).tril()
        # (B, 1, L, L)
        mask = (causal & (input != 0).unsqueeze(1)).unsqueeze(1)

        def attend(layer: int, attention: Any, *heads: torch.Tensor) -> torch.Tensor:
            if keep is not None:
                keep.append(torch.stack(heads[1:], dim=1))
            return _attend(attention, heads, mask)

        return run_layers(self.encoder, x, attend)

    def zero_state(self) -> Prefix:
        """State of a hypothesis without a token, in a cache of its own."""
        return self._cache().empty()

    def _cache(self) -> KeyValueCache:
        own = self.encoder.encoders[0].self_attn
        size = own.h * own.d_k
        return KeyValueCache(self.num_layers(), own.h, size, self.embed.weight.detach())

    def begin(self, tokens: torch.Tensor) -> Step:
        """Read prefixes from their start and cache their keys and values."""
        keys_values: List[torch.Tensor] = []
        x = self.projected(tokens, keys_values)
        return self.decoder(x[:, -1]), self._cache().begin(keys_values)

    def advance(self, tokens: torch.Tensor, states: List[Prefix]) -> Step:
        """Read one more token of each hypothesis; token 0, which no prefix has, is visible here."""
        step = CachedStep(states)

        def attend(layer: int, attention: Any, *heads: torch.Tensor) -> torch.Tensor:
            return step.attend(layer, *heads)

        x = run_layers(self.encoder, self.embed_at(tokens, step.positions, step.end), attend)
        return self.decoder(x), step.prefixes

    def embed_at(self, tokens: torch.Tensor, positions: torch.Tensor, end: int) -> torch.Tensor:
        """Input of the first layer, (N, M), for tokens at positions below `end`, (N,)."""
        *layers, encoding = self.encoder.embed
        x = self.embed(tokens)
        for layer in layers:
            x = layer(x)
        if isinstance(encoding, nn.Sequential):  # ESPnet's pos_enc: null
            return x
        encoding.extend_pe(x.new_empty(1, 1).expand(1, end))
        return encoding.dropout(x * encoding.xscale + encoding.pe[0, positions])

    def tree_outputs(self, tree: TokenTree) -> torch.Tensor:
        """Input of the output projection at each node of prefix trees, (T, M)."""
        x = self.embed_at(tree.tokens, tree.depths, len(tree.level_sizes))
        nodes = TreeAttention(tree, x.dtype)

        def attend(layer: int, attention: Any, *heads: torch.Tensor) -> torch.Tensor:
            return nodes.attend(torch.cat(heads, dim=-1), attention.h)

        return run_layers(self.encoder, x[nodes.order], attend)[nodes.rows]


def run_layers(encoder: Any, x: torch.Tensor, attend: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Run ESPnet's layers, (..., M) -> (..., M).

    `attend` maps (layer from 0, ESPnet's attention, query, key, value) to the attention of the
    heads.
    """
    for number, layer in enumerate(encoder.encoders):
        attention, normed = layer.self_attn, layer.norm1(x)
        heads = (p(normed) for p in (attention.linear_q, attention.linear_k, attention.linear_v))
        found = attention.linear_out(attend(number, attention, *heads))
        x = x + layer.dropout(found)
        x = x + layer.dropout(layer.feed_forward(layer.norm2(x)))
    return encoder.after_norm(x)


def _attend(layer: Any, heads: Heads, mask: torch.Tensor) -> torch.Tensor:
    """Attention of query, key and value (B, L, M); 0 where the mask hides all, (B, 1, L, L)."""
    blind = ~mask.any(-1, keepdim=True)
    rate = layer.dropout.p if layer.training else 0.0
    # a row without a key would be 0 / 0
    query, key, value = (split_heads(x, layer.h) for x in heads)
    found = F.scaled_dot_product_attention(query, key, value, mask | blind, dropout_p=rate)
    return found.masked_fill(blind, 0.0).transpose(1, 2).flatten(2)

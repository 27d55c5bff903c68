"""ESPnet's Transformer LMs with the keys and values of a prefix as their state."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.layers.attention import split_heads
from espnet_bayeslm.lm.backbones.transformer import run_layers

State = Tuple[torch.Tensor, ...]


class PlainBackbone(nn.Module):
    """A `bayes_espnet` with one of ESPnet's backbones.

    Args:
        lm: What it stands for.
    """

    def __init__(self, lm: Any):
        super().__init__()
        self.lm = lm


class PlainTransformer(PlainBackbone):
    """With ESPnet's `transformer`."""

    def compute(
        self, input: torch.Tensor, hidden: Optional[Sequence[torch.Tensor]]
    ) -> Tuple[torch.Tensor, State]:
        """Logits and each layer's keys and values so far, (B, 2, P + L, att_unit)."""
        assert hidden is None or input.size(1) == 1, "one token after a prefix"
        state = []

        def attend(number: int, layer: Any, query: torch.Tensor, *new: torch.Tensor) -> Any:
            key_value = torch.stack(new, dim=1)
            if hidden is not None:
                key_value = torch.cat([hidden[number], key_value], dim=2)
            state.append(key_value)
            q, k, v = (split_heads(x, layer.h) for x in (query, *key_value.unbind(1)))
            found = F.scaled_dot_product_attention(q, k, v, is_causal=hidden is None)
            return found.transpose(1, 2).flatten(2)

        x = self._embed(input, 0 if hidden is None else hidden[0].size(2))
        return self.lm.decoder(run_layers(self.lm.encoder, x, attend)), tuple(state)

    def _embed(self, input: torch.Tensor, offset: int) -> torch.Tensor:
        """Token ids (B, L), the first at position `offset` -> (B, L, att_unit)."""
        *layers, encoding = self.lm.encoder.embed
        x = self.lm.embed(input)
        for layer in layers:
            x = layer(x)
        if isinstance(encoding, nn.Sequential):  # ESPnet's pos_enc: null
            return x
        # in float32, as ESPnet makes its table
        positions = torch.arange(offset, offset + input.size(1)).to(x.dtype).unsqueeze(1)
        even = torch.arange(0, x.size(-1), 2, dtype=torch.float32)
        angle = positions * torch.exp(even * -(math.log(10000.0) / x.size(-1)))
        pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)
        return x * encoding.xscale + pairs.flatten(-2)


class PlainOPT(PlainBackbone):
    """With ESPnet's `transformer_opt`."""

    def compute(
        self, input: torch.Tensor, hidden: Optional[Sequence[torch.Tensor]]
    ) -> Tuple[torch.Tensor, State]:
        """Logits and each layer's keys and values so far, (B, 2, heads, P + L, d_k)."""
        from transformers import DynamicCache

        found: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}

        class Cache(DynamicCache):
            """Keys and values, which are seen as they come: their place in it varies."""

            def update(  # type: ignore[override]
                self, key: Any, value: Any, layer: int, *args: Any, **kwargs: Any
            ) -> Any:
                found[layer] = super().update(key, value, layer, *args, **kwargs)
                return found[layer]

        cache, past = Cache(), 0
        for layer, key_value in enumerate(hidden or ()):
            key, value = key_value.unbind(1)
            cache.update(key, value, layer)
            past = key_value.size(3)
        mask = torch.ones(input.size(0), past + input.size(1), dtype=torch.long)
        result = self.lm.decoder(
            input, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True
        )
        state = tuple(torch.stack(found[layer], dim=1) for layer in sorted(found))
        return self.lm.lm_head(result.last_hidden_state), state


PLAIN: Dict[str, Callable[[Any], nn.Module]] = {
    "transformer": PlainTransformer,
    "transformer_opt": PlainOPT,
}

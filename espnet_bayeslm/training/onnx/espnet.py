"""ESPnet's Transformer LMs with the keys and values of a prefix as their state."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

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
        encoder = self.lm.encoder
        x = self._embed(input, 0 if hidden is None else hidden[0].size(2))
        keys_values = []
        for number, layer in enumerate(encoder.encoders):
            past = None if hidden is None else hidden[number]
            found, key_value = _attend(layer.self_attn, layer.norm1(x), past)
            keys_values.append(key_value)
            x = x + found
            x = x + layer.feed_forward(layer.norm2(x))
        return self.lm.decoder(encoder.after_norm(x)), tuple(keys_values)

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


def _attend(
    attention: Any, x: torch.Tensor, past: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Attention of tokens to those before them and themselves, and all keys and values.

    Args:
        attention: ESPnet's attention.
        x: (B, L, M).
        past: Keys and values of the P tokens before, (B, 2, P, M).
    """
    key_value = torch.stack([attention.linear_k(x), attention.linear_v(x)], dim=1)
    if past is not None:
        key_value = torch.cat([past, key_value], dim=2)
    projected = (attention.linear_q(x), key_value[:, 0], key_value[:, 1])
    # (B, L, M) -> (B, h, L, d_k)
    q, k, v = (y.unflatten(-1, (attention.h, -1)).transpose(1, 2) for y in projected)
    assert past is None or x.size(1) == 1, "one token after a prefix"
    found = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
    return attention.linear_out(found.transpose(1, 2).flatten(2)), key_value


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

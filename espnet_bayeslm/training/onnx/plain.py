"""What of an LM a tracer does not see through, and what stands in its place."""

from __future__ import annotations

import sys
from typing import Any, Callable, ContextManager, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.kernels import KERNELS, plain
from espnet_bayeslm.layers import UncertainLSTM, sinusoids
from espnet_bayeslm.layers.attention import split_heads
from espnet_bayeslm.lm import BayesTransformerLM
from espnet_bayeslm.lm.backbones.transformer import run_layers

State = Tuple[torch.Tensor, ...]


def traceable(lm: nn.Module) -> ContextManager[None]:
    """Compute within by plain functions, but for torch's fused LSTM, which its exporter knows."""
    return plain() if has_loop(lm) else plain(*(set(KERNELS) - {"lstm_loop"}), others_fast=True)


def has_loop(lm: nn.Module) -> bool:
    """Whether a step of the LM can be traced, and no whole sequence: a loop is of one length."""
    return any(
        bool(module.bases) or any(getattr(child, "feedback", False) for child in module.children())
        for module in lm.modules()
        if isinstance(module, UncertainLSTM)
    )


class Encodings:
    """Sinusoidal position encodings in place of a table of them: there is no longest prefix.

    Args:
        table: What it stands for, (..., any length, att_unit).
    """

    def __init__(self, table: torch.Tensor):
        self.dim, self.dtype, self.device = table.size(-1), table.dtype, table.device

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, positions: Any) -> torch.Tensor:
        """Map positions (...) to encodings (..., att_unit); those of ESPnet come after a 0."""
        positions = positions[1] if isinstance(positions, tuple) else positions
        return sinusoids(positions, self.dim).to(self.dtype)


def without_tables(lm: Any) -> Any:
    """The LM, its position encodings no table any more."""
    if isinstance(lm, BayesTransformerLM):
        lm.encodings = Encodings(lm.encodings)  # type: ignore[assignment]
    for module in lm.modules():
        if hasattr(module, "extend_pe"):  # ESPnet's
            module.pe, module.extend_pe = Encodings(module.pe), lambda like: None
    return lm


def run_transformer(
    lm: Any, input: torch.Tensor, hidden: Optional[Sequence[torch.Tensor]]
) -> Tuple[torch.Tensor, State]:
    """Logits of ESPnet's `transformer`; each layer's keys and values, (B, 2, P + L, att_unit)."""
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

    first = 0 if hidden is None else hidden[0].size(2)
    end = first + input.size(1)
    x = lm.embed_at(input, torch.arange(first, end), end)
    return lm.decoder(run_layers(lm.encoder, x, attend)), tuple(state)


def run_opt(
    lm: Any, input: torch.Tensor, hidden: Optional[Sequence[torch.Tensor]]
) -> Tuple[torch.Tensor, State]:
    """Logits of `transformer_opt`; each layer's keys and values, (B, 2, heads, P + L, d_k)."""
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
    result = lm.decoder(
        input, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True
    )
    state = tuple(torch.stack(found[layer], dim=1) for layer in sorted(found))
    return lm.lm_head(result.last_hidden_state), state


# How ESPnet's LMs are run that have no state of their own, by their names.
WITH_STATE: Dict[str, Callable[..., Tuple[torch.Tensor, Any]]] = {
    "transformer": run_transformer,
    "transformer_opt": run_opt,
}

"""ESPnet's `transformer` LM (pre-norm, ReLU)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from espnet_bayeslm.lm.attention import Attend, AttentionLM
from espnet_bayeslm.lm.espnet import BayesESPnetLM, parameters
from espnet_bayeslm.utils.quiet import quiet_imports

with quiet_imports():
    from espnet2.lm.transformer_lm import TransformerLM


class Transformer(AttentionLM, BayesESPnetLM):
    """`TransformerLM`; a hypothesis' state is its keys and values."""

    backbone = "transformer"
    espnet_class = TransformerLM
    hides_padding = True
    parameters_at: ClassVar = {
        "embedding": ("embed.weight",),
        "attention": parameters(
            *(f"encoder.encoders.{{k}}.self_attn.linear_{name}" for name in ("q", "k", "v", "out"))
        ),
        "ffn": parameters("encoder.encoders.{k}.feed_forward.w_1"),
        "ffn_out": parameters("encoder.encoders.{k}.feed_forward.w_2"),
        "output": parameters("decoder"),
    }

    def take_over(self, lm: nn.Module) -> None:
        """Make an LM's layers this LM's own, and look up the sizes of its attention."""
        super().take_over(lm)
        own = self.encoder.encoders[0].self_attn
        self.head, self.att_unit = own.h, own.h * own.d_k
        self.attention_dropout_rate = own.dropout.p

    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.encoder.encoders)

    def embed_at(self, tokens: torch.Tensor, positions: torch.Tensor, end: int) -> torch.Tensor:
        """Input of the first layer, (..., M), for tokens (...) at positions below `end`, (...)."""
        *layers, encoding = self.encoder.embed
        x = self.embed(tokens)
        for layer in layers:
            x = layer(x)
        if isinstance(encoding, nn.Sequential):  # ESPnet's pos_enc: null
            return x
        encoding.extend_pe(x.new_empty(1, 1).expand(1, end))
        return encoding.dropout(x * encoding.xscale + encoding.pe[0, positions])

    def run_layers(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Run ESPnet's layers, (..., M) -> (..., M)."""
        for number, layer in enumerate(self.encoder.encoders):
            own, normed = layer.self_attn, layer.norm1(x)
            heads = (linear(normed) for linear in (own.linear_q, own.linear_k, own.linear_v))
            x = x + layer.dropout(own.linear_out(attend(number, *heads)))
            x = x + layer.dropout(layer.feed_forward(layer.norm2(x)))
        return self.encoder.after_norm(x)

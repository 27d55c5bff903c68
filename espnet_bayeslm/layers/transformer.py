"""Transformer block (Eq. 11-16, Xue et al. 2022)."""

from __future__ import annotations

import math
from typing import Callable, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import Weights
from espnet_bayeslm.bayes.kinds import Function, Output
from espnet_bayeslm.kernels import feed_forward as kernels
from espnet_bayeslm.kernels import has_kernel
from espnet_bayeslm.layers.gp import GPActivation
from espnet_bayeslm.layers.linear import Linear


@has_kernel(kernels.feed_forward)
def feed_forward(
    x: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    *,
    dropout_rate: float,
) -> torch.Tensor:
    """Theta_2 dropout(GELU(Theta_1 x)) (Eq. 15), (..., M) -> (..., M).

    The weights are (D, M) and (M, D).
    """
    hidden = F.gelu(F.linear(x, weight1, bias1))  # (..., D)
    return F.linear(F.dropout(hidden, dropout_rate), weight2, bias2)


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Each head's part, (..., L, M) -> (..., heads, L, M / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def sinusoids(positions: torch.Tensor, dim: int) -> torch.Tensor:
    """Sinusoidal encodings of positions (...), double, (..., dim) (Vaswani et al. 2017, 3.5)."""
    even = torch.arange(0, dim, 2, dtype=torch.float64)
    angle = positions.unsqueeze(-1) * torch.exp(even * (-math.log(10000.0) / dim))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :dim]


class SelfAttention(nn.Module):
    """Causal multi-head self-attention; Theta_q, Theta_k, Theta_v are one matrix."""

    def __init__(self, att_unit: int, head: int, dropout_rate: float):
        super().__init__()
        self.head = head
        self.dropout_rate = dropout_rate
        self.in_proj = Linear(att_unit, 3 * att_unit)
        self.out_proj = Linear(att_unit, att_unit)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, x: torch.Tensor, past: Optional[torch.Tensor]
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Attend from the new positions to all before them and to themselves.

        Args:
            x: New positions, (B, L, M).
            past: Keys and values of the P positions before, (B, 2, P, M).

        Returns:
            (B, L, M), and the keys and values of all positions, (B, 2, P + L, M).
        """
        query, key_value = self.in_proj(x).split([x.size(-1), 2 * x.size(-1)], dim=-1)
        key_value = key_value.unflatten(-1, (2, -1)).transpose(1, 2)
        if past is not None:
            key_value = torch.cat([past, key_value], dim=2)
        q, k, v = (split_heads(t, self.head) for t in (query, key_value[:, 0], key_value[:, 1]))
        new, total = query.size(1), key_value.size(2)
        mask = None
        if past is not None and new > 1:
            mask = torch.ones(new, total, dtype=torch.bool, device=x.device).tril(total - new)
        rate = self.dropout_rate if self.training else 0.0
        # softmax(q k^T / sqrt(M / head)) v (Eq. 12)
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=rate, is_causal=past is None)
        return self.out_proj(y.transpose(1, 2).flatten(2)), key_value


class TransformerBlock(nn.Module):
    """Self-attention and a GELU feed-forward net, each with residual and LayerNorm.

    Args:
        att_unit: M, the width.
        head: Number of attention heads.
        unit: D, the feed-forward net's hidden size.
        dropout_rate: Dropout of the sub-layers' outputs and the hidden activations.
        attention_dropout_rate: Dropout of the attention weights.
        norm_first: LayerNorm before each sub-layer (pre-norm) and not after the residual.
    """

    def __init__(
        self,
        att_unit: int,
        head: int,
        unit: int,
        *,
        dropout_rate: float,
        attention_dropout_rate: float,
        norm_first: bool,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attention = SelfAttention(att_unit, head, attention_dropout_rate)
        self.linear1 = Linear(att_unit, unit)
        self.activation: nn.Module = nn.GELU()
        self.linear2 = Linear(unit, att_unit)
        self.norm1 = nn.LayerNorm(att_unit)
        self.norm2 = nn.LayerNorm(att_unit)
        self.dropout = nn.Dropout(dropout_rate)
        self.latent: nn.Module = nn.Identity()

    def function(self, path: str) -> Function:
        """The feed-forward net's activation, which a Gaussian process may replace.

        The LM has this block under the name `path`.
        """

        def replace(basis: Tuple[str, ...]) -> List[Weights]:
            self.activation = GPActivation(self.linear1.out_features, "gelu", basis)
            return [Weights(f"{path}.activation.gp_coefficients", is_new=True)]

        weights = [Weights(f"{path}.linear1.{name}") for name in ("weight", "bias")]
        return Function("gelu", weights, replace, f"{path}.activation")

    def output(self) -> Output:
        """s_t, the feed-forward module's output (Eq. 15), which may become a latent variable."""

        def replace(latent: nn.Module) -> None:
            self.latent = latent

        return Output(self.linear2.out_features, False, replace)

    def _hidden(self, x: torch.Tensor) -> torch.Tensor:
        """f(Theta_1 x), (B, L, D)."""
        if isinstance(self.activation, nn.GELU):
            return self.linear1(x, gelu=True)
        return self.activation(self.linear1(x))

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Theta_2 f(Theta_1 x), f the activation function, (B, L, M) -> (B, L, M)."""
        # also where a checkpointed pass runs without gradients: the units dropped are the same
        learns = self.training or torch.is_grad_enabled()
        if not (isinstance(self.activation, nn.GELU) and learns):
            return self.dropout(self.linear2(self.dropout(self._hidden(x))))
        layers = (self.linear1, self.linear2)
        weights = (value for layer in layers for value in layer.weights())
        rate = self.dropout.p if self.training else 0.0
        return self.dropout(feed_forward(x, *weights, dropout_rate=rate))

    def forward(
        self, x: torch.Tensor, past: Optional[torch.Tensor] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Map (B, L, M) to (B, L, M); `past` and the second result as in `SelfAttention`."""
        y, key_value = self.attention(self.norm1(x) if self.norm_first else x, past)
        return self._after_attention(x, y), key_value

    def attend_by(
        self, x: torch.Tensor, find: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Map (R, M) to (R, M); `find` computes the attention of all heads.

        The input of `find` is query, key and value of each row, side by side, (R, 3 M).
        """
        attention = self.attention
        found = find(attention.in_proj(self.norm1(x) if self.norm_first else x))
        return self._after_attention(x, attention.out_proj(found))

    def _after_attention(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Add the attention, y, to its input, and apply the feed-forward net."""
        x = x + self.dropout(y)
        if self.norm_first:
            return self.latent(x + self._feed_forward(self.norm2(x)))
        x = self.norm1(x)
        return self.norm2(self.latent(x + self._feed_forward(x)))

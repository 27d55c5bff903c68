"""Linear layer with optional random weights."""

from __future__ import annotations

from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import UncertainModule
from espnet_bayeslm.bayes.noise import random_signs
from espnet_bayeslm.kernels import fast


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    *,
    gelu: bool = False,
) -> torch.Tensor:
    """Theta [x, 1] or GELU of that, (..., in) -> (..., out); weight (out, in), bias (out,)."""
    y = F.linear(x, weight, bias)
    return F.gelu(y) if gelu else y


def flipout(
    x: torch.Tensor,
    deviation: torch.Tensor,
    bias: Optional[torch.Tensor],
    signs_in: torch.Tensor,
    signs_out: torch.Tensor,
) -> torch.Tensor:
    """What a sequence's own draw adds to the mean's output: r * (D [s * x, 1]).

    Wen et al. 2018, Eq. 4: to D [x, 1] with D * (r s^T) in place of the matrix D.

    Args:
        x: (..., in).
        deviation: D, what one draw of the weights is away from their mean, (out, in).
        bias: The same of the bias, (out,).
        signs_in: s, (..., in); the dimensions before are those of x, or 1.
        signs_out: r, (..., out).
    """
    return signs_out * fast(linear)(signs_in * x, deviation, bias)


def product(
    weight: torch.Tensor, rows: int, bias: Optional[torch.Tensor] = None, *, gelu: bool = False
) -> Callable[[torch.Tensor], torch.Tensor]:
    """`linear` with these weights, for many calls with x (rows, in)."""
    return lambda x: linear(x, weight, bias, gelu=gelu)


def project(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A linear layer's output by `linear`, or by its own way where it has one."""
    # ESPnet's decoding can put a quantised layer in its place
    return fast(linear)(x, layer.weight, layer.bias) if type(layer) is nn.Linear else layer(x)


class UncertainLinear(UncertainModule, nn.Linear):
    """`torch.nn.Linear`, whose weight and bias may be random."""

    noises = ("shared", "flipout", "local")

    def forward(self, input: torch.Tensor, *, gelu: bool = False) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), with one draw for all rows.

        With `gelu`, GELU of that: for many rows it costs nothing then. With noise that is not
        shared by the batch the first dimension is that of sequences.
        """
        noise = self.unshared_noise()
        if noise is not None:
            y = self._flipout(input) if noise == "flipout" else self._local(input)
            return F.gelu(y) if gelu else y
        return fast(linear)(input, self.value("weight"), self.value("bias"), gelu=gelu)

    def _flipout(self, x: torch.Tensor) -> torch.Tensor:
        """A draw whose deviations from the mean have random signs for each sequence.

        y = M [x, 1] + r * (D [s * x, 1]) with the mean M, the draw M + D, and signs r, s of a
        sequence's units (Wen et al. 2018, Eq. 4): one product more than with a shared draw.
        """
        assert self.draw is not None and self.draw.generator is not None
        shape, generator = (len(x), *(1,) * (x.dim() - 2)), self.draw.generator
        r, s = (
            random_signs((*shape, size), generator, like=x)
            for size in (self.out_features, self.in_features)
        )
        bias = None if self.bias is None else self.value("bias") - self.bias
        deviation = self.value("weight") - self.weight
        return fast(linear)(x, self.weight, self.bias) + flipout(x, deviation, bias, s, r)

    def _local(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs drawn in place of weights, for each token (Kingma et al. 2015, Eq. 6).

        y is Gaussian with the mean M [x, 1] and the variance V [x^2, 1], where V has the weights'
        variances.
        """
        assert self.draw is not None and self.draw.generator is not None
        bias = None if self.bias is None else self._variance("bias")
        variance = F.linear(x.square(), self._variance("weight"), bias)
        noise = torch.empty_like(variance, requires_grad=False)
        noise.normal_(generator=self.draw.generator)
        std = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
        return torch.addcmul(fast(linear)(x, self.weight, self.bias), std, noise)

    def _variance(self, parameter: str) -> torch.Tensor:
        """Variances of a parameter's weights, 0 where they are not random."""
        mean = getattr(self, parameter)
        variance = torch.zeros_like(mean)
        for block in self.random_blocks:
            if block.parameter == parameter:
                first, last = block.rows or (0, len(mean))
                found = block.kind.variance(self, block)
                whole = (first, last) == (0, len(mean))
                variance = found if whole else variance.slice_scatter(found, 0, first, last)
        return variance

"""Hidden outputs that are random variables (Eq. 29-34, Xue et al. 2022)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import kl_gaussians
from espnet_bayeslm.bayes.kinds import Kind, Place, register_kind
from espnet_bayeslm.bayes.noise import in_backward_pass, recomputation_error
from espnet_bayeslm.kernels import has_kernel, latent_sample
from espnet_bayeslm.layers.linear import linear
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log_std import LEAST_START, MOST_START, clamp_log_std, start_error
from espnet_bayeslm.utils.options import option

Observer = Callable[[torch.Tensor, torch.Tensor], None]


@dataclasses.dataclass
class LatentSampling:
    """Sampling options of a latent output in forward passes, and the KL of the last pass.

    Attributes:
        generator: Noise of each token, as it comes.
        held: Noise that all tokens have, (latent_dim,); with neither of both the mean is used.
        wants_kl: True if the passes compute the KL.
        kl: The KL of the last pass in nats, (B, L).
    """

    generator: Optional[torch.Generator] = None
    held: Optional[torch.Tensor] = None
    wants_kl: bool = False
    kl: Optional[torch.Tensor] = None


@has_kernel(latent_sample.sample_with_kl)
def sample_with_kl(
    packed: torch.Tensor, noise: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Z = mean + std * noise (Eq. 22) and KL(q(z) || p(z)) (Eq. 32), in float32 or better.

    Args:
        packed: Mean and log standard deviation of q, then of p, (..., 4 * latent_dim).
        noise: (..., latent_dim), or None for the mean.

    Returns:
        z (..., latent_dim); the KL of each token in nats (...).
    """
    packed = packed.to(torch.promote_types(packed.dtype, torch.float32))
    mean, log_std, prior_mean, prior_log_std = packed.chunk(4, dim=-1)
    log_std, prior_log_std = clamp_log_std(log_std), clamp_log_std(prior_log_std)
    z = mean if noise is None else mean + log_std.exp() * noise
    return z, kl_gaussians(mean, log_std, prior_mean, prior_log_std).sum(-1)


class LatentOutput(nn.Module):
    """Replaces a hidden vector h_t by a latent z_t with q(z_t) and p(z_t) computed from h_t.

    Each of the four outputs (mean and log standard deviation of q and p) is one linear layer.
    The layer starts as the identity with q = p: the mean of q is h_t. With another `latent_dim` a
    linear map of z_t replaces the first units of h_t, and is added to the rest.

    Args:
        size: a, the size of h_t.
        location: The location it belongs to.
        latent_dim: c, the size of z_t (default `size`, and no map back).
        init_std: Standard deviation of q and p at the start; the KL's curvature is 1 / init_std^2.

    Attributes:
        feedback: True if z_t takes the place of h_t in the next time step too, and not only in the
            layer above.
        sampling: Sampling options of forward passes; None: they use the mean of z_t.

    Raises:
        InputError: `latent_dim` is not a number above 0, or `init_std` outside of its range.
    """

    kept: torch.Tensor

    def __init__(
        self, size: int, *, location: str, latent_dim: Optional[int] = None, init_std: float = 0.1
    ):
        super().__init__()
        dim = size if latent_dim is None else latent_dim
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 1:
            raise InputError(f"latent_dim of {location}: expected 1 or more, got {latent_dim!r}")
        self.location, self.feedback = location, False
        if isinstance(init_std, bool) or not isinstance(init_std, (int, float)):
            raise InputError(f"init_std of {location}: expected a number above 0, got {init_std!r}")
        if not LEAST_START <= init_std <= MOST_START:
            raise start_error(init_std, location)
        self.init_std = init_std
        self.infer_mean, self.infer_log_std = nn.Linear(size, dim), nn.Linear(size, dim)
        self.prior_mean, self.prior_log_std = nn.Linear(size, dim), nn.Linear(size, dim)
        self.back = None if dim == size else nn.Linear(dim, size)
        kept = torch.ones(size)
        kept[:dim] = 0.0
        self.register_buffer("kept", kept, persistent=False)
        self.reset()
        self.mean_log_std: Optional[torch.Tensor] = None
        self.sampling: Optional[LatentSampling] = None
        self.observer: Optional[Observer] = None

    def reset(self) -> None:
        """Make it the identity with q = p."""
        for mean in (self.infer_mean, self.prior_mean):
            nn.init.eye_(mean.weight)
            nn.init.zeros_(mean.bias)
        for log_std in (self.infer_log_std, self.prior_log_std):
            nn.init.zeros_(log_std.weight)
            nn.init.constant_(log_std.bias, math.log(self.init_std))
        if self.back is not None:
            nn.init.eye_(self.back.weight)
            nn.init.zeros_(self.back.bias)

    def parameters_of(self, group: str) -> List[torch.Tensor]:
        """Parameters of the networks of q and p, if the group is `networks`."""
        return list(self.parameters()) if group == Variational.group else []

    @property
    def typical_std(self) -> Optional[float]:
        """The geometric mean of q's standard deviations in the last pass that computed the KL."""
        if self.mean_log_std is None:
            return None
        return float(clamp_log_std(self.mean_log_std).exp())

    @property
    def dim(self) -> int:
        """The size of z_t."""
        return self.infer_mean.out_features

    @property
    def wants_kl(self) -> bool:
        """True if the forward pass is to compute the KL."""
        return self.sampling is not None and self.sampling.wants_kl

    def held_noise(self, generator: torch.Generator) -> torch.Tensor:
        """Noise that all tokens have, (latent_dim,).

        With it a prefix has the same score however it is cut into calls.
        """
        noise = torch.empty_like(self.infer_mean.bias, requires_grad=False)
        return noise.normal_(generator=generator)

    def take_noise(self, shape: Sequence[int], like: torch.Tensor) -> Optional[torch.Tensor]:
        """Noise (..., latent_dim), in type and device as `like`; None where the mean is wanted."""
        if self.training and in_backward_pass():
            raise recomputation_error()
        if self.sampling is None:
            return None
        if self.sampling.generator is not None:
            noise = torch.empty(shape, dtype=like.dtype, device=like.device)
            return noise.normal_(generator=self.sampling.generator)
        held = self.sampling.held
        return None if held is None else held.to(like.dtype).expand(shape)

    def heads(self) -> List[nn.Linear]:
        """The networks that are needed: q's, and p's where the KL is wanted."""
        q, p = [self.infer_mean, self.infer_log_std], [self.prior_mean, self.prior_log_std]
        return q + p if self.wants_kl else q

    def sample(self, packed: torch.Tensor, noise: Optional[torch.Tensor]) -> torch.Tensor:
        """Sample z_t, (B, L, latent_dim), and its KL where that is wanted.

        `packed` are the outputs of `heads`, (B, L, 2 or 4 * latent_dim); without noise z_t is the
        mean.
        """
        mean, log_std = packed[..., : 2 * self.dim].chunk(2, dim=-1)
        if self.observer is not None:
            std = clamp_log_std(log_std.detach()).exp()
            self.observer(mean.detach(), std)
        if self.wants_kl:
            assert self.sampling is not None
            z, self.sampling.kl = sample_with_kl(packed, noise)
            self.mean_log_std = log_std.detach().mean()
            return z.to(packed.dtype)
        if noise is None:
            return mean
        return torch.addcmul(mean, clamp_log_std(log_std).exp(), noise)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Map h_t to z_t, both (B, L, size)."""
        noise = self.take_noise((*h.shape[:-1], self.dim), h)
        if noise is None and not self.wants_kl and self.observer is None:
            z = self.infer_mean(h)
        else:
            z = self.sample(linear_of(self.heads(), h), noise)
        return z if self.back is None else torch.addcmul(self.back(z), h, self.kept)


@register_kind
@dataclasses.dataclass
class Variational(Kind):
    """A hidden output is a latent variable with a Gaussian for each token (Eq. 29-34)."""

    name = "variational"
    needs = "output"
    group = "networks"
    colour = "tab:purple"
    no_export = (
        "the latent variables at {places} have no point-estimate form",
        "Decode and rescore with the LM itself.",
    )

    latent_dim: Any = option("Size of the latent variable; default: that of the output.", None)
    feedback: Any = option("True if the next time step gets the latent variable, too.", False)
    init_std: Any = option(
        "Standard deviation of posterior and prior at the start; default: 0.1.", None
    )

    def apply(self, place: Place) -> None:
        """Put the latent variable behind the output of a place."""
        output, feedback = place.output(), self.feedback
        if feedback and not output.recurs:
            raise InputError(
                f"feedback of {place.location}: a Transformer has no recurrence to feed"
            )
        latent = LatentOutput(
            output.size,
            location=place.location,
            latent_dim=self.latent_dim,
            init_std=0.1 if self.init_std is None else self.init_std,
        )
        if not isinstance(feedback, bool) or (feedback and latent.back is not None):
            raise InputError(
                f"feedback of {place.location}: expected true or false, and true only with"
                f" latent_dim {output.size}, got {feedback!r}"
            )
        latent.feedback = feedback
        output.replace(latent)

    @classmethod
    def owns(cls, key: str) -> bool:
        """True for the networks of latent outputs."""
        return any(word.startswith("latent") for word in key.split("."))


def side_by_side(heads: Sequence[nn.Linear]) -> Tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of linear layers, joined into one layer.

    The gradients of `torch.cat` are views of one tensor, which the parameters would keep, and
    clipping then scales it once for each of them. Gradients of products have a memory each.
    """
    weights, biases = ([1.0 * getattr(x, name) for x in heads] for name in ("weight", "bias"))
    return torch.cat(weights), torch.cat(biases)


def linear_of(heads: Sequence[nn.Linear], h: torch.Tensor) -> torch.Tensor:
    """Outputs of linear layers side by side, as one product; h is (B, L, size).

    In the weights' precision, whatever autocast says: the KL divides means by deviations.
    """
    weight, bias = side_by_side(heads)
    with torch.autocast(h.device.type, enabled=False):
        return linear(h.to(weight.dtype), weight, bias)

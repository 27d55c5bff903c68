"""The kind `variational`: hidden outputs that are random variables (Eq. 29-34, Xue et al. 2022)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, List, Optional

import torch
from torch import nn

from espnet_bayeslm.bayes import kl_gaussians
from espnet_bayeslm.bayes.base_kinds import Kind, Place
from espnet_bayeslm.bayes.noise import in_backward_pass, recomputation_error
from espnet_bayeslm.bayes.objective import LEAST_START, MOST_START, clamp_log_std, start_error
from espnet_bayeslm.kernels.product import linear
from espnet_bayeslm.utils.errors import InputError
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

    def noise(self, like: torch.Tensor) -> Optional[torch.Tensor]:
        """Noise as `like`, (..., latent_dim); None where the mean is wanted."""
        if self.generator is not None:
            noise = torch.empty_like(like, requires_grad=False)
            return noise.normal_(generator=self.generator)
        return None if self.held is None else self.held.to(like.dtype).expand_as(like)


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
        sampling: Sampling options of forward passes; None: they use the mean of z_t.
    """

    kept: torch.Tensor

    def __init__(
        self, size: int, *, location: str, latent_dim: Optional[int] = None, init_std: float = 0.1
    ):
        super().__init__()
        dim = size if latent_dim is None else latent_dim
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 1:
            raise InputError(f"latent_dim of {location}: expected 1 or more, got {latent_dim!r}")
        self.location = location
        is_number = isinstance(init_std, (int, float)) and not isinstance(init_std, bool)
        if not (is_number and LEAST_START <= init_std <= MOST_START):
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
        """Start as the identity, with equal posterior and prior."""
        for identity in filter(None, (self.infer_mean, self.prior_mean, self.back)):
            nn.init.eye_(identity.weight)
            nn.init.zeros_(identity.bias)
        for log_std in (self.infer_log_std, self.prior_log_std):
            nn.init.zeros_(log_std.weight)
            nn.init.constant_(log_std.bias, math.log(self.init_std))

    def parameters_of(self, group: str) -> List[torch.Tensor]:
        """Parameters of the networks of q and p, if the group is `networks`."""
        return list(self.parameters()) if group == Variational.group else []

    @property
    def typical_std(self) -> Optional[float]:
        """The geometric mean of q's standard deviations in the last pass that computed the KL."""
        return None if self.mean_log_std is None else float(self.mean_log_std.exp())

    @property
    def dim(self) -> int:
        """The size of z_t."""
        return self.infer_mean.out_features

    def held_noise(self, generator: torch.Generator) -> torch.Tensor:
        """Noise that all tokens have, (latent_dim,).

        With it a prefix has the same score however it is cut into calls.
        """
        noise = torch.empty_like(self.infer_mean.bias, requires_grad=False)
        return noise.normal_(generator=generator)

    def sampling_by(
        self, generator: Optional[torch.Generator], *, wants_kl: bool, hold: bool
    ) -> LatentSampling:
        """Sampling options with this noise, or of the mean, as `bayes.Sample` asks for them."""
        if generator is None or not hold:
            return LatentSampling(generator, wants_kl=wants_kl)
        return LatentSampling(held=self.held_noise(generator), wants_kl=wants_kl)

    def heads(self) -> List[nn.Linear]:
        """The networks that are needed: q's, and p's where the KL is wanted."""
        q, p = [self.infer_mean, self.infer_log_std], [self.prior_mean, self.prior_log_std]
        return q + p if self.sampling is not None and self.sampling.wants_kl else q

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Map h_t to z_t, both (B, L, size)."""
        if self.training and in_backward_pass():
            raise recomputation_error()
        sampling = self.sampling or LatentSampling()
        mean, log_std, *prior = linear_of(self.heads(), h).split(self.dim, dim=-1)
        log_std = clamp_log_std(log_std)
        if self.observer is not None:
            self.observer(mean.detach(), log_std.detach().exp())
        if sampling.wants_kl:
            prior_mean, prior_log_std = prior[0], clamp_log_std(prior[1])
            sampling.kl = kl_gaussians(mean, log_std, prior_mean, prior_log_std).sum(-1)
            self.mean_log_std = log_std.detach().mean()
        noise = sampling.noise(mean)
        z = mean if noise is None else torch.addcmul(mean, log_std.exp(), noise)  # Eq. 22
        return z if self.back is None else torch.addcmul(self.back(z), h, self.kept)


@dataclasses.dataclass
class Variational(Kind):
    """A hidden output is a latent variable with a Gaussian for each token (Eq. 29-34)."""

    name = "variational"
    needs = "output"
    group = "networks"
    own_prefixes = ("latent",)
    colour = "tab:purple"
    no_export = (
        "the latent variables at {places} have no point-estimate form",
        "Decode and rescore with the LM itself.",
    )

    latent_dim: Any = option("Size of the latent variable; default: that of the output.", None)
    init_std: Any = option("Standard deviation of posterior and prior at the start.", 0.1)

    def apply(self, place: Place) -> None:
        """Put the latent variable behind the output of a place."""
        size, options = place.output().output_size, dataclasses.asdict(self)
        place.add_latent(LatentOutput(size, location=place.location, **options))


def linear_of(heads: List[nn.Linear], h: torch.Tensor) -> torch.Tensor:
    """Outputs of linear layers side by side, as one product; h is (B, L, size).

    In the weights' precision, whatever autocast says: the KL divides means by deviations.
    """
    # The gradients of `torch.cat` are views of one tensor, which the parameters would keep, and
    # clipping then scales it once for each of them. Gradients of products have a memory each.
    weights, biases = ([1.0 * getattr(x, name) for x in heads] for name in ("weight", "bias"))
    with torch.autocast(h.device.type, enabled=False):
        return linear(h.to(weights[0].dtype), torch.cat(weights), torch.cat(biases))

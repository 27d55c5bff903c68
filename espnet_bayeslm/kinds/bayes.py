"""The kind `bayes`: weights with a Gaussian posterior and a Gaussian prior (Eq. 19-24, 32)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, List, Optional, Tuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from espnet_bayeslm.bayes.base_kinds import Block, WeightKind
from espnet_bayeslm.bayes.objective import (
    LEAST_START,
    LOG_STD_MAX,
    LOG_STD_MIN,
    MOST_START,
    check_spread,
    clamp_log_std,
    kl_learned_prior,
    kl_weights,
    start_error,
)
from espnet_bayeslm.kernels import has_kernel
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import option

# Of the Gaussian posterior's tensors
LOG_STD, PRIOR_MEAN, START_STD = "_log_std", "_prior_mean", "_start_std"
# What a standard deviation at the start can be relative to.
INIT_STD_UNITS = ("absolute", "weights", "prior")
# Prior variances that follow the posterior: one for a parameter, or one for each of its rows.
LEARNED = ("learn", "learn_rows")
# The least spread of weights that an initial standard deviation is relative to: biases may be 0.
MIN_SPREAD = 0.01


class _Draw(torch.autograd.Function):
    """mean + std * noise, and KL(q || p) where the prior's mean is given."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: torch.Tensor,
        log_std: torch.Tensor,
        noise: torch.Tensor,
        prior_mean: Optional[torch.Tensor],
        prior_std: float,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(mean, log_std, noise, prior_mean)
        ctx.prior_std = prior_std
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        std = log_std.exp()
        value = torch.addcmul(mean, std, noise)
        if prior_mean is None:
            return value, mean.new_zeros(())
        squares = torch.sub(mean, prior_mean).square_().addcmul_(std, std)
        terms = squares.mul_(prior_std**-2 / 2).sub_(log_std)
        # the constant with each weight's, so that it cancels exactly
        kl = terms.add_(math.log(prior_std) - 0.5).sum(dtype=torch.float64)
        return value, kl.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, grad_kl: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        mean, log_std, noise, prior_mean = ctx.saved_tensors
        clamped = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        std, inside = clamped.exp(), log_std == clamped
        grad_mean, grad_log_std = grad, torch.mul(grad, noise)
        if prior_mean is None:
            grad_log_std.mul_(std)
        else:
            weight = grad_kl * ctx.prior_std**-2
            grad_mean = torch.sub(mean, prior_mean).mul_(weight).add_(grad)
            grad_log_std.add_(std * weight).mul_(std).sub_(grad_kl)
        return grad_mean, grad_log_std.mul_(inside), None, None, None


def _fast_draw(
    mean: torch.Tensor,
    log_std: torch.Tensor,
    noise: torch.Tensor,
    prior_mean: Optional[torch.Tensor] = None,
    prior_std: float = 1.0,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Fast twin of `draw_weights`: autograd would go through the weights some thirty times."""
    value, kl = _Draw.apply(mean, log_std, noise, prior_mean, prior_std)
    return value, kl


@has_kernel(_fast_draw)
def draw_weights(
    mean: torch.Tensor,
    log_std: torch.Tensor,
    noise: torch.Tensor,
    prior_mean: Optional[torch.Tensor] = None,
    prior_std: float = 1.0,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Sample of Gaussian weights, mean + std * noise (Eq. 22), and their KL(q || p) (Eq. 23).

    All tensors have one shape. The log standard deviations are clamped here; `prior_std` is one for
    all weights. The KL is summed, in nats, (), and 0 without a `prior_mean`.
    """
    value = mean + clamp_log_std(log_std).exp() * noise
    if prior_mean is None:
        return value, mean.new_zeros(())
    return value, kl_weights(mean, log_std, prior_mean, prior_std)


@dataclasses.dataclass
class Bayes(WeightKind):
    """Weights have a Gaussian posterior, each by itself, and a Gaussian prior (Eq. 19-24).

    The standard deviations are kept as logarithms: `{block}_log_std` (parameter),
    `{block}_prior_mean` and `{block}_start_std` (buffers). With `prior_variance: learn` or
    `learn_rows` the prior variance at each step is the one with the least KL (for a parameter,
    or for each of its rows): there is nothing to tune.
    """

    name = "bayes"
    inherits = ("init_std", "init_std_unit", "prior_variance")
    own_suffixes = (LOG_STD, PRIOR_MEAN, START_STD)
    may_lack = (START_STD,)
    colour = "tab:blue"

    init_std: Any = option("Standard deviation of the weights' posterior at the start.", None)
    init_std_unit: Any = option(
        "Unit of init_std: `absolute`, `weights` (their standard deviation) or `prior`.",
        None,
    )
    prior_variance: Any = option(
        "Variance of the prior; `learn` or `learn_rows`: the one that makes the KL least.",
        None,
    )

    def __post_init__(self) -> None:
        """Check the options that are given."""
        unit, variance = self.init_std_unit, self.prior_variance
        self.learns_prior, self.prior_std = variance in LEARNED, 0.0
        if unit not in (None, *INIT_STD_UNITS):
            raise InputError(f"init_std_unit: valid are {', '.join(INIT_STD_UNITS)}, got {unit!r}")
        for name, words in (("init_std", ()), ("prior_variance", LEARNED)):
            value: Any = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value not in (None, *words) and not (number and 0 < value < math.inf):
                also = f" or one of {', '.join(words)}" if words else ""
                raise InputError(f"{name}: expected a number above 0{also}, got {value!r}")
        if variance is not None and not self.learns_prior:
            self.prior_std = math.sqrt(variance)

    def log_std(self, block: Block) -> torch.Tensor:
        """Logarithms of the standard deviations within their range, shaped as the block's rows."""
        return clamp_log_std(block.tensor(LOG_STD))

    def add(self, block: Block, prior_mean: torch.Tensor) -> None:
        """Register log standard deviations, the prior's mean and the start."""
        owner = block.owner
        owner.register_parameter(block.key + LOG_STD, nn.Parameter(torch.empty_like(prior_mean)))
        owner.register_buffer(block.key + PRIOR_MEAN, prior_mean)
        owner.register_buffer(block.key + START_STD, prior_mean.new_zeros(()))

    def start(self, block: Block) -> None:
        """Set all standard deviations to `init_std`, in its unit."""
        std = self.init_std
        if self.init_std_unit != INIT_STD_UNITS[0]:
            std *= self._unit(block)
        if not LEAST_START <= std <= MOST_START:
            raise start_error(std, block.location)
        block.tensor(START_STD).fill_(std)
        nn.init.constant_(block.tensor(LOG_STD), math.log(std))

    def _unit(self, block: Block) -> float:
        """Unit of `init_std`, as `init_std_unit` names it."""
        unit, mean = self.init_std_unit, block.mean.detach()
        if unit == "prior" and not self.learns_prior:
            return self.prior_std
        if unit == "weights":
            spread = float(mean.std(correction=0))
        else:
            away = mean - block.tensor(PRIOR_MEAN)
            spread = float(away.square().mean().sqrt())
        check_spread(spread, block.location)
        return max(spread, MIN_SPREAD)

    def start_if_untrained(self, block: Block) -> None:
        """Set standard deviations that training has not changed to their start."""
        log_std = block.tensor(LOG_STD).detach()
        if torch.allclose(log_std, block.tensor(START_STD).log(), rtol=0, atol=1e-6):
            self.start(block)

    def set_prior_mean(self, block: Block, mean: torch.Tensor) -> None:
        """Copy the prior's mean."""
        block.tensor(PRIOR_MEAN).copy_(mean)

    def parameters(self, block: Block) -> List[torch.Tensor]:
        """The log standard deviations."""
        return [block.tensor(LOG_STD)]

    def std(self, block: Block) -> torch.Tensor:
        """The standard deviation of each weight, shaped as the block's rows."""
        return self.log_std(block).detach().exp()

    def start_std(self, block: Block) -> float:
        """The standard deviation that all weights of the block started from."""
        return float(block.tensor(START_STD))

    def kl(self, block: Block) -> torch.Tensor:
        """KL(posterior || prior) summed over the block (Eq. 23), in nats, ()."""
        log_std, prior_mean = block.tensor(LOG_STD), block.tensor(PRIOR_MEAN)
        if self.learns_prior:
            by_row = self.prior_variance == "learn_rows"
            return kl_learned_prior(block.mean, log_std, prior_mean, by_row=by_row)
        return kl_weights(block.mean, log_std, prior_mean, self.prior_std)

    def sample_with_kl(
        self, block: Block, mean: torch.Tensor, generator: torch.Generator, *, wants_kl: bool
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """Mean + standard deviation * noise (Eq. 22), and their KL where the prior is fixed."""
        log_std = block.tensor(LOG_STD)
        noise = torch.empty_like(mean, requires_grad=False).normal_(generator=generator)
        if not wants_kl or self.learns_prior or mean.dtype not in (torch.float32, torch.float64):
            return draw_weights(mean, log_std, noise)[0], None
        return draw_weights(mean, log_std, noise, block.tensor(PRIOR_MEAN), self.prior_std)

"""Random weights: the base of their kinds, and Gaussians, their spread learnt or an optimizer's."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.kinds import Kind, Place, Weights, is_posterior_key, register_kind
from espnet_bayeslm.bayes.objective import (
    LEAST_START,
    LOG_STD_MIN,
    MOST_START,
    check_spread,
    clamp_log_std,
    draw_weights,
    kl_learned_prior,
    kl_weights,
    start_error,
)
from espnet_bayeslm.bayes.posterior import Block, Posterior
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


class WeightKind(Kind):
    """Weights are random: the parameter is their mean, and the kind adds its own tensors.

    A kind from elsewhere says how to `sample` rows, their `kl`, and, where it has
    tensors, `add`, `start` and `parameters`. A block is some rows of a parameter.
    """

    needs = "weights"
    # False: `UncertainLM` uses the means in training, where an optimizer samples
    samples_in_training: ClassVar[bool] = True

    def apply(self, place: Place) -> None:
        """Make all weights of a place random."""
        place.lm.posterior.add(place.weights_of(place.position), self, place.location)

    def has_posterior_of(self, other: WeightKind) -> bool:
        """True if another kind has an equal posterior, start and prior."""
        mine, its = (
            (type(k).sample, type(k).sample_with_kl, {n: getattr(k, n) for n in k.inherits})
            for k in (self, other)
        )
        return mine == its

    def add(self, block: Block, prior_mean: torch.Tensor) -> None:
        """Give the block's owner the posterior's tensors, named from `block.key`."""

    def start(self, block: Block) -> None:
        """Set the posterior's tensors to their start, for the present means."""

    def start_if_untrained(self, block: Block) -> None:
        """Set tensors that training has not changed to their start, for the present means."""

    def set_prior_mean(self, block: Block, mean: torch.Tensor) -> None:
        """Take the prior's mean, shaped as the block's rows."""

    def parameters(self, block: Block) -> List[torch.Tensor]:
        """The parameters that the posterior has besides its mean."""
        return []

    def tensors(self, block: Block) -> List[torch.Tensor]:
        """The tensors that samples depend on besides the mean."""
        return self.parameters(block)

    def std(self, block: Block) -> torch.Tensor:
        """The standard deviation of each weight, shaped as the block's rows."""
        raise NotImplementedError

    def start_std(self, block: Block) -> float:
        """The standard deviation at the start; nan where it is not known."""
        return math.nan

    def kl(self, block: Block) -> torch.Tensor:
        """KL(posterior || prior) summed over the block, in nats, ()."""
        raise NotImplementedError

    def sample(self, block: Block, mean: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Sample of the block's rows, whose means are given, with gradients."""
        raise NotImplementedError

    def sample_with_kl(
        self, block: Block, mean: torch.Tensor, generator: torch.Generator, *, wants_kl: bool
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """Sample of the block's rows, and their KL if it is wanted and costs little here."""
        return self.sample(block, mean, generator), None


@register_kind
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
    retired: ClassVar = {"noise": ("shared", "flipout", "local", "sequence", "token")}
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


@dataclasses.dataclass
class OptimizerPosterior(WeightKind):
    """Standard deviations are buffers `{parameter}_log_std`: an optimizer learns them.

    In training the optimizer samples them by itself.
    """

    name = "optimizer"
    samples_in_training = False

    def add(self, block: Block, prior_mean: torch.Tensor) -> None:
        """Register log standard deviations that count as certain."""
        start = torch.full_like(prior_mean, LOG_STD_MIN)
        block.owner.register_buffer(block.key + LOG_STD, start)

    def tensors(self, block: Block) -> List[torch.Tensor]:
        """The log standard deviations, which are no parameters."""
        return [block.tensor(LOG_STD)]

    def std(self, block: Block) -> torch.Tensor:
        """The standard deviation of each weight, shaped as the parameter."""
        return clamp_log_std(block.tensor(LOG_STD)).exp()

    def kl(self, block: Block) -> torch.Tensor:
        """Zero: the optimizer has the prior in its own update."""
        return block.mean.new_zeros(())

    def sample(self, block: Block, mean: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Mean + standard deviation * noise."""
        noise = torch.empty_like(mean, requires_grad=False).normal_(generator=generator)
        return torch.addcmul(mean, self.std(block), noise)


def add_whole_posterior(posterior: Posterior, pattern: str = "*") -> None:
    """Make all parameters that are trained random, each with a buffer `{parameter}_log_std`.

    Args:
        posterior: Posterior of the model, before a checkpoint with the buffers is loaded.
        pattern: The names of the parameters that are trained match it.

    Raises:
        InputError: A parameter has a posterior already; nothing was added.
    """
    for name, _ in posterior.module.named_parameters():
        if is_posterior_key(name):
            raise InputError(
                f"{name}: the model has a posterior already",
                remedy="Leave out `uncertainty`, or learn only the posterior that it names.",
            )
    if posterior.blocks():
        raise InputError("the model has a posterior over all of its weights already")
    posterior.add([Weights(pattern)], OptimizerPosterior(), "")


def whole_blocks(posterior: Optional[Posterior]) -> List[Block]:
    """Blocks whose standard deviations an optimizer learns, each parameter once."""
    if posterior is None:
        return []
    return [b for b in posterior.blocks() if isinstance(b.kind, OptimizerPosterior)]


@torch.no_grad()
def perturb(parameter: torch.Tensor, std: torch.Tensor, generator: torch.Generator) -> None:
    """Add noise of these standard deviations to a parameter, in place."""
    parameter.addcmul_(std, torch.empty_like(parameter).normal_(generator=generator))

"""A posterior over all weights of a model that an optimizer learns."""

from __future__ import annotations

import dataclasses
from typing import List, Optional

import torch

from espnet_bayeslm.bayes.base_kinds import Block, WeightKind, is_posterior_key
from espnet_bayeslm.bayes.objective import LOG_STD_MIN, clamp_log_std
from espnet_bayeslm.bayes.posterior import Posterior
from espnet_bayeslm.bayes.weights import Weights
from espnet_bayeslm.kinds.bayes import LOG_STD
from espnet_bayeslm.utils.errors import InputError


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

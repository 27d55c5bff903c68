"""Mean-field Gaussian posterior over parameters of an ordinary torch layer."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.divergence import kl_diagonal_gaussians

# exp(-20) = 2e-9 counts as certain; exp(4) is beyond any useful weight.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 4.0
POSTERIOR_SUFFIXES = ("_log_std", "_prior_mean")
NOISE_STEP = "noise_step"


def is_posterior_key(key: str) -> bool:
    """Return whether a state_dict key is one that only an uncertain LM has."""
    return key.endswith(POSTERIOR_SUFFIXES) or key.split(".")[-1] == NOISE_STEP


def drop_posterior(module: nn.Module, state: Dict[str, Any], prefix: str, *_: Any) -> List[str]:
    """Take what a module without that posterior has no place for out of a checkpoint.

    Returns:
        The keys.
    """
    own = {prefix + key for key in module.state_dict()}
    extra = [k for k in state if k.startswith(prefix) and k not in own and is_posterior_key(k)]
    for key in extra:
        del state[key]
    return extra


@dataclasses.dataclass(frozen=True)
class RandomBlock:
    """Rows of a parameter that are random.

    Attributes:
        location: The location they belong to, as in the configuration.
        parameter: The parameter's name, which holds the posterior mean.
        key: What its posterior's names begin with (`KEY_log_std`, `KEY_prior_mean`).
        rows: First row and the one after the last (None: all).
        init_std: Standard deviation of the posterior at the start.
        prior_std: Standard deviation of the prior.
    """

    location: str
    parameter: str
    key: str
    rows: Optional[Tuple[int, int]]
    init_std: float
    prior_std: float

    def select(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the block's rows of a tensor shaped as the parameter."""
        return tensor if self.rows is None else tensor[slice(*self.rows)]


class UncertainModule(nn.Module):
    """A torch layer, some of whose parameters have a Gaussian posterior.

    Mixed in before the layer's own class. The parameter itself is the posterior's mean,
    under its usual name, so a point-estimate checkpoint loads; the rest is extra. Without
    `make_random` the layer is the plain one.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.random_blocks: List[RandomBlock] = []
        self.noise: Dict[str, torch.Tensor] = {}
        self.register_load_state_dict_pre_hook(drop_posterior)

    def make_random(
        self,
        parameter: str,
        *,
        location: str,
        init_std: float,
        prior_variance: float,
        rows: Optional[Tuple[int, int]] = None,
        label: str = "",
    ) -> None:
        """Give a parameter, or some of its rows, a posterior and a zero-mean prior.

        Args:
            parameter: Its name in this layer.
            location: The location it belongs to.
            init_std: The posterior's standard deviation at the start.
            prior_variance: The prior's variance.
            rows: First row and the one after the last; default all.
            label: Told apart by this where a parameter has several blocks.
        """
        key = f"{parameter}_{label}" if label else parameter
        block = RandomBlock(location, parameter, key, rows, init_std, math.sqrt(prior_variance))
        mean = block.select(getattr(self, parameter).detach())
        self.register_parameter(f"{key}_log_std", nn.Parameter(torch.empty_like(mean)))
        self.register_buffer(f"{key}_prior_mean", torch.zeros_like(mean))
        self.random_blocks.append(block)
        self.reset_posterior()

    def reset_posterior(self) -> None:
        """Set every standard deviation to its start."""
        for block in self.random_blocks:
            nn.init.constant_(getattr(self, f"{block.key}_log_std"), math.log(block.init_std))

    def block_size(self, block: RandomBlock) -> int:
        """Return the block's number of random weights."""
        return getattr(self, f"{block.key}_log_std").numel()

    def log_std(self, block: RandomBlock) -> torch.Tensor:
        """Return the block's clamped log standard deviations, shaped as its rows."""
        return getattr(self, f"{block.key}_log_std").clamp(LOG_STD_MIN, LOG_STD_MAX)

    def draw(self, generator: torch.Generator) -> None:
        """Draw the noise that the next forward passes share."""
        self.noise = {
            block.key: torch.empty_like(
                getattr(self, f"{block.key}_log_std"), requires_grad=False
            ).normal_(generator=generator)
            for block in self.random_blocks
        }

    def use_mean(self) -> None:
        """Make the next forward passes use the posterior mean."""
        self.noise = {}

    def value(self, parameter: str) -> torch.Tensor:
        """Return the parameter as the forward pass sees it: its mean, or the draw."""
        pieces = self.pieces(parameter)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def pieces(self, parameter: str) -> List[torch.Tensor]:
        """Return `value(parameter)` cut into consecutive runs of rows."""
        mean = getattr(self, parameter)
        blocks = {
            (block.rows or (0, len(mean))): block
            for block in self.random_blocks
            if block.parameter == parameter and block.key in self.noise
        }
        if not blocks:
            return [mean]
        edges = sorted({0, len(mean), *(edge for rows in blocks for edge in rows)})
        # One split: each slice of its own would cost a gradient of the whole matrix.
        runs = mean.split([last - first for first, last in pairwise(edges)])
        return [
            self._sample(blocks[rows], run) if rows in blocks else run
            for rows, run in zip(pairwise(edges), runs, strict=True)
        ]

    def _sample(self, block: RandomBlock, mean: torch.Tensor) -> torch.Tensor:
        """Return mean + std * noise for the block's rows (Eq. 22, Xue et al. 2022)."""
        return torch.addcmul(mean, self.log_std(block).exp(), self.noise[block.key])

    def kl(self) -> torch.Tensor:
        """Return KL(posterior || prior) summed over the layer's random weights, in nats, ()."""
        terms = [self.block_kl(block) for block in self.random_blocks]
        return torch.stack(terms).sum()

    def block_kl(self, block: RandomBlock) -> torch.Tensor:
        """Return the block's KL(posterior || prior) in nats, ()."""
        return kl_diagonal_gaussians(
            block.select(getattr(self, block.parameter)),
            self.log_std(block),
            getattr(self, f"{block.key}_prior_mean"),
            block.prior_std,
        )

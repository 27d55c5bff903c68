"""Mean-field Gaussian posterior over parameters of an ordinary torch layer."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.gaussian import clamp_log_std, draw_weights, kl_weights
from espnet_bayeslm.utils.errors import InputError

START_SUFFIX = "_start_std"
POSTERIOR_SUFFIXES = ("_log_std", "_prior_mean", START_SUFFIX)
# What the names of parameters and layers begin with that a point-estimate LM does not have:
# a Gaussian process' own parameters, and latent outputs.
UNCERTAIN_PREFIXES = ("gp_", "latent")
NOISE_STEP = "noise_step"
# The least spread of weights that an initial standard deviation is relative to: biases may be 0.
MIN_SPREAD = 0.01


def is_posterior_key(key: str) -> bool:
    """Return whether a state_dict key is one that only an uncertain LM has."""
    words = key.split(".")
    return (
        key.endswith(POSTERIOR_SUFFIXES)
        or words[-1] == NOISE_STEP
        or any(word.startswith(UNCERTAIN_PREFIXES) for word in words)
    )


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
        init_std: Standard deviation of the posterior at the start, in its unit.
        init_std_unit: `absolute`; `weights`: the standard deviation of these weights; `prior`:
            the prior's standard deviation.
        prior_std: Standard deviation of the prior.
    """

    location: str
    parameter: str
    key: str
    rows: Optional[Tuple[int, int]]
    init_std: float
    init_std_unit: str
    prior_std: float

    def select(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the block's rows of a tensor shaped as the parameter."""
        return tensor if self.rows is None else tensor[slice(*self.rows)]

    def overlaps(self, parameter: str, rows: Optional[Tuple[int, int]]) -> bool:
        """Return whether some of these rows of the parameter are in the block."""
        if parameter != self.parameter or self.rows is None or rows is None:
            return parameter == self.parameter
        return self.rows[0] < rows[1] and rows[0] < self.rows[1]

    def start_std(self, mean: torch.Tensor) -> float:
        """Return the standard deviation at the start for these means."""
        if self.init_std_unit == "weights":
            return self.init_std * max(float(mean.std(correction=0)), MIN_SPREAD)
        return self.init_std * (self.prior_std if self.init_std_unit == "prior" else 1.0)


@dataclasses.dataclass(frozen=True)
class WeightPosterior:
    """Some weights of an LM and their Gaussian posterior.

    Attributes:
        location: The location they belong to.
        name: The state_dict's name of the parameter that holds the mean.
        mean: Shares its storage with the parameter: writing to it changes the LM.
        std: Standard deviations, shaped as the mean.
        start_std: The standard deviation at the start of training; nan where it is not known.
    """

    location: str
    name: str
    mean: torch.Tensor
    std: torch.Tensor
    start_std: float


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
        init_std_unit: str = "absolute",
        rows: Optional[Tuple[int, int]] = None,
        label: str = "",
    ) -> None:
        """Give a parameter, or some of its rows, a posterior and a prior.

        The prior's mean is zero; where a point-estimate LM has no such parameter, it is the
        value the parameter starts with.

        Args:
            parameter: Its name in this layer.
            location: The location it belongs to.
            init_std: The posterior's standard deviation at the start.
            prior_variance: The prior's variance.
            init_std_unit: What `init_std` is relative to, see `RandomBlock`.
            rows: First row and the one after the last; default all.
            label: Told apart by this where a parameter has several blocks.

        Raises:
            InputError: Another location has made some of these weights random.
        """
        for other in self.random_blocks:
            if other.overlaps(parameter, rows):
                raise InputError(f"{location} and {other.location} make the same weights random")
        key = f"{parameter}_{label}" if label else parameter
        block = RandomBlock(
            location, parameter, key, rows, init_std, init_std_unit, math.sqrt(prior_variance)
        )
        mean = block.select(getattr(self, parameter).detach())
        prior_mean = mean.clone() if is_posterior_key(parameter) else torch.zeros_like(mean)
        self.register_parameter(f"{key}_log_std", nn.Parameter(torch.empty_like(mean)))
        self.register_buffer(f"{key}_prior_mean", prior_mean)
        self.register_buffer(f"{key}{START_SUFFIX}", mean.new_zeros(()))
        self.random_blocks.append(block)
        self._start(block)

    def _start(self, block: RandomBlock) -> None:
        """Set the block's standard deviations to their start, for its present means."""
        std = block.start_std(block.select(getattr(self, block.parameter).detach()))
        getattr(self, f"{block.key}{START_SUFFIX}").fill_(std)
        nn.init.constant_(getattr(self, f"{block.key}_log_std"), math.log(std))

    def reset_posterior(self) -> None:
        """Set every standard deviation to its start."""
        for block in self.random_blocks:
            self._start(block)

    def start_posterior(self) -> None:
        """Set the standard deviations that training has not changed to their start.

        After a checkpoint was loaded: the start may be relative to the weights' spread.
        """
        for block in self.random_blocks:
            log_std = getattr(self, f"{block.key}_log_std").detach()
            if torch.allclose(log_std, self.start_std(block).log(), rtol=0, atol=1e-6):
                self._start(block)

    def start_std(self, block: RandomBlock) -> torch.Tensor:
        """Return the standard deviation that the block had at the start, ()."""
        return getattr(self, f"{block.key}{START_SUFFIX}")

    def posterior(self, block: RandomBlock, name: str) -> WeightPosterior:
        """Return the block's posterior; `name` is the state_dict's of its parameter."""
        return WeightPosterior(
            block.location,
            name,
            block.select(getattr(self, block.parameter).detach()),
            self.log_std(block).detach().exp(),
            float(self.start_std(block)),
        )

    def block_size(self, block: RandomBlock) -> int:
        """Return the block's number of random weights."""
        return getattr(self, f"{block.key}_log_std").numel()

    def log_std(self, block: RandomBlock) -> torch.Tensor:
        """Return the block's clamped log standard deviations, shaped as its rows."""
        return clamp_log_std(getattr(self, f"{block.key}_log_std"))

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
        log_std = getattr(self, f"{block.key}_log_std")
        return draw_weights(mean, log_std, self.noise[block.key])

    def kl(self) -> torch.Tensor:
        """Return KL(posterior || prior) summed over the layer's random weights, in nats, ()."""
        terms = [self.block_kl(block) for block in self.random_blocks]
        return torch.stack(terms).sum()

    def block_kl(self, block: RandomBlock) -> torch.Tensor:
        """Return the block's KL(posterior || prior) in nats, ()."""
        return kl_weights(
            block.select(getattr(self, block.parameter)),
            getattr(self, f"{block.key}_log_std"),
            getattr(self, f"{block.key}_prior_mean"),
            block.prior_std,
        )

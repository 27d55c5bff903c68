"""Random blocks of a layer's parameters, and the names of what belongs to a posterior."""

from __future__ import annotations

import dataclasses

import torch

from espnet_bayeslm.bayes.paths import PREFIX, Rows, select_rows

START_SUFFIX = "_start_std"
POSTERIOR_SUFFIXES = ("_log_std", "_prior_mean", START_SUFFIX)
# What the names of parameters and layers begin with that a point-estimate LM does not have:
# a Gaussian process' own parameters, latent outputs, and the paths of a search.
UNCERTAIN_PREFIXES = ("gp_", "latent", PREFIX)
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
    rows: Rows
    init_std: float
    init_std_unit: str
    prior_std: float

    def select(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the block's rows of a tensor shaped as the parameter."""
        return select_rows(tensor, self.rows)

    def has_options_of(self, other: RandomBlock) -> bool:
        """Return whether the posterior's start and the prior are those of another block."""
        mine, theirs = (
            (block.init_std, block.init_std_unit, block.prior_std) for block in (self, other)
        )
        return mine == theirs

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

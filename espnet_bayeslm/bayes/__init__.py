"""Pure torch: which weights are random, their posterior, prior, divergence and objective."""

from espnet_bayeslm.bayes.block import RandomBlock, WeightPosterior
from espnet_bayeslm.bayes.divergence import kl_gaussians
from espnet_bayeslm.bayes.locations import (
    Kind,
    Location,
    Position,
    check_posterior_options,
    parse_uncertainty,
)
from espnet_bayeslm.bayes.noise import noise_generator, process_rank
from espnet_bayeslm.bayes.objective import kl_per_token
from espnet_bayeslm.bayes.paths import Choice
from espnet_bayeslm.bayes.posterior import UncertainModule, kl_of_draws

__all__ = [
    "Choice",
    "Kind",
    "Location",
    "Position",
    "RandomBlock",
    "UncertainModule",
    "WeightPosterior",
    "check_posterior_options",
    "kl_gaussians",
    "kl_of_draws",
    "kl_per_token",
    "noise_generator",
    "parse_uncertainty",
    "process_rank",
]

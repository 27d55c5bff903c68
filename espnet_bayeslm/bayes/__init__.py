"""Pure torch: which weights are random, their posterior, prior, divergence and objective."""

from espnet_bayeslm.bayes.divergence import kl_diagonal_gaussians
from espnet_bayeslm.bayes.locations import Kind, Location, Position, parse_uncertainty
from espnet_bayeslm.bayes.noise import noise_generator
from espnet_bayeslm.bayes.objective import kl_per_token
from espnet_bayeslm.bayes.posterior import RandomBlock, UncertainModule

__all__ = [
    "Kind",
    "Location",
    "Position",
    "RandomBlock",
    "UncertainModule",
    "kl_diagonal_gaussians",
    "kl_per_token",
    "noise_generator",
    "parse_uncertainty",
]

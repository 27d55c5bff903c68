"""Random weights of any torch module: posterior, KL, noise; the kinds themselves are in `kinds`."""

from espnet_bayeslm.bayes.base_kinds import (
    Block,
    Kind,
    Location,
    Place,
    Position,
    WeightKind,
    parse_uncertainty,
    register_kind,
)
from espnet_bayeslm.bayes.noise import noise_generator, process_rank
from espnet_bayeslm.bayes.objective import kl_gaussians, kl_per_token
from espnet_bayeslm.bayes.posterior import Posterior, Sample
from espnet_bayeslm.bayes.weights import Weights
from espnet_bayeslm.utils.imports import lazy_names

__getattr__ = lazy_names(__name__, {"espnet_bayeslm.kinds.bayes": ["Bayes"]})

__all__ = [
    "Bayes",
    "Block",
    "Kind",
    "Location",
    "Place",
    "Position",
    "Posterior",
    "Sample",
    "WeightKind",
    "Weights",
    "kl_gaussians",
    "kl_per_token",
    "noise_generator",
    "parse_uncertainty",
    "process_rank",
    "register_kind",
]

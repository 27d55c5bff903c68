"""Architecture search: super-networks, which choice of kinds they prefer, its configuration.

It wraps layers from outside, and knows no LM: it stands below `lm`, which makes its kind known.
"""

from espnet_bayeslm.supernet import lstm as lstm
from espnet_bayeslm.supernet.kind import Choice, Search, choices, fixed_choices
from espnet_bayeslm.supernet.ranking import (
    ArchitectureWeights,
    RankedArchitecture,
    num_architectures,
    rank,
    shares,
)
from espnet_bayeslm.supernet.space import (
    architecture_yaml,
    check_searched,
    derived_config,
    is_search,
    uncertainty_of,
)

__all__ = [
    "ArchitectureWeights",
    "Choice",
    "RankedArchitecture",
    "Search",
    "architecture_yaml",
    "check_searched",
    "choices",
    "derived_config",
    "fixed_choices",
    "is_search",
    "num_architectures",
    "rank",
    "shares",
    "uncertainty_of",
]

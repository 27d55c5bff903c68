"""Architecture search: which choice of kinds a super-network prefers, and its configuration."""

from espnet_bayeslm.search.ranking import (
    Architecture,
    ArchitectureWeights,
    RankedArchitecture,
    architectures,
    num_architectures,
    rank,
    shares,
)
from espnet_bayeslm.search.space import (
    architecture_yaml,
    check_searched,
    derived_config,
    is_search,
    uncertainty_of,
)

__all__ = [
    "Architecture",
    "ArchitectureWeights",
    "RankedArchitecture",
    "architecture_yaml",
    "architectures",
    "check_searched",
    "derived_config",
    "is_search",
    "num_architectures",
    "rank",
    "shares",
    "uncertainty_of",
]

"""Architecture search: super-networks, which choice of kinds they prefer, its configuration.

It wraps layers from outside, and knows no LM: it stands below `lm`, which makes its kind known.
"""

from espnet_bayeslm.supernet import lstm as lstm
from espnet_bayeslm.supernet.kind import choices
from espnet_bayeslm.supernet.ranking import RankedArchitecture, rank, shares
from espnet_bayeslm.supernet.space import check_searched, derived_config

__all__ = [
    "RankedArchitecture",
    "check_searched",
    "choices",
    "derived_config",
    "rank",
    "shares",
]

"""Architecture search: super-networks, the ranking of their architectures, configurations.

The kind `search` wraps layers from outside and knows no LM. `lm` imports it to make it known.
"""

from espnet_bayeslm.kinds.search import lstm as lstm
from espnet_bayeslm.kinds.search.kind import choices
from espnet_bayeslm.kinds.search.ranking import RankedArchitecture, rank, shares
from espnet_bayeslm.kinds.search.space import check_searched, derived_config

__all__ = [
    "RankedArchitecture",
    "check_searched",
    "choices",
    "derived_config",
    "rank",
    "shares",
]

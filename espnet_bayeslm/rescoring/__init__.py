"""Lists and lattices rescored: tuned scales, the new best, confidences; `scoring` has ln p."""

from typing import TYPE_CHECKING

from espnet_bayeslm.utils.imports import lazy_names

if TYPE_CHECKING:
    from espnet_bayeslm.nbest import Hypothesis as Hypothesis
    from espnet_bayeslm.nbest import NBest as NBest
    from espnet_bayeslm.nbest import read_nbest as read_nbest
    from espnet_bayeslm.nbest import write_nbest as write_nbest
    from espnet_bayeslm.scoring import score_hypotheses as score_hypotheses
    from espnet_bayeslm.scoring import token_log_probs as token_log_probs
    from espnet_bayeslm.scoring.interpolation import em_weights as em_weights

__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.nbest": ["Hypothesis", "NBest", "read_nbest", "write_nbest"],
        "espnet_bayeslm.scoring.interpolation": ["em_weights"],
        "espnet_bayeslm.scoring": ["score_hypotheses", "token_log_probs"],
    },
)

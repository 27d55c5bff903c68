"""Lists and lattices rescored: tuned scales, the new best, confidences; `scoring` has ln p."""

from espnet_bayeslm.utils.imports import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.nbest": ["Hypothesis", "NBest", "read_nbest", "write_nbest"],
        "espnet_bayeslm.scoring.interpolation": ["em_weights"],
        "espnet_bayeslm.scoring": ["score_hypotheses", "token_log_probs"],
    },
)

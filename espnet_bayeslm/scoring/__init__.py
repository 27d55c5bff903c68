"""ln p of tokens and words under an LM: by themselves, over prefix trees, and in context."""

from espnet_bayeslm.utils.lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.scoring.neural": ["NeuralScorer"],
        "espnet_bayeslm.scoring.sequences": ["score_hypotheses", "token_log_probs"],
    },
)

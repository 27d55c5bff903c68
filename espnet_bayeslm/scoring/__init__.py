"""ln p of tokens and words under an LM: by themselves, over prefix trees, and in context."""

from espnet_bayeslm.scoring.neural import NeuralScorer
from espnet_bayeslm.scoring.sequences import score_hypotheses, token_log_probs

__all__ = ["NeuralScorer", "score_hypotheses", "token_log_probs"]

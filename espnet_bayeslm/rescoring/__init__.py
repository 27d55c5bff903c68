"""N-best lists, their LM scores, mixtures of LMs, and the new best hypotheses."""

from espnet_bayeslm.rescoring.em import em_weights
from espnet_bayeslm.rescoring.formats import read_nbest, write_nbest
from espnet_bayeslm.rescoring.mixture import MixtureScorer
from espnet_bayeslm.rescoring.nbest import Hypothesis, NBest
from espnet_bayeslm.rescoring.neural import NeuralScorer
from espnet_bayeslm.rescoring.scores import score_hypotheses, token_log_probs

__all__ = [
    "Hypothesis",
    "MixtureScorer",
    "NBest",
    "NeuralScorer",
    "em_weights",
    "read_nbest",
    "score_hypotheses",
    "token_log_probs",
    "write_nbest",
]

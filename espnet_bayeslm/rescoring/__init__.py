"""Rescoring of N-best lists: mixtures of LMs, their weights, and the new best hypotheses."""

from espnet_bayeslm.nbest import Hypothesis, NBest, read_nbest, write_nbest
from espnet_bayeslm.rescoring.em import em_weights
from espnet_bayeslm.rescoring.interpolation import MixtureScorer
from espnet_bayeslm.scoring import NeuralScorer, score_hypotheses, token_log_probs

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

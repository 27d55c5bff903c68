"""Word errors, tests of their differences, perplexity, and the word scores that LMs share."""

from espnet_bayeslm.evaluation.bootstrap import WerDifference, bootstrap_wer_difference
from espnet_bayeslm.evaluation.mapsswe import Mapsswe, mapsswe

__all__ = ["Mapsswe", "WerDifference", "bootstrap_wer_difference", "mapsswe"]

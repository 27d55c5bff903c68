"""Word errors counted, significance tests, normalised text, checks of texts; no perplexity."""

from espnet_bayeslm.evaluation.comparison import Mapsswe, WerDifference, mapsswe
from espnet_bayeslm.evaluation.normalization import Normalization

__all__ = ["Mapsswe", "Normalization", "WerDifference", "mapsswe"]

"""Word errors, significance tests, normalised text, text checks; perplexity is in `scoring`."""

from espnet_bayeslm.evaluation.comparison import Mapsswe, WerDifference, mapsswe
from espnet_bayeslm.evaluation.normalization import Normalization

__all__ = ["Mapsswe", "Normalization", "WerDifference", "mapsswe"]

"""Word errors, significance tests, normalised text, text checks; perplexity is in `scoring`."""

from espnet_bayeslm.evaluation.comparison import Mapsswe, WerDifference, mapsswe

__all__ = ["Mapsswe", "WerDifference", "mapsswe"]

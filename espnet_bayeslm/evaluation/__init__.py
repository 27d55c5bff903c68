"""Word errors of systems and tests between them, normalised text, perplexity of components."""

from espnet_bayeslm.evaluation.comparison import Mapsswe, WerDifference, mapsswe

__all__ = ["Mapsswe", "WerDifference", "mapsswe"]

"""LMs and bias lists inside `generate` of transformers."""

from espnet_bayeslm.utils.imports import lazy_names

__getattr__ = lazy_names(__name__, {"espnet_bayeslm.decoding.generate": ["WordFusion"]})

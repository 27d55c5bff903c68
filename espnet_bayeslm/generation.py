"""LMs and bias lists inside `generate` of transformers."""

from typing import TYPE_CHECKING

from espnet_bayeslm.utils.imports import lazy_names

if TYPE_CHECKING:
    from espnet_bayeslm.decoding.generate import WordFusion as WordFusion

__getattr__ = lazy_names(__name__, {"espnet_bayeslm.decoding.generate": ["WordFusion"]})

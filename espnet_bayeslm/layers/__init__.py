"""Torch layers that can have random weights."""

from espnet_bayeslm.layers.embedding import UncertainEmbedding
from espnet_bayeslm.layers.gp import GPActivation
from espnet_bayeslm.layers.latent import LatentOutput
from espnet_bayeslm.layers.linear import UncertainLinear
from espnet_bayeslm.layers.lstm import GATES, NATIVE, UncertainLSTM
from espnet_bayeslm.layers.transformer import TransformerBlock, sinusoids

__all__ = [
    "GATES",
    "NATIVE",
    "GPActivation",
    "LatentOutput",
    "TransformerBlock",
    "UncertainEmbedding",
    "UncertainLSTM",
    "UncertainLinear",
    "sinusoids",
]

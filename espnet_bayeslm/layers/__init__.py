"""The equations of the LMs in plain torch."""

from espnet_bayeslm.layers.gp import GPActivation
from espnet_bayeslm.layers.latent import LatentOutput
from espnet_bayeslm.layers.linear import Linear
from espnet_bayeslm.layers.lstm import GATES, LSTM, NATIVE
from espnet_bayeslm.layers.transformer import TransformerBlock, sinusoids

__all__ = [
    "GATES",
    "LSTM",
    "NATIVE",
    "GPActivation",
    "LatentOutput",
    "Linear",
    "TransformerBlock",
    "sinusoids",
]

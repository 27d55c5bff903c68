"""`bayes_espnet` with each of ESPnet's own LMs as its backbone."""

from espnet_bayeslm.lm.backbones.seq_rnn import SeqRNN
from espnet_bayeslm.lm.backbones.transformer import Transformer
from espnet_bayeslm.lm.backbones.transformer_opt import TransformerOPT
from espnet_bayeslm.lm.espnet import BACKBONES

__all__ = ["BACKBONES", "SeqRNN", "Transformer", "TransformerOPT"]

"""ESPnet's own LMs as backbones of `bayes_espnet`."""

from __future__ import annotations

from typing import Dict, Optional

from espnet_bayeslm.lm.backbones.base import Backbone
from espnet_bayeslm.lm.backbones.seq_rnn import SeqRNN
from espnet_bayeslm.lm.backbones.transformer import Transformer
from espnet_bayeslm.lm.backbones.transformer_opt import TransformerOPT
from espnet_bayeslm.utils.errors import InputError

BACKBONES: Dict[str, Backbone] = {
    backbone.name: backbone for backbone in (SeqRNN(), Transformer(), TransformerOPT())
}


def get_backbone(name: Optional[str]) -> Backbone:
    """Backbone of this name in ESPnet.

    Raises:
        InputError: There is none.
    """
    if name not in BACKBONES:
        raise InputError(
            f"backbone {name!r}: valid are {', '.join(BACKBONES)}",
            remedy="" if name else "`bayeslm train --from EXP` takes it from a trained LM.",
        )
    return BACKBONES[name]


__all__ = ["BACKBONES", "Backbone", "get_backbone"]

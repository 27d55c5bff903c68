"""The LMs that may be components of a mixture, by their names in ESPnet's registry."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Type

from espnet_bayeslm.lm.backbones import BACKBONES
from espnet_bayeslm.lm.espnet import BayesESPnetLM
from espnet_bayeslm.lm.lstm import BayesLSTMLM
from espnet_bayeslm.lm.transformer import BayesTransformerLM
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.utils.errors import InputError

LM_CLASSES: Dict[str, Type[UncertainLM]] = {
    "bayes_lstm": BayesLSTMLM,
    "bayes_transformer": BayesTransformerLM,
    "bayes_espnet": BayesESPnetLM,
}


def build_lm(name: str, *, vocab_size: int, lm_conf: Mapping[str, Any]) -> UncertainLM:
    """New LM of a registered class; ESPnet's own become `bayes_espnet`'s backbone.

    They have the same parameters there, and states that cost one step a token.
    """
    if name in BACKBONES:
        return BayesESPnetLM(vocab_size, backbone=name, backbone_conf=dict(lm_conf))
    if name not in LM_CLASSES:
        valid = ", ".join([*LM_CLASSES, *BACKBONES])
        raise InputError(f"lm {name!r} cannot be built; valid are {valid}")
    return LM_CLASSES[name](vocab_size=vocab_size, **lm_conf)

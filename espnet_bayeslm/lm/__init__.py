"""ESPnet LMs with uncertain locations, and the rows and trees of tokens that they read at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Type

from espnet_bayeslm.utils.imports import lazy_names
from espnet_bayeslm.utils.registry import Registry

if TYPE_CHECKING:
    from espnet2.lm.abs_model import AbsLM

    from espnet_bayeslm.lm.espnet import BayesESPnetLM
    from espnet_bayeslm.lm.lstm import BayesLSTMLM
    from espnet_bayeslm.lm.mixture import MixtureLM
    from espnet_bayeslm.lm.transformer import BayesTransformerLM
    from espnet_bayeslm.lm.uncertain import UncertainLM

__all__ = [
    "LMS",
    "BayesESPnetLM",
    "BayesLSTMLM",
    "BayesTransformerLM",
    "MixtureLM",
    "UncertainLM",
]

__getattr__ = lazy_names(
    __name__,
    {
        "espnet_bayeslm.lm.espnet": ["BayesESPnetLM"],
        "espnet_bayeslm.lm.lstm": ["BayesLSTMLM"],
        "espnet_bayeslm.lm.mixture": ["MixtureLM"],
        "espnet_bayeslm.lm.transformer": ["BayesTransformerLM"],
        "espnet_bayeslm.lm.uncertain": ["UncertainLM"],
    },
)

MIXTURE = "mixture"
"""Name that a configuration gives our LM of several LMs, which is not trained."""
FUSION = "fusion"
"""Name of an LM that brings words of LMs with other tokens into a search."""
UNTRAINED = (MIXTURE, FUSION)
"""Names of LMs that `bayeslm export` writes, and no training."""


def _fault_of_lm(name: str, lm: Any) -> str:
    """Why an object of another package is no LM that a configuration can name; "" if it is."""
    from espnet_bayeslm.lm.uncertain import UncertainLM

    if not (isinstance(lm, type) and issubclass(lm, UncertainLM)):
        return f"it is {lm!r}, and a class derived from `UncertainLM` was expected"
    return "" if name == name.lower() else "ESPnet wants a name in lower case"


LMS: Registry[Type[AbsLM]] = Registry(
    "LM",
    group="espnet_bayeslm.lms",
    built_in={
        "bayes_lstm": "espnet_bayeslm.lm.lstm:BayesLSTMLM",
        "bayes_transformer": "espnet_bayeslm.lm.transformer:BayesTransformerLM",
        "bayes_espnet": "espnet_bayeslm.lm.espnet:BayesESPnetLM",
        "pretrained": "espnet_bayeslm.pretrained.adapted:AdaptedLM",
        MIXTURE: "espnet_bayeslm.lm.mixture:MixtureLM",
        FUSION: "espnet_bayeslm.decoding.fusion_lm:FusionLM",
    },
    fault_of=_fault_of_lm,
)
"""LMs by the name that a configuration gives them (`lm:`)."""

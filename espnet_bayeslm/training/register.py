"""Adds our classes to the registries of ESPnet's LM task."""

from __future__ import annotations

from espnet2.tasks.abs_task import optim_classes
from espnet2.tasks.lm import lm_choices, model_choices

from espnet_bayeslm.lm import BayesESPnetLM, BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.training.ivon import IVON
from espnet_bayeslm.training.model import BayesLanguageModel

LMS = {
    "bayes_lstm": BayesLSTMLM,
    "bayes_transformer": BayesTransformerLM,
    "bayes_espnet": BayesESPnetLM,
}
MIXTURE = "mixture"
MODEL = "bayes_lm"
OPTIM = "ivon"


def register() -> None:
    """Add our LMs, the model `bayes_lm` and the optimizer `ivon` to ESPnet (idempotent)."""
    lm_choices.classes.update({**LMS, MIXTURE: MixtureLM})
    model_choices.classes[MODEL] = BayesLanguageModel
    optim_classes[OPTIM] = IVON

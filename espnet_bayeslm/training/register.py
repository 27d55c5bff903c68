"""Adds our classes to the registries of ESPnet's LM task."""

from __future__ import annotations

from espnet2.tasks.lm import lm_choices, model_choices

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

LMS = {"bayes_lstm": BayesLSTMLM, "bayes_transformer": BayesTransformerLM}
MODEL = "bayes_lm"


def register() -> None:
    """Add the LMs and the model `bayes_lm` to ESPnet's LM task (idempotent)."""
    lm_choices.classes.update(LMS)
    model_choices.classes[MODEL] = BayesLanguageModel

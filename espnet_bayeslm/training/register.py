"""Our classes in the registries of ESPnet's LM task."""

from __future__ import annotations

from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.loading.build import MIXTURE, MODEL, OPTIM, TRAINED_CLASSES
from espnet_bayeslm.training.ivon import IVON
from espnet_bayeslm.training.model import BayesLanguageModel


def register() -> None:
    """Add our LMs, the model `bayes_lm` and the optimizer `ivon` to ESPnet (idempotent)."""
    from espnet_bayeslm.loading.espnet_tasks import lm_choices, model_choices, optim_classes

    lm_choices.classes.update({**TRAINED_CLASSES, MIXTURE: MixtureLM})
    model_choices.classes[MODEL] = BayesLanguageModel
    optim_classes[OPTIM] = IVON

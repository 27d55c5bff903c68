"""ESPnet's LM task and its registries; importing them takes several seconds."""

from __future__ import annotations

from espnet_bayeslm.utils.quiet import quiet_imports

with quiet_imports():
    from espnet2.lm.transformer_lm import TransformerLM
    from espnet2.tasks.abs_task import optim_classes, scheduler_classes
    from espnet2.tasks.lm import LMTask, lm_choices, model_choices

__all__ = [
    "LMTask",
    "TransformerLM",
    "lm_choices",
    "model_choices",
    "optim_classes",
    "scheduler_classes",
]

"""ESPnet's trainer, with perplexity reported and checkpoints written whole."""

from __future__ import annotations

import math
from typing import Any

import torch
from espnet2.train.reporter import SubReporter, aggregate, to_reported_value
from espnet2.train.trainer import Trainer

from espnet_bayeslm.training.checkpoint import check_fits, load_state, whole_checkpoints


def report_perplexity(reporter: SubReporter) -> None:
    """Make an epoch's `ppl` exp of its NLL per token.

    The reporter would average the batches' perplexities, which is not the text's.
    """
    if "nll" in reporter.stats:
        nll = float(aggregate(reporter.stats["nll"]))
        exact = to_reported_value(math.exp(min(nll, 700.0)), 1.0)
        reporter.stats["ppl"] = [exact] * len(reporter.stats["nll"])


class BayesLMTrainer(Trainer):
    """`Trainer`, unchanged but for what its name says."""

    @classmethod
    def run(cls, *args: Any, **kwargs: Any) -> None:
        """Train; a kill while a checkpoint is written leaves the one before."""
        with whole_checkpoints():
            super().run(*args, **kwargs)

    @classmethod
    def train_one_epoch(cls, *args: Any, **kwargs: Any) -> bool:
        """Train an epoch and report its perplexity (at the sampled weights)."""
        all_steps_are_invalid = super().train_one_epoch(*args, **kwargs)
        report_perplexity(kwargs["reporter"])
        return all_steps_are_invalid

    @classmethod
    def validate_one_epoch(cls, *args: Any, **kwargs: Any) -> None:
        """Validate and report the perplexity (at the posterior mean)."""
        super().validate_one_epoch(*args, **kwargs)
        report_perplexity(kwargs["reporter"])

    @staticmethod
    def resume(checkpoint: Any, model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        """Resume, from a checkpoint of this model that holds tensors and plain values only."""
        check_fits(load_state(checkpoint), model, path=checkpoint)
        Trainer.resume(checkpoint, model, *args, **kwargs)

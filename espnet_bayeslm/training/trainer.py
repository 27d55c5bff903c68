"""ESPnet's trainer with three changes, each in a module of its own.

- `warmup`: epochs of a point estimate come before the Bayesian phase.
- `whole_files`: a kill or a full disk leaves checkpoints whole, and a run that goes on mends the
  experiment's folder.
- `epoch_lines`: the perplexity of an epoch is its text's, and people get a line for each epoch.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import torch
from espnet2.train.reporter import Reporter
from espnet2.train.trainer import Trainer, TrainerOptions

from espnet_bayeslm.bayes import process_rank
from espnet_bayeslm.kinds.architectures import write_history
from espnet_bayeslm.loading.checkpoint import REPORTER_TYPES
from espnet_bayeslm.training.epoch_lines import (
    EpochLines,
    report_perplexity,
    report_sigma,
    valid_perplexities,
)
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.warmup import begin_bayesian_phase, fresh_states, is_over, warming
from espnet_bayeslm.training.whole_files import heal, whole_checkpoints
from espnet_bayeslm.utils.cli import PROGRESS


class BayesLMTrainer(Trainer):
    """ESPnet's `Trainer` with a warm-up, whole checkpoints, and perplexities of epochs."""

    # ESPnet gives `resume` none; its trainers have no instances.
    options: ClassVar[TrainerOptions]
    lines: ClassVar[EpochLines] = EpochLines(1)
    # The first epoch of the phase: the second phase of a warm-up counts from its own.
    first_epoch: ClassVar[int] = 1

    @classmethod
    def run(cls, model: Any, **kwargs: Any) -> None:
        """Train; a kill or a full disk while a checkpoint is written leaves the one before."""
        options, warmup = kwargs.pop("trainer_options"), getattr(model, "warmup_epochs", 0)
        options = dataclasses.replace(options, max_epoch=options.max_epoch + warmup)
        folder, cls.first_epoch = Path(options.output_dir), 1
        cls.lines = EpochLines(options.max_epoch)
        if isinstance(model, BayesLanguageModel):
            # Now, since --init_param may have brought another LM's prior.
            model.apply_prior()
            model.lm.posterior.start_untrained()

        def run_phase(**changed: Any) -> None:
            cls.options = dataclasses.replace(options, **changed)
            super(BayesLMTrainer, cls).run(model=model, trainer_options=cls.options, **kwargs)

        with whole_checkpoints(folder):
            if warmup and not (options.resume and is_over(folder / "checkpoint.pth")):
                fresh = fresh_states(kwargs)
                with warming(model):
                    run_phase(max_epoch=warmup)
                begin_bayesian_phase(folder, model, fresh)
                run_phase(resume=True)
            else:
                run_phase()

    @classmethod
    def train_one_epoch(cls, *args: Any, **kwargs: Any) -> bool:
        """Train an epoch and report its perplexity (at the sampled weights)."""
        reporter = kwargs["reporter"]
        model = getattr(kwargs["model"], "module", kwargs["model"])
        if isinstance(model, BayesLanguageModel):
            model.start_epoch(reporter.epoch - cls.first_epoch + 1)
        all_steps_are_invalid = super().train_one_epoch(*args, **kwargs)
        for optimizer in kwargs["optimizers"]:
            # of the last batches, too few for a step of accum_grad: a checkpoint has no gradients
            optimizer.zero_grad()
        cls.lines.train = report_perplexity(reporter)
        if isinstance(model, BayesLanguageModel):
            records = model.architecture_log.take()
            if records and process_rank() == 0:
                write_history(Path(kwargs["options"].output_dir), reporter.epoch, records)
        return all_steps_are_invalid

    @classmethod
    def validate_one_epoch(cls, *args: Any, **kwargs: Any) -> None:
        """Validate and report the perplexity (at the posterior mean)."""
        super().validate_one_epoch(*args, **kwargs)
        reporter = kwargs["reporter"]
        values = report_perplexity(reporter)
        if process_rank() == 0:
            sigma = report_sigma(kwargs["model"], epoch=reporter.epoch)
            PROGRESS.info(cls.lines.add(reporter.epoch, values, sigma))

    @classmethod
    def resume(
        cls, checkpoint: Any, model: torch.nn.Module, reporter: Reporter, **kwargs: Any
    ) -> None:
        """Resume, and heal what a kill left undone; after an early stop no epoch follows."""
        # ESPnet 202412 leaves it to torch which classes a checkpoint may hold
        with torch.serialization.safe_globals(REPORTER_TYPES):
            Trainer.resume(checkpoint, model, reporter, **kwargs)
        options = cls.options
        cls.first_epoch = min(reporter.stats, default=reporter.get_epoch() + 1)
        if cls.first_epoch > 1 and isinstance(model, BayesLanguageModel):
            # the point-estimate phase may have ended early
            options.max_epoch += cls.first_epoch - 1 - model.warmup_epochs
            cls.lines.max_epoch = options.max_epoch
        cls.lines.best = min(valid_perplexities(reporter.stats).values(), default=math.inf)
        stops = options.early_stopping_criterion
        if (
            options.patience is not None
            and reporter.has(*stops[:2])
            and reporter.check_early_stopping(options.patience, *stops)
        ):
            options.max_epoch = min(options.max_epoch, reporter.get_epoch())
        if process_rank() == 0:
            heal(Path(checkpoint).parent, model, reporter, options)

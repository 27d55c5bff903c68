"""ESPnet's trainer, with perplexity reported and checkpoints written whole."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import logging
import math
import os
import time
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import torch
from espnet2.train import trainer
from espnet2.train.reporter import Reporter, SubReporter, aggregate, to_reported_value
from espnet2.train.trainer import Trainer, TrainerOptions

from espnet_bayeslm.bayes import process_rank
from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.kinds.architectures import write_history
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.loading.checkpoint import REPORTER_TYPES
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.saving import valid_perplexities, whole_checkpoints
from espnet_bayeslm.training.warmup import is_over, switch, warming
from espnet_bayeslm.utils.cli import PROGRESS


def report_perplexity(reporter: SubReporter) -> Dict[str, float]:
    """Make an epoch's `ppl` exp of its NLL per token, or of its loss; return its statistics.

    The reporter would average the batches' perplexities, which is not the text's.
    """
    values = {
        k: float(aggregate(reporter.stats[k])) for k in ("nll", "loss", "kl") if k in reporter.stats
    }
    nll = values.get("nll", values.get("loss"))
    means = values if nll is None else {**values, "ppl": math.exp(min(nll, 700.0))}
    if "nll" in values:
        exact = to_reported_value(means["ppl"], 1.0)
        reporter.stats["ppl"] = [exact] * len(reporter.stats["nll"])
    return means


def typical_sigma(lm: UncertainLM) -> Dict[str, Tuple[float, float]]:
    """Standard deviation of each location at the start and now.

    They are geometric means over its weights; for a latent output over the tokens and units of
    the last forward pass that computed its KL.
    """
    logs: Dict[str, List[Tuple[float, float, int]]] = {}
    for piece in lm.posterior.blocks():
        if not math.isnan(piece.start_std):
            terms = (math.log(piece.start_std), float(piece.std.log().mean()), piece.std.numel())
            logs.setdefault(piece.location, []).append(terms)
    typical = {}
    for location, pieces in logs.items():
        total = sum(count for _, _, count in pieces)
        start, now = (sum(p[k] * p[2] for p in pieces) / total for k in (0, 1))
        typical[location] = (math.exp(start), math.exp(now))
    for location, latent in lm.latents():
        if latent.typical_std is not None:
            typical[location] = (latent.init_std, latent.typical_std)
    return typical


def report_sigma(model: torch.nn.Module, *, epoch: int) -> List[float]:
    """Log each location's standard deviation at the start and now; return the ratios."""
    lm = getattr(getattr(model, "module", model), "lm", None)
    found = typical_sigma(lm) if isinstance(lm, UncertainLM) else {}
    for location, (start, now) in found.items():
        logging.info(
            f"Epoch {epoch}: {location}: sigma {start:.4g} -> {now:.4g} ({now / start:.2f})"
        )
    return [now / start for start, now in found.values()]


class EpochLines:
    """A line for each epoch: what was learnt, and how long the rest takes."""

    def __init__(self, max_epoch: int):
        self.max_epoch, self.begin = max_epoch, time.monotonic()
        self.train: Dict[str, float] = {}
        self.num_epochs, self.best = 0, math.inf

    def add(self, epoch: int, valid: Mapping[str, float], sigma: Sequence[float]) -> str:
        """Line of an epoch of which `train` holds the training's statistics."""
        self.num_epochs += 1
        ppl = valid.get("ppl", math.nan)
        best = " (best so far)" if ppl < self.best else ""
        self.best = min(self.best, ppl)
        parts = [f"valid ppl {perplexity_text(ppl)}{best}"]
        if "ppl" in self.train:
            parts.insert(0, f"train ppl {perplexity_text(self.train['ppl'])}")
        if sigma and "kl" in self.train:
            parts.append(f"KL {self.train['kl']:.4f} nats/token")
        if sigma:
            ends = dict.fromkeys((f"{min(sigma):.2f}", f"{max(sigma):.2f}"))
            parts.append(f"sigma x {'-'.join(ends)} of its start")
        left = (time.monotonic() - self.begin) / self.num_epochs * (self.max_epoch - epoch)
        parts.append(f"{datetime.timedelta(seconds=round(left))} left at most")
        return f"epoch {epoch}/{self.max_epoch}: {', '.join(parts)}"


def link(path: Path, target: str) -> None:
    """Make `path` a symbolic link to a file beside it, if it is not one and the file is there."""
    is_right = path.is_symlink() and os.readlink(path) == target
    if not is_right and path.with_name(target).exists():
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        logging.info(f"{path} leads to {target} again")


def heal(folder: Path, model: torch.nn.Module, reporter: Reporter, options: TrainerOptions) -> None:
    """Complete an experiment's folder after a kill, with the model and the reporter as resumed.

    ESPnet writes `checkpoint.pth`, then the epoch's model, and then the links to the latest and
    the best: a kill in between leaves undone what belongs to an epoch that will not be trained
    again.
    """
    name = f"{reporter.get_epoch()}epoch.pth"
    if not (folder / name).exists():
        torch.save(model.state_dict(), folder / name)
        logging.info(f"Wrote {folder / name} again")
    link(folder / "latest.pth", name)
    for phase, key, mode in options.best_model_criterion:
        if reporter.has(phase, key):
            best = reporter.get_best_epoch(phase, key, mode)
            link(folder / f"{phase}.{key}.best.pth", f"{best}epoch.pth")


def stay_stopped(reporter: Reporter, options: TrainerOptions) -> None:
    """Train no further epoch where an early stop had ended the training."""
    phase, key, _ = options.early_stopping_criterion
    if (
        options.patience is not None
        and reporter.has(phase, key)
        and reporter.check_early_stopping(options.patience, *options.early_stopping_criterion)
    ):
        options.max_epoch = min(options.max_epoch, reporter.get_epoch())


@contextlib.contextmanager
def averages_apart() -> Iterator[None]:
    """Have ESPnet average the best epochs for each criterion and number apart, within the block.

    It adds up in the first epoch's own tensors, which the next average would start from.
    """
    average = trainer.average_nbest_models

    def average_apart(
        output_dir: Path,
        reporter: Reporter,
        best_model_criterion: Sequence[Sequence[str]],
        nbest: Collection[int],
        **options: Any,
    ) -> None:
        for phase, key, mode in best_model_criterion:
            if reporter.has(phase, key):
                num_epochs = len(reporter.sort_epochs(phase, key, mode))
                # ascending: `*.ave.pth` leads to the last
                for number in [n for n in sorted(nbest) if n <= num_epochs] or [1]:
                    average(output_dir, reporter, [(phase, key, mode)], [number], **options)

    trainer.average_nbest_models = average_apart
    try:
        yield
    finally:
        trainer.average_nbest_models = average


class BayesLMTrainer(Trainer):
    """`Trainer`, unchanged but for what its name says."""

    # ESPnet gives `resume` none; its trainers have no instances.
    options: ClassVar[Optional[TrainerOptions]] = None
    lines: ClassVar[Optional[EpochLines]] = None
    # The first epoch of the phase: the second phase of a warm-up counts from its own.
    first_epoch: ClassVar[int] = 1

    @classmethod
    def run(cls, model: torch.nn.Module, **kwargs: Any) -> None:
        """Train; a kill or a full disk while a checkpoint is written leaves the one before."""
        whole, cls.first_epoch = kwargs["trainer_options"], 1
        if isinstance(model, BayesLanguageModel):
            whole = dataclasses.replace(whole, max_epoch=whole.max_epoch + model.warmup_epochs)
        cls.options = kwargs["trainer_options"] = whole
        cls.lines = EpochLines(cls.options.max_epoch)
        folder = Path(cls.options.output_dir)
        if isinstance(model, BayesLanguageModel):
            # Now, since --init_param may have brought another LM's prior.
            model.apply_prior()
            model.lm.posterior.start_untrained()
        with whole_checkpoints(), averages_apart():
            if process_rank() == 0:
                for leftover in folder.glob(".*.pth.*"):
                    leftover.unlink()
            if (
                isinstance(model, BayesLanguageModel)
                and model.warmup_epochs
                # last: it reads the whole checkpoint
                and not (whole.resume and is_over(folder / "checkpoint.pth"))
            ):
                fresh = {
                    name: [part and copy.deepcopy(part.state_dict()) for part in kwargs[name]]
                    for name in ("optimizers", "schedulers")
                }
                with warming(model):
                    cls.options = dataclasses.replace(whole, max_epoch=model.warmup_epochs)
                    super().run(model=model, **{**kwargs, "trainer_options": cls.options})
                switch(folder, model, fresh)
                cls.options = kwargs["trainer_options"] = dataclasses.replace(whole, resume=True)
            super().run(model=model, **kwargs)

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
        values = report_perplexity(reporter)
        if cls.lines is not None:
            cls.lines.train = values
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
            if cls.lines is not None:
                PROGRESS.info(cls.lines.add(reporter.epoch, values, sigma))

    @classmethod
    def resume(
        cls, checkpoint: Any, model: torch.nn.Module, reporter: Reporter, **kwargs: Any
    ) -> None:
        """Resume, and heal what a kill left undone."""
        # ESPnet 202412 leaves it to torch which classes a checkpoint may hold
        with torch.serialization.safe_globals(REPORTER_TYPES):
            Trainer.resume(checkpoint, model, reporter, **kwargs)
        assert cls.options is not None
        cls.first_epoch = min(reporter.stats, default=reporter.get_epoch() + 1)
        if cls.lines is not None:
            cls.lines.best = min(valid_perplexities(reporter.stats).values(), default=math.inf)
        stay_stopped(reporter, cls.options)
        if process_rank() == 0:
            heal(Path(checkpoint).parent, model, reporter, cls.options)

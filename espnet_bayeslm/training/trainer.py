"""ESPnet's trainer, with perplexity reported, checkpoints written whole, and a warm-up."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import errno
import functools
import math
import os
import time
from pathlib import Path
from typing import Any, Callable, ClassVar, Dict, Iterator, List, Mapping, Sequence

import torch
from espnet2.train import trainer
from espnet2.train.reporter import Reporter, SubReporter, aggregate, to_reported_value
from espnet2.train.trainer import Trainer, TrainerOptions

from espnet_bayeslm.bayes import process_rank
from espnet_bayeslm.kinds.architectures import write_history
from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.loading.checkpoint import REPORTER_TYPES, load_state, read_checkpoint
from espnet_bayeslm.loading.experiment import find_files
from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.training.model import START_PRIOR, BayesLanguageModel
from espnet_bayeslm.training.optimizer import POSTERIOR, parameters_of
from espnet_bayeslm.utils.cli import PROGRESS
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_write
from espnet_bayeslm.utils.log import LOG

# Why a folder cannot be written to: no room, or something that stands in the way.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ENTRY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
# Best weights of a warm-up.
POINT_ESTIMATE = "warmup.pth"


# Reports


def report_perplexity(reporter: SubReporter) -> Dict[str, float]:
    """Make an epoch's `ppl` exp of its NLL per token, or of its loss; return its statistics.

    The reporter would average the batches' perplexities, which is not the text's.
    """
    values = {
        k: float(aggregate(reporter.stats[k])) for k in ("nll", "loss", "kl") if k in reporter.stats
    }
    nll = values.get("nll", values.get("loss"))
    if nll is not None:
        values["ppl"] = math.exp(min(nll, 700.0))
    if "nll" in values:
        reporter.stats["ppl"] = [to_reported_value(values["ppl"], 1.0)] * len(reporter.stats["nll"])
    return values


def report_sigma(model: torch.nn.Module, *, epoch: int) -> List[float]:
    """Log the standard deviation of each location at the start and now; return the ratios.

    They are geometric means over its weights; for a latent output over the tokens and units of
    the last forward pass that computed its KL.
    """
    lm = getattr(getattr(model, "module", model), "lm", None)
    if not isinstance(lm, UncertainLM):
        return []
    sums: Dict[str, List[float]] = {}
    for block in lm.posterior.blocks():
        if not math.isnan(block.start_std):
            count = block.std.numel()
            found = (count * math.log(block.start_std), float(block.std.log().sum()), count)
            known = sums.get(block.location, [0.0, 0.0, 0.0])
            sums[block.location] = [a + b for a, b in zip(known, found, strict=True)]
    typical = {k: (math.exp(a / n), math.exp(b / n)) for k, (a, b, n) in sums.items()}
    for location, latent in lm.latents():
        if latent.typical_std is not None:
            typical[location] = (latent.init_std, latent.typical_std)
    for location, (start, now) in typical.items():
        LOG.info(f"Epoch {epoch}: {location}: sigma {start:.4g} -> {now:.4g} ({now / start:.2f})")
    return [now / start for start, now in typical.values()]


def valid_perplexities(stats: Mapping[int, Mapping[str, Any]]) -> Dict[int, float]:
    """{epoch: perplexity of the validation text}, from an ESPnet reporter's statistics."""
    return {
        # of ESPnet's own LMs there is the loss, ln of it
        epoch: float(valid["ppl"]) if "ppl" in valid else math.exp(min(float(valid["loss"]), 700))
        for epoch, valid in ((epoch, phases.get("valid")) for epoch, phases in stats.items())
        if valid
    }


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
        parts = [f"train ppl {perplexity_text(self.train['ppl'])}"] if "ppl" in self.train else []
        parts.append(f"valid ppl {perplexity_text(ppl)}{best}")
        if sigma and "kl" in self.train:
            parts.append(f"KL {self.train['kl']:.4f} nats/token")
        if sigma:
            ends = dict.fromkeys((f"{min(sigma):.2f}", f"{max(sigma):.2f}"))
            parts.append(f"sigma x {'-'.join(ends)} of its start")
        left = (time.monotonic() - self.begin) / self.num_epochs * (self.max_epoch - epoch)
        parts.append(f"{datetime.timedelta(seconds=round(left))} left at most")
        return f"epoch {epoch}/{self.max_epoch}: {', '.join(parts)}"


# Checkpoints


def check_run(checkpoint: Any, *, path: Any) -> None:
    """Raise an InputError where what `read_checkpoint` returned is not a stopped training."""
    types = {"model": Mapping, "optimizers": list, "schedulers": list, "reporter": Mapping}
    parts = checkpoint if isinstance(checkpoint, Mapping) else {}
    wrong = [name for name, kind in types.items() if not isinstance(parts.get(name), kind)]
    if not wrong:
        epoch, stats = (parts["reporter"].get(name) for name in ("epoch", "stats"))
        are_states = all(isinstance(state, Mapping) for state in parts["optimizers"])
        if not (isinstance(epoch, int) and isinstance(stats, Mapping) and are_states):
            wrong = ["reporter", "optimizers"]
    if wrong:
        raise InputError(
            f"cannot be resumed: {', '.join(wrong)} of the training not in it",
            path=path,
            remedy="Restore the file, or delete it and train again.",
        )


@contextlib.contextmanager
def writing_errors(folder: Path) -> Iterator[None]:
    """Turn what keeps a run from writing to its folder into bad input: one line, and a remedy."""
    try:
        yield
    except OSError as error:
        # what a stream's own flush could not write has no name, and a link has a second one
        path = Path(error.filename2 or error.filename or folder)
        ours, whole = path.absolute(), folder.absolute()
        concerns = ours.is_relative_to(whole) or whole.is_relative_to(ours)
        if error.errno not in NO_ROOM + NO_ENTRY or not concerns:
            raise
        remedy = "make room" if error.errno in NO_ROOM else "mend that"
        remains = "No epoch was saved"
        with contextlib.suppress(InputError, KeyError):
            epoch = read_checkpoint(folder / "checkpoint.pth")["reporter"]["epoch"]
            remains = f"The checkpoint of epoch {epoch} is kept"
        raise InputError(
            f"cannot be written ({error.strerror})",
            path=path,
            remedy=f"{remains}: {remedy}, and run the same command again with --resume true.",
        ) from error


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable) -> Iterator[None]:
    """Put a function, which gets the old one first, in place of another within the block."""
    before = getattr(owner, name)
    setattr(owner, name, functools.partial(function, before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def save_whole(save: Callable, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """`torch.save` to a path that appears whole or not at all.

    ESPnet's trainer writes its checkpoints in place: a run killed while it writes would leave
    one that cannot be resumed.
    """
    if not isinstance(f, (str, os.PathLike)):
        return save(obj, f, *args, **kwargs)
    try:
        with atomic_write(f, "wb") as stream:
            save(obj, stream, *args, **kwargs)
    except (OSError, RuntimeError) as error:
        # torch's writer hides what stopped it behind a RuntimeError about positions
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror, os.fspath(f)) from error


def average_apart(
    average: Callable,
    output_dir: Path,
    reporter: Reporter,
    best_model_criterion: Sequence[Sequence[str]],
    nbest: Sequence[int],
    **options: Any,
) -> None:
    """ESPnet's average of the best epochs, for each criterion and number apart.

    It adds up in the first epoch's own tensors, which the next average would start from.
    """
    for phase, key, mode in best_model_criterion:
        if reporter.has(phase, key):
            num_epochs = len(reporter.sort_epochs(phase, key, mode))
            # ascending: `*.ave.pth` leads to the last
            for number in [n for n in sorted(nbest) if n <= num_epochs] or [1]:
                average(output_dir, reporter, [(phase, key, mode)], [number], **options)


def link(path: Path, target: str) -> None:
    """Make `path` a symbolic link to a file beside it, if it is not one and the file is there."""
    is_right = path.is_symlink() and os.readlink(path) == target
    if not is_right and path.with_name(target).exists():
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        LOG.info(f"{path} leads to {target} again")


def heal(folder: Path, model: torch.nn.Module, reporter: Reporter, options: TrainerOptions) -> None:
    """Complete an experiment's folder after a kill, with the model and the reporter as resumed.

    ESPnet writes `checkpoint.pth`, then the epoch's model, and then the links to the latest and
    the best: a kill in between leaves undone what belongs to an epoch that will not be trained
    again.
    """
    name = f"{reporter.get_epoch()}epoch.pth"
    if not (folder / name).exists():
        torch.save(model.state_dict(), folder / name)
        LOG.info(f"Wrote {folder / name} again")
    link(folder / "latest.pth", name)
    for phase, key, mode in options.best_model_criterion:
        if reporter.has(phase, key):
            best = reporter.get_best_epoch(phase, key, mode)
            link(folder / f"{phase}.{key}.best.pth", f"{best}epoch.pth")


# Warm-up


def is_over(checkpoint: Path) -> bool:
    """True if the warm-up of a stopped training had ended: its epochs have no statistics then."""
    if not checkpoint.exists():
        return False
    reporter = read_checkpoint(checkpoint)["reporter"]
    return reporter["epoch"] > 0 and 1 not in reporter["stats"]


@contextlib.contextmanager
def warming(model: BayesLanguageModel) -> Iterator[None]:
    """Train the means alone within the block: no draws, no KL, nothing else of posteriors."""
    stds = [p for p in parameters_of(model, POSTERIOR) if p.requires_grad]
    for parameter in stds:
        parameter.requires_grad_(False)
    model.warming, model.lm.draws_in_training = True, False
    try:
        yield
    finally:
        model.warming, model.lm.draws_in_training = False, True
        for parameter in stds:
            parameter.requires_grad_(True)


def switch(folder: Path, model: BayesLanguageModel, fresh: Dict[str, List[Any]]) -> None:
    """Make a training's checkpoint one that goes on with the uncertain phase.

    It starts as `bayeslm train --from` would: from the best weights of the warm-up, with
    optimizers and schedulers as at the start of a training, and no earlier epoch to compare with.
    """
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    if process_rank() == 0:
        path = folder / "checkpoint.pth"
        checkpoint, best = read_checkpoint(path), load_state(find_files(folder)[1])
        model.load_state_dict(best)
        if model.prior == START_PRIOR:
            model.set_prior_means(best)
            model.apply_prior()
        # deviations may start in units of the prior's, which is learnt around its means
        model.lm.posterior.start_untrained()
        torch.save(best, folder / POINT_ESTIMATE)
        reporter = {**checkpoint["reporter"], "stats": {}}
        checkpoint.update(model=model.state_dict(), reporter=reporter, **fresh)
        torch.save(checkpoint, path)
        for leading in (*folder.glob("*.best.pth"), *folder.glob("*.ave*.pth")):
            leading.unlink()
        PROGRESS.info(f"epoch {reporter['epoch']}: the point-estimate phase ends")
        LOG.info(f"The best point-estimate weights are in {folder / POINT_ESTIMATE}")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


class BayesLMTrainer(Trainer):
    """`Trainer`, unchanged but for what its name says."""

    # ESPnet gives `resume` none; its trainers have no instances.
    options: ClassVar[TrainerOptions]
    lines: ClassVar[EpochLines] = EpochLines(1)
    # The first epoch of the phase: the second phase of a warm-up counts from its own.
    first_epoch: ClassVar[int] = 1

    @classmethod
    def run(cls, model: Any, **kwargs: Any) -> None:
        """Train; a kill or a full disk while a checkpoint is written leaves the one before."""
        whole, warmup = kwargs["trainer_options"], getattr(model, "warmup_epochs", 0)
        whole = dataclasses.replace(whole, max_epoch=whole.max_epoch + warmup)
        folder, cls.first_epoch = Path(whole.output_dir), 1
        if isinstance(model, BayesLanguageModel):
            # Now, since --init_param may have brought another LM's prior.
            model.apply_prior()
            model.lm.posterior.start_untrained()
        cls.options, cls.lines = whole, EpochLines(whole.max_epoch)
        averages = replaced(trainer, "average_nbest_models", average_apart)
        with replaced(torch, "save", save_whole), averages:
            if process_rank() == 0:
                for leftover in folder.glob(".*.pth.*"):
                    leftover.unlink()
            if warmup and not (whole.resume and is_over(folder / "checkpoint.pth")):
                fresh = {
                    name: [part and copy.deepcopy(part.state_dict()) for part in kwargs[name]]
                    for name in ("optimizers", "schedulers")
                }
                with warming(model):
                    cls.options = dataclasses.replace(whole, max_epoch=warmup)
                    super().run(model=model, **{**kwargs, "trainer_options": cls.options})
                switch(folder, model, fresh)
                cls.options = dataclasses.replace(whole, resume=True)
            super().run(model=model, **{**kwargs, "trainer_options": cls.options})

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

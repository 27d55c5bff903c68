"""A point-estimate phase before the uncertain one, in one training (`warmup_epochs`)."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import torch

from espnet_bayeslm.bayes import process_rank
from espnet_bayeslm.bayes.kinds import is_posterior_key
from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.loading.checkpoint import load_state, read_checkpoint
from espnet_bayeslm.loading.experiment import find_files
from espnet_bayeslm.training.model import START_PRIOR, BayesLanguageModel, check_least
from espnet_bayeslm.training.optimizer import POSTERIOR, parameters_of
from espnet_bayeslm.utils.cli import PROGRESS
from espnet_bayeslm.utils.errors import InputError

POINT_ESTIMATE = "warmup.pth"


def check_warmup(lm: UncertainLM, warmup_epochs: int, prior: Optional[str]) -> None:
    """Check `warmup_epochs` and `prior: start`, and warn where there should be a warm-up."""
    if prior == START_PRIOR and not warmup_epochs:
        raise InputError(
            f"prior: {START_PRIOR} without a point-estimate phase",
            remedy="Give model_conf: warmup_epochs, or a trained LM by --from.",
        )
    if not warmup_epochs:
        return
    check_least(0, warmup_epochs=warmup_epochs)
    known = set(map(id, parameters_of(lm, POSTERIOR)))
    others = [n for n, p in lm.named_parameters() if is_posterior_key(n) and id(p) not in known]
    if others or not lm.posterior.blocks():
        raise InputError(
            "warmup_epochs is for LMs whose uncertain locations are all of kind bayes, and this one"
            f" has {others[0] if others else 'none'}",
            remedy="Train a point-estimate LM, then this one by `bayeslm train --from`.",
        )


def is_over(checkpoint: Path) -> bool:
    """True if the warm-up of a stopped training had ended.

    The statistics of its epochs are not in the checkpoint then.
    """
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
        # deviations may start in units of the prior's, which is learnt around its means
        model.lm.posterior.start_untrained()
        if model.prior == START_PRIOR:
            model.apply_prior()
        torch.save(best, folder / POINT_ESTIMATE)
        reporter = {**checkpoint["reporter"], "stats": {}}
        checkpoint.update(model=model.state_dict(), reporter=reporter, **fresh)
        torch.save(checkpoint, path)
        for link in (*folder.glob("*.best.pth"), *folder.glob("*.ave*.pth")):
            link.unlink()
        PROGRESS.info(f"epoch {reporter['epoch']}: the point-estimate phase ends")
        logging.info(f"The best point-estimate weights are in {folder / POINT_ESTIMATE}")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()

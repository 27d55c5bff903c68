"""The warm-up of a training: epochs of a point estimate before the Bayesian phase."""

from __future__ import annotations

import argparse
import contextlib
import copy
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping

import torch

from espnet_bayeslm.bayes import process_rank
from espnet_bayeslm.bayes.base_kinds import is_posterior_key
from espnet_bayeslm.loading.experiment import find_files, load_state, read_checkpoint
from espnet_bayeslm.loading.trained_lm import OPTIM
from espnet_bayeslm.pretrained.adapted import AdaptedLM
from espnet_bayeslm.training.model import START_PRIOR, BayesLanguageModel
from espnet_bayeslm.training.optimizer import POSTERIOR, parameters_of
from espnet_bayeslm.utils.cli import PROGRESS
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import check_least

# Best weights of a warm-up.
POINT_ESTIMATE = "warmup.pth"


def check_warmup(model: BayesLanguageModel, args: argparse.Namespace) -> None:
    """Check `warmup_epochs` and `prior: start`; leave out a warm-up that has nothing to warm up."""
    prior, lm = args.model_conf.get("prior"), model.lm
    is_started = bool(args.init_param) and prior != START_PRIOR
    if model.warmup_epochs > 0 and (is_started or not lm.kinds):
        why = "--init_param" if is_started else "no location is uncertain"
        LOG.info(f"There is no point-estimate phase: {why}")
        model.warmup_epochs = 0
    if lm.kinds and prior == START_PRIOR and not model.warmup_epochs:
        raise InputError(
            f"prior: {START_PRIOR} without a point-estimate phase",
            remedy="Give model_conf: warmup_epochs, or a trained LM by --from.",
        )
    check_least(0, warmup_epochs=model.warmup_epochs)
    known = set(map(id, parameters_of(lm, POSTERIOR)))
    others = [n for n, p in lm.named_parameters() if is_posterior_key(n) and id(p) not in known]
    if model.warmup_epochs and (others or not lm.posterior.blocks()):
        raise InputError(
            "warmup_epochs is for LMs whose uncertain locations are all of kind bayes, and this one"
            f" has {others[0] if others else 'none'}",
            remedy="Train a point-estimate LM, then this one by `bayeslm train --from`.",
        )
    stopped = args.resume and (Path(args.output_dir) / "checkpoint.pth").exists()
    # an adapter's base is trained, and a posterior of the optimizer has no other start
    from_scratch = not isinstance(lm, AdaptedLM) and args.optim != OPTIM and lm.posterior.blocks()
    if from_scratch and not (args.init_param or model.warmup_epochs or stopped):
        LOG.warning(
            "random weights are trained from scratch: start from a trained point-estimate LM"
            " (`bayeslm train --from EXP`, --init_param), or give model_conf: warmup_epochs"
        )


def is_over(checkpoint: Path) -> bool:
    """True if the warm-up of a stopped training had ended: its epochs have no statistics then."""
    if not checkpoint.exists():
        return False
    reporter = read_checkpoint(checkpoint)["reporter"]
    return reporter["epoch"] > 0 and 1 not in reporter["stats"]


@contextlib.contextmanager
def warming(model: BayesLanguageModel) -> Iterator[None]:
    """Train the posterior means alone within the block: no samples, no KL, fixed deviations."""
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


def fresh_states(training: Mapping[str, Any]) -> Dict[str, List[Any]]:
    """Copies of the states of optimizers and schedulers, among the arguments of a training."""
    return {
        name: [part and copy.deepcopy(part.state_dict()) for part in training[name]]
        for name in ("optimizers", "schedulers")
    }


def begin_bayesian_phase(
    folder: Path, model: BayesLanguageModel, fresh: Mapping[str, List[Any]]
) -> None:
    """Make a training's checkpoint one that goes on with the Bayesian phase.

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

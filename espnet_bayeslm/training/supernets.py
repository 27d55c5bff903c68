"""Trained super-networks and the training that they had (ESPnet, which takes seconds, on use)."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any, Dict

from espnet_bayeslm.kinds.search.history import HISTORY, read_history
from espnet_bayeslm.kinds.search.ranking import Run

# What belongs to one run: where its data and outputs are, what it starts from, on what it runs.
RUN_OPTIONS = (
    *("config", "output_dir", "seed", "ngpu", "num_workers", "log_level", "log_interval"),
    *("print_config", "dry_run", "collect_stats", "resume", "init_param", "ignore_init_mismatch"),
    *("token_list", "token_type", "bpemodel", "train_shape_file", "valid_shape_file"),
    *("train_data_path_and_name_and_type", "valid_data_path_and_name_and_type"),
    *("use_matplotlib", "use_tensorboard", "multiprocessing_distributed"),
)
# The order in which conf/*.yaml have them.
FIRST_OPTIONS = (
    *("lm", "lm_conf", "model", "model_conf", "optim", "optim_conf"),
    *("scheduler", "scheduler_conf", "batch_type", "batch_size", "max_epoch", "patience"),
)


def load_supernet(path: Path) -> Run:
    """Trained super-network with its latest architecture weights.

    Args:
        path: Its experiment folder. The weights are those of `checkpoint.pth`: the other
            checkpoints are averages over epochs, or of the epoch that was best for the LM.

    Raises:
        InputError: Files are missing or do not fit.
    """
    from espnet_bayeslm.kinds.search import choices
    from espnet_bayeslm.training.build import load_model
    from espnet_bayeslm.training.experiment import read_config

    config = read_config(path / "config.yaml")
    found = dict(choices(load_model(config, path / "checkpoint.pth", posterior=True).lm))
    weights = {
        location: dict(zip(choice.kinds, choice.weights.tolist(), strict=True))
        for location, choice in found.items()
    }
    options = {
        location: {kind.name: dict(kind.options) for kind in choice.candidates}
        for location, choice in found.items()
    }
    records = read_history(path / HISTORY) if (path / HISTORY).exists() else []
    given = training_config(config)
    return Run(path.name, str(path), config.seed, weights, records, given, options)


def training_config(config: argparse.Namespace) -> Dict[str, Any]:
    """Options of a run that make a file like conf/*.yaml.

    That is what differs from ESPnet's defaults, less what belongs to that one run.
    """
    defaults = _defaults()
    given = {
        name: value
        for name, value in vars(config).items()
        if name in defaults and name not in RUN_OPTIONS and not _same(value, defaults[name])
    }
    return {**{name: given[name] for name in FIRST_OPTIONS if name in given}, **given}


@functools.lru_cache(maxsize=1)
def _defaults() -> Dict[str, Any]:
    """ESPnet's options as they are where nobody gives any."""
    from espnet_bayeslm.training.task import BayesLMTask

    return vars(BayesLMTask.get_parser().parse_args([]))


def _same(value: Any, default: Any) -> bool:
    """Whether two options are the same; yaml has lists for tuples."""
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return len(value) == len(default) and all(map(_same, value, default))
    return bool(value == default)

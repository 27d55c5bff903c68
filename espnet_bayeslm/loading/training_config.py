"""Options of a training as a configuration file like conf/*.yaml has them."""

from __future__ import annotations

import argparse
import functools
from typing import Any, Dict

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


def training_config(config: argparse.Namespace) -> Dict[str, Any]:
    """Options of a run that make a file like conf/*.yaml.

    They are the differences from ESPnet's defaults, without the options of that one run.
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
    from espnet_bayeslm.loading.espnet_tasks import LMTask  # takes seconds

    return vars(LMTask.get_parser().parse_args([]))


def _same(value: Any, default: Any) -> bool:
    """True if two options are equal; yaml has lists for tuples."""
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return len(value) == len(default) and all(map(_same, value, default))
    return bool(value == default)

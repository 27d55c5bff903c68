"""The training configuration of each LM: that of its size, and what its line changes."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping, Optional

import yaml
from lines import CONF, SEARCHED, UNCERTAIN, Line

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write

Config = Dict[str, Any]

# Variance of the prior of each backbone (the paper, IV-A).
PRIOR_VARIANCE = {"lstm": 1.0, "transformer": 1.0e-3}
# Kinds whose prior's mean is the point-estimate LM.
WITH_PRIOR = ("map", "bayes", "gp")
# The kind that is an optimizer.
IVON = "ivon"
# A line's options that are the LM's, and those that are in no configuration; the rest is the
# model's.
LM_OPTIONS = ("prior_variance", "init_std", "dropout_rate")
NOT_TRAINING = ("nas", "seed", "prior_mean")


def sizes() -> List[str]:
    """Return the sizes that this recipe has configurations of."""
    return sorted(path.name[: -len("_lstm_half.yaml")] for path in CONF.glob("*_lstm_half.yaml"))


def check_size(size: str) -> None:
    """Raise an InputError where there is no such size."""
    if size not in sizes():
        raise InputError(f"--size {size}: unknown; valid are {', '.join(sizes())}")


def read_conf(name: str) -> Config:
    """Return the content of conf/NAME.yaml.

    Raises:
        InputError: It is missing.
    """
    path = CONF / f"{name}.yaml"
    if not path.exists():
        raise InputError("no such configuration", path=path)
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def merged(base: Mapping[str, Any], *changes: Optional[Mapping[str, Any]]) -> Config:
    """Return a configuration with changes: mappings in it are merged, the rest is replaced."""
    result = copy.deepcopy(dict(base))
    for change in changes:
        for key, value in (change or {}).items():
            old = result.get(key)
            both = isinstance(value, Mapping) and isinstance(old, Mapping)
            result[key] = merged(old, value) if both else copy.deepcopy(value)
    return result


def half_config(size: str, lm: str) -> Config:
    """Return the configuration of the first half of the training, from which all go on."""
    return read_conf(f"{size}_{lm}_half")


def line_config(size: str, line: Line, searched: Optional[Mapping[str, Any]] = None) -> Config:
    """Return the configuration of a line's LM.

    That of its size, then what conf/SIZE_LM_KIND.yaml changes for its kind (or, for all uncertain
    kinds without such a file, conf/SIZE_LM_uncertain.yaml), then the line itself.

    Args:
        size: The size.
        line: The line.
        searched: `uncertainty` as the architecture search chose it, for a line that wants it.
    """
    config = read_conf(f"{size}_{line.lm}")
    config = merged(config, kind_changes(size, line.lm, line.kind))
    options = {k: yaml.safe_load(v) for k, v in line.options.items() if k not in NOT_TRAINING}
    lm_conf: Config = {k: options.pop(k) for k in LM_OPTIONS if k in options}
    model = options
    if line.kind in UNCERTAIN:
        where = searched if line.where == SEARCHED else {line.where: line.kind}
        lm_conf["uncertainty"] = dict(where or {})
    if line.kind in WITH_PRIOR:
        lm_conf["prior_variance"] = prior_variance(line)
    if line.kind in ("l1", "l2", "map"):
        model["regularizer"] = line.kind
    return merged(config, {"lm_conf": lm_conf, "model_conf": model})


def has_point_prior(line: Line) -> bool:
    """Return whether the mean of a line's prior is the point-estimate LM, and not zero.

    Raises:
        InputError: Its option `prior_mean` is not 0.
    """
    mean = line.options.get("prior_mean")
    if mean not in (None, "0"):
        raise InputError(
            f"line {line.number} of table {line.table}: prior_mean={mean}; valid is 0",
            remedy="Without the option the prior's mean is the point-estimate LM.",
        )
    return line.kind in WITH_PRIOR and mean is None


def prior_variance(line: Line) -> float:
    """Return the variance of a line's prior: its own, or that of its backbone."""
    return float(line.options.get("prior_variance", PRIOR_VARIANCE[line.lm]))


def kind_changes(size: str, lm: str, kind: str) -> Config:
    """Return what a kind's file changes of a size's configuration.

    Raises:
        InputError: It is IVON, whose file is missing: the optimizer would be another.
    """
    if kind == IVON:
        return read_conf(f"{size}_{lm}_{kind}")
    for name in (kind, *(["uncertain"] if kind in UNCERTAIN else [])):
        path = CONF / f"{size}_{lm}_{name}.yaml"
        if path.exists():
            return read_conf(path.stem)
    return {}


def search_config(size: str, line: Line) -> Config:
    """Return the configuration of the super-network of a searched line."""
    config = merged(read_conf(f"{size}_{line.lm}"), kind_changes(size, line.lm, line.kind))
    lm_conf: Config = {}
    if line.kind in WITH_PRIOR:
        lm_conf["prior_variance"] = prior_variance(line)
    return merged(config, {"lm_conf": lm_conf}, read_conf(f"{size}_{line.lm}_search_{line.kind}"))


def write_config(config: Config, path: PathLike) -> None:
    """Write a configuration; the same content is the same file."""
    with atomic_write(path) as f:
        yaml.safe_dump(config, f, sort_keys=False)

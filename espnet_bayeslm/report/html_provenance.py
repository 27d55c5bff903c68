"""What a report was made of: command, versions, LMs with their weights and scales, files."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, Mapping, Sequence, Tuple

import yaml

from espnet_bayeslm.report.html_page import Section
from espnet_bayeslm.report.html_rescored import SCALES
from espnet_bayeslm.report.tables import MISSING, Table
from espnet_bayeslm.utils.files import PathLike

PACKAGES = ("espnet_bayeslm", "espnet", "torch", "numpy")


def provenance_section(
    command: str,
    files: Sequence[Tuple[str, str, str]],
    rescored: Mapping[str, str],
    experiments: Mapping[str, str],
) -> Section:
    """Command, versions and date, and tables of rescorings, experiments and files.

    Args:
        command: The command line.
        files: (option, name, path) of what was read.
        rescored: Name -> folder of `bayeslm rescore`.
        experiments: Name -> folder of a training.
    """
    settings = {name: _read(Path(path) / SCALES) for name, path in rescored.items()}
    trainings = {name: _read(Path(path) / "config.yaml") for name, path in experiments.items()}
    tables = [
        _rescoring_table(settings) if settings else None,
        _training_table(trainings) if trainings else None,
        Table(
            "Files and folders that were read",
            ["option", "name", "path", "SHA-256"],
            [[option, name, path, _digest(path)] for option, name, path in files],
            words=(1, 2, 3),
        ),
    ]
    versions = {"Python": platform.python_version(), **dict(map(_version, PACKAGES))}
    values = {
        "command": command,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "date": _now().strftime("%Y-%m-%d %H:%M UTC"),
        "tables": [table for table in tables if table is not None],
    }
    return Section("provenance", "Where this comes from", values)


def _now() -> datetime.datetime:
    """Time of the report; SOURCE_DATE_EPOCH holds it, as reproducible builds have it."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.now(datetime.timezone.utc)
    return datetime.datetime.fromtimestamp(int(epoch), now.tzinfo) if epoch.isdigit() else now


def _version(package: str) -> Tuple[str, str]:
    try:
        return package, metadata.version(package)
    except metadata.PackageNotFoundError:
        return package, "not installed"


def _read(path: Path) -> Mapping[str, Any]:
    """Settings of a yaml file; none where there is none."""
    if not path.is_file():
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def _rescoring_table(settings: Mapping[str, Mapping[str, Any]]) -> Table:
    """LMs of each rescoring with their weights, and how scores were combined."""
    header = ["system", "LMs and weights", "combined", "scales", "decision", "tuned on"]
    rows = []
    for name, found in settings.items():
        scales = found.get("features") or {k: found.get(k) for k in ("lmwt", "word_penalty")}
        parts = [_pairs(found.get("components")), str(found.get("combine", MISSING))]
        decision = str(found.get("decision", "max" if found else MISSING))
        rows.append([name, *parts, _pairs(scales), decision, str(found.get("tuned_on") or MISSING)])
    return Table("Rescoring", header, rows, words=(1, 2, 3, 4, 5))


def _training_table(trainings: Mapping[str, Mapping[str, Any]]) -> Table:
    """Kind of LM, start, seed and data of each training."""
    keys = ("lm", "seed", "optim", "init_param", "train_data_path_and_name_and_type")
    rows = []
    for name, found in trainings.items():
        conf = found.get("lm_conf")
        more = _pairs({k: v for k, v in conf.items()} if isinstance(conf, dict) else None)
        rows.append([name, *(_text(found.get(key)) for key in keys), more])
    header = ["experiment", "LM", "seed", "optimizer", "started from", "text", "lm_conf"]
    return Table("Training", header, rows, words=range(1, 7))


def _text(value: Any) -> str:
    while isinstance(value, list) and value:
        value = value[0]
    return MISSING if value in (None, [], "") else str(value)


def _pairs(values: Any) -> str:
    """Names and values in a line."""
    if not isinstance(values, dict) or not values:
        return MISSING
    pairs = ((k, f"{v:.4g}" if isinstance(v, float) else v) for k, v in values.items())
    return ", ".join(f"{key} {value}" for key, value in pairs if value is not None)


def _digest(path: PathLike) -> str:
    """First digits of a file's digest; of a folder none."""
    file = Path(path)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else MISSING

"""Provenance of a report: command, versions, LMs with their weights and scales, files."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence, Tuple

from espnet_bayeslm.report.counted_outputs import SCALES
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.table import MISSING, Table
from espnet_bayeslm.utils.cli import command_file
from espnet_bayeslm.utils.files import read_yaml_mapping, sha256

PACKAGES = ("espnet_bayeslm", "espnet", "torch", "numpy")
# Column -> key of scales.yaml, and of a training's config.yaml
RESCORING = {
    "LMs and weights": "components",
    "scales": "features",
    "decision": "decision",
    "tuned on": "tuned_on",
}
TRAINING = {
    "LM": "lm",
    "seed": "seed",
    "optimizer": "optim",
    "started from": "init_param",
    "text": "train_data_path_and_name_and_type",
    "lm_conf": "lm_conf",
}


def provenance_section(command: str, read: Mapping[str, Sequence[Tuple[str, str]]]) -> Section:
    """Command, versions, date; tables of the files by option: (name, path), and their settings."""
    settings = {name: _read(Path(path) / SCALES) for name, path in read["rescored"]}
    trainings = {name: _read(Path(path) / "config.yaml") for name, path in read["exp"]}
    for found in settings.values():
        found.setdefault("features", {key: found.get(key) for key in ("lmwt", "word_penalty")})
    tables = [_settings_table("Rescoring", RESCORING, settings)] if settings else []
    tables += [_settings_table("Training", TRAINING, trainings)] if trainings else []
    header = ["option", "name", "path", "SHA-256", "written by"]
    rows = []
    for option, pairs in read.items():
        for name, path in pairs:
            # a folder has no digest
            digest = sha256(path)[:12] if Path(path).is_file() else MISSING
            file = command_file(path)
            command_line = file.read_text(encoding="utf-8").strip() if file.is_file() else MISSING
            rows.append([option, name, path, digest, command_line])
    tables.append(Table("Files and folders that were read", header, rows, words=(1, 2, 3, 4)))
    versions = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    # as reproducible builds have it
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = float(epoch) if epoch.isdigit() else time.time()
    values = {
        "command": command,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)),
        "tables": tables,
    }
    return Section("provenance", "Where this comes from", values)


def _read(path: Path) -> Dict[str, Any]:
    """Settings of a yaml file; none where there is none."""
    return read_yaml_mapping(path) if path.is_file() else {}


def _settings_table(
    caption: str, columns: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]
) -> Table:
    """Table of settings: one row for each item, a column for each setting."""
    rows = [
        [name, *(_text(found.get(key)) for key in columns.values())]
        for name, found in settings.items()
    ]
    return Table(caption, ["name", *columns], rows, words=range(1, 1 + len(columns)))


def _text(value: Any) -> str:
    """Setting in a line: names and values, or the first of a list."""
    while isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        known = {key: v for key, v in value.items() if v is not None}
        value = ", ".join(f"{key} {_text(v)}" for key, v in known.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return MISSING if value in (None, [], "") else str(value)

#!/usr/bin/env python3
"""Table of perplexity against the amount of target text an LM was adapted with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

from adaptation_data import SHARES

from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text
from lab.cells import markdown_table

BACKBONES = {"seq_rnn": "ESPnet's LSTM (seq_rnn)", "transformer": "ESPnet's transformer"}
METHODS = {
    "finetune": "fine-tuning",
    "l2": "L2 to the source",
    "bayes": "Bayesian, KL weighted",
    "exact": "Bayesian, exact bound",
}


class Adapted(NamedTuple):
    """The setting of a method that is best on dev, and perplexities per word."""

    setting: str
    dev: float
    test: float


def read_adapted(folder: Path, setting: str = "") -> Adapted:
    """Return an LM's perplexities per word."""
    files = [json.loads((folder / f"{name}.json").read_text()) for name in ("dev", "test")]
    return Adapted(setting, *(file["components"][0]["perplexity"]["word"] for file in files))


def best_of(folder: Path, method: str, share: int) -> Optional[Adapted]:
    """Return the best setting of a method with a share of the text; None if it was not run."""
    found = []
    for path in folder.glob(f"{method}@*_{share}"):
        if (path / "test.json").exists():
            setting = path.name.removeprefix(f"{method}@").removesuffix(f"_{share}")
            found.append(read_adapted(path, setting))
    return min(found, key=lambda adapted: adapted.dev, default=None)


def read_backbone(folder: Path, backbone: str) -> Dict[str, List[Optional[Adapted]]]:
    """Return {method: what it reached with each share}, without adaptation first."""
    general = folder / f"general_{backbone}"
    if not (general / "test.json").exists():
        raise InputError("not there yet", path=general, remedy="Run local/adapt.sh first.")
    rows = {m: [best_of(folder, m, share) for share in SHARES] for m in METHODS}
    return {"none": [read_adapted(general)] * len(SHARES), **rows}


def table(rows: Dict[str, List[Optional[Adapted]]]) -> str:
    """Return the table of a backbone: `dev / test (setting)`."""

    def cell(adapted: Optional[Adapted]) -> str:
        if adapted is None:
            return "not run"
        setting = f" ({adapted.setting})" if adapted.setting else ""
        return f"{adapted.dev:.1f} / {adapted.test:.1f}{setting}"

    labels = {"none": "no adaptation", **METHODS}
    lines = [[labels[method], *map(cell, cells)] for method, cells in rows.items()]
    return markdown_table(["", *(f"{share} %" for share in SHARES)], lines)


def adaptation(exp: str) -> None:
    """Write EXP/RESULTS.md, and print it."""
    folders = {b: Path(exp) / "perplexity" / b for b in BACKBONES}
    results = {b: read_backbone(folder, b) for b, folder in folders.items() if folder.is_dir()}
    if not results:
        raise InputError("no perplexities", path=exp, remedy="Run local/adapt.sh first.")
    text = "Perplexity per word of dev / test, `</s>` counted (setting: best on dev).\n\n"
    for backbone, rows in results.items():
        text += f"{BACKBONES[backbone]}:\n\n{table(rows)}\n"
    write_text(Path(exp) / "RESULTS.md", text)
    print(text)


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Write the results."""
    tool = Tool("adaptation", __doc__.splitlines()[0], adaptation)
    parser = tool.parser()
    parser.prog = "local/adaptation.py"
    parser.add_argument("--exp", default="exp/adaptation", help="Folder of local/adapt.sh")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()

"""What `bayeslm quickstart` does: text and lists to LMs, weights, rescored lists and a table."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from espnet_bayeslm.quickstart.steps import Step, Tool, run_steps
from espnet_bayeslm.quickstart.table import POINT, read_rows, table
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import check_folder, staged, write_text
from espnet_bayeslm.utils.locks import folder_lock

SHIPPED = Path(__file__).parent
# System -> the LMs that are interpolated with the 3-gram
SYSTEMS = {
    "3-gram": (),
    POINT: ("point",),
    "Bayesian + 3-gram": ("bayes",),
    "Bayesian + point-estimate + 3-gram": ("bayes", "point"),
}
SETS = ("dev", "eval")


def run(output: str, *, tool: Tool, data: Path = SHIPPED / "data", epochs: int = 0) -> None:
    """Make OUTPUT/RESULTS.md and OUTPUT/report.html, and print the table.

    The LMs are trained on `train.txt`; interpolation weights and the scales of scores are
    tuned on dev; eval is scored once with what was tuned.

    Args:
        output: The folder of all that is made. A run that was stopped goes on there.
        tool: What runs a command line of `bayeslm`.
        data: Texts and lists.
        epochs: Of each training, in place of those of the configurations (0).

    Raises:
        InputError: The folder cannot be written to, or holds what was made of other data.
    """
    check_folder(output)
    begin, folder = time.monotonic(), Path(output)
    with folder_lock(folder):
        unpack(data, folder)
        for what, steps in plan(folder, epochs):
            print(f"[{time.monotonic() - begin:3.0f} s] {what}", file=sys.stderr, flush=True)
            run_steps(steps, folder / "log", tool)
        text = table(read_rows(folder / "score.json", perplexity_files(folder)))
        write_text(folder / "RESULTS.md", text)
    print(text)
    print(f"{folder}/report.html: every list beside its reference, learning curves, tests")
    print(f"{folder}/commands.sh: the commands of all this")
    print(f"[{time.monotonic() - begin:3.0f} s] done", file=sys.stderr)


def unpack(data: Path, folder: Path) -> None:
    """Write data and configurations to FOLDER/data, with the references of the lists.

    Raises:
        InputError: Other data is there.
    """
    target = folder / "data"
    files = {path.stem: gzip.decompress(path.read_bytes()) for path in data.glob("*.gz")}
    files.update((path.name, path.read_bytes()) for path in SHIPPED.glob("*.yaml"))
    for name in SETS:
        lists = map(json.loads, files[f"{name}.jsonl"].splitlines())
        refs = (f"{content['utt']} {content['ref']}\n" for content in lists)
        files[f"{name}.ref"] = "".join(refs).encode()
    if not target.exists():
        with staged(target) as temporary:
            for name, content in files.items():
                (temporary / name).write_bytes(content)
    elif any((target / name).read_bytes() != content for name, content in files.items()):
        remedy = "Give a new --output."
        raise InputError("holds other data than is shipped now", path=target, remedy=remedy)


def plan(folder: Path, epochs: int) -> List[Tuple[str, List[Step]]]:
    """What is done, in this order, and the steps of each, which are run side by side."""
    text, ngram = folder / "data" / "train.txt", folder / "3gram.arpa"
    estimate = words("ngram", text=text, order=3, arpa=ngram, discount_fallback="true")
    alone, point, bayes, both = (
        Step(f"rescore_{key_of(lms)}", system_commands(folder, lms)) for lms in SYSTEMS.values()
    )
    start = [train(folder, "half", epochs), Step("ngram", [estimate])]
    lms = [train(folder, name, epochs, source="half") for name in ("point", "bayes")]
    # the scores of the neural LMs are kept for the mixture of both
    stages = [
        ("a 3-gram, and an LM with point-estimate weights, half-trained", start),
        ("it goes on with point-estimate weights, and with random ones", lms),
        ("interpolation weights, perplexity, rescored lists", [point, bayes]),
        ("the same with the 3-gram alone, and with both LMs", [both, alone]),
        ("significance, report", [Step("report", report_commands(folder))]),
    ]
    commands = "".join(step.script() for _, steps in stages for step in steps)
    write_text(folder / "commands.sh", commands)
    return stages


def words(tool: str, **options: object) -> List[str]:
    """Command line of a tool; an option that has a list is repeated, None is left out."""
    line = [tool]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            line += [] if one is None else [f"--{name}", str(one)]
    return line


def key_of(lms: Sequence[str]) -> str:
    """Name of a system's files."""
    return "_".join([*lms, "3gram"])


def train(folder: Path, name: str, epochs: int, *, source: Optional[str] = None) -> Step:
    """Training of an LM by the configuration of that name, perhaps on from another LM."""
    data = folder / "data"
    options: Dict[str, Any] = dict(train_text=data / "train.txt", valid_text=data / "dev.txt")
    options.update(config=data / f"{name}.yaml", exp=folder / name)
    options.update({"from": source and folder / source, "max_epoch": epochs or None})
    return Step(name, [words("train", **options)])


def system_commands(folder: Path, lms: Sequence[str]) -> List[List[str]]:
    """Weights and scales of a system, tuned on dev, then its perplexity and lists of eval."""
    data, key = folder / "data", key_of(lms)
    weights = folder / "weights" / f"{key}.yaml"
    parts: Dict[str, Any] = dict(lm=[folder / lm for lm in lms], ngram=folder / "3gram.arpa")
    parts["cache"] = folder / "cache"
    lists = {name: data / f"{name}.jsonl" for name in SETS}
    out = {name: folder / "rescored" / key / name for name in SETS}
    known = dict(nbest_format="jsonl", **parts, weights=weights)
    return [
        words("interpolate", text=data / "dev.txt", **parts, output=weights),
        words(
            "perplexity",
            text=data / "eval.txt",
            **parts,
            weights=weights,
            output=folder / "perplexity" / f"{key}.json",
        ),
        words("rescore", nbest=lists["dev"], **known, output=out["dev"]),
        words(
            "rescore",
            nbest=lists["eval"],
            **known,
            scales=out["dev"] / "scales.yaml",
            output=out["eval"],
        ),
    ]


def perplexity_files(folder: Path) -> Dict[str, Path]:
    """System -> the JSON of its perplexity of eval."""
    return {name: folder / "perplexity" / f"{key_of(lms)}.json" for name, lms in SYSTEMS.items()}


def report_commands(folder: Path) -> List[List[str]]:
    """Word errors of all systems with their tests, and the report."""
    data = folder / "data"
    evals = {name: folder / "rescored" / key_of(lms) / "eval" for name, lms in SYSTEMS.items()}
    scores = folder / "score.json"
    return [
        words(
            "score",
            ref=data / "eval.ref",
            hyp=[f"{name}={path}/text" for name, path in evals.items()],
            nbest=data / "eval.jsonl",
            nbest_format="jsonl",
            output=scores,
        ),
        words(
            "report",
            score=scores,
            perplexity=[f"{name}={path}" for name, path in perplexity_files(folder).items()],
            rescored=[f"{name}={path}" for name, path in evals.items()],
            nbest_format="jsonl",
            exp=[f"{name}={folder / name}" for name in ("point", "bayes")],
            title="bayeslm quickstart",
            output=folder / "report.html",
        ),
    ]

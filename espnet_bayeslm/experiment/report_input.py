"""What `bayeslm report` reads: the scores of a table's systems, and a file of its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

from espnet_bayeslm.evaluation.comparison import compare_systems
from espnet_bayeslm.experiment.plan import ALONE, NGRAM, POINT, Settings
from espnet_bayeslm.experiment.view import View
from espnet_bayeslm.experiment.word_errors import NUM_REPLICATES, Rescored, read_lists
from espnet_bayeslm.report.scores import scores_json
from espnet_bayeslm.utils.files import write_json, write_yaml


def write_report_input(view: View, settings: Settings) -> Path:
    """Write report_TABLE.yaml, for `bayeslm report --config`, and scores_TABLE.json beside it.

    They are of the first seed that has results. The lists to look through are those of the n-gram,
    the point-estimate LMs and the best uncertain lines.

    Returns:
        The former.
    """
    seeds = [seed for seed in view.seeds if len(report_systems(view, seed)) > 1]
    seed = (seeds or view.seeds)[0]
    folder = settings.seed_folder(seed)
    names = report_systems(view, seed)
    title = f"Table {settings.table}, size {settings.size}, seed {seed}"
    options: Dict[str, Any] = {"title": title, **perplexity_options(view, folder, names)}
    rescored = [name for name in names if (view.system(seed, name) or {})["errors"]]
    if rescored:
        scores = settings.folder / f"scores_{settings.table}.json"
        write_scores(view, settings, folder, rescored, scores)
        options["score"] = str(scores)
        options |= list_options(view, settings, folder, rescored)
    options |= lm_options(view, seed, folder)
    path = settings.folder / f"report_{settings.table}.yaml"
    write_yaml(path, options)
    return path


def report_systems(view: View, seed: int) -> List[str]:
    """N-gram, the point-estimate LMs with it, the other lines with both; controls."""
    of_lines = [s.get(POINT, s[NGRAM]) for s in (line["systems"] for line in view.lines)]
    names = [view.ngram, *of_lines, *view.whole[seed]["controls"]]
    systems = {name: view.system(seed, name) for name in dict.fromkeys(names)}
    return [name for name, system in systems.items() if system and system["perplexity"]]


def perplexity_options(view: View, folder: Path, names: List[str]) -> Dict[str, Any]:
    """Option of the systems' perplexities, and of each LM's alone."""
    alone = [line["systems"][ALONE] for line in view.lines if ALONE in line["systems"]]
    files = [
        f"{name}={folder / 'perplexity' / name / text}.json"
        for name in dict.fromkeys([*names, *alone])
        for text in view.sets
        if (folder / "perplexity" / name / f"{text}.json").exists()
    ]
    return {"perplexity": files}


def write_scores(
    view: View, settings: Settings, folder: Path, names: List[str], path: Path
) -> None:
    """Write what `bayeslm score` would of the systems on the test lists."""
    lists = read_lists(settings.data / "nbest", view.sets)
    assert lists is not None  # there are systems that were rescored
    sets = Rescored(folder, lists, view.sets).scored(names)
    conditions = {
        name: compare_systems([part], num_replicates=NUM_REPLICATES) for name, part in sets.items()
    }
    pooled = compare_systems(list(sets.values()), num_replicates=NUM_REPLICATES)
    base = next((line["base"] for line in view.lines if line["base"] in names), names[0])
    write_json(path, scores_json(conditions, pooled, baseline=base))


def list_options(
    view: View, settings: Settings, folder: Path, names: List[str]
) -> Dict[str, List[str]]:
    """Options of the lists to look through, and of their references."""
    wanted = [view.ngram, *(line["base"] for line in view.lines)]
    wanted += [view.by_number(n)["systems"][POINT] for n in view.content["chosen"].values()]
    shown = [name for name in dict.fromkeys(wanted) if name in names]
    # the utterances of all conditions may have the same ids: the first condition stands for all
    place = f"{view.test}_{view.conditions[0]}"
    return {
        "rescored": [f"{name}={folder / 'rescore' / name / place}" for name in shown],
        "ref": [str(settings.data / "nbest" / place / "text")],
    }


def lm_options(view: View, seed: int, folder: Path) -> Dict[str, List[str]]:
    """Options of the trainings, the ratios and the searches."""
    run = view.whole[seed]
    found = {
        "exp": [f"{name}={folder / name}" for name in run["lms"]],
        "snr": [f"{folder / 'snr' / name}" for name, lm in run["lms"].items() if lm["snr"]],
        "search": [f"{name}={folder / name}" for name in run["searches"]],
    }
    return {key: value for key, value in found.items() if value}

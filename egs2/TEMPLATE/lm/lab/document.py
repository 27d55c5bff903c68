"""RESULTS of a table in Markdown, from results.md.jinja, and the input of `bayeslm report`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Mapping

import jinja2

from espnet_bayeslm.evaluation.comparison import compare_systems
from espnet_bayeslm.evaluation.wer import Counted
from espnet_bayeslm.report.counted_outputs import of_all_systems, read_counted
from espnet_bayeslm.report.score_results import SystemScores, scores_json
from espnet_bayeslm.utils.files import write_json, write_text, write_yaml
from lab import studies, tables
from lab.figures import write_figures
from lab.plan import ALONE, NGRAM, POINT, Settings
from lab.results import Results
from lab.word_errors import NUM_REPLICATES, Rescored, read_lists

TEMPLATE = Path(__file__).with_name("results.md.jinja")


def write_results(results: Results, settings: Settings, note: str = "") -> str:
    """Write RESULTS of a table beside results_TABLE.json, images and report_TABLE.yaml.

    Args:
        results: The results.
        settings: The table.
        note: A sentence for the head.

    Returns:
        RESULTS.
    """
    images = write_figures(results, settings.folder / "images")
    links = {name: f"{path.relative_to(settings.folder)}" for name, path in images.items()}
    text = document(results, links, note)
    write_text(settings.folder / f"RESULTS_{settings.table}.md", text)
    write_report_input(results, settings)
    return text


def document(results: Results, images: Mapping[str, str], note: str = "") -> str:
    """Fill in the template.

    Args:
        results: The results.
        images: Name -> link of the figures.
        note: A sentence for the head.
    """

    def figure(title: str, name: str) -> str:
        return f"![{title}]({images[name]})\n" if name in images else ""

    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        r=results,
        note=note,
        tables=tables,
        figure=figure,
        every="each seed" if len(results.seeds) > 1 else "its seed",
        searched=tables.searched_lines(results),
        changes=tables.change_table(results),
        study=studies.study_tables(results, results.study) if results.study else "",
        title=studies.TITLES.get(results.study or "", ""),
        training=tables.training_table(results),
        snr=tables.snr_table(results),
        shares=tables.share_table(results),
        not_run=tables.not_run(results),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def write_report_input(results: Results, settings: Settings) -> Path:
    """Write report_TABLE.yaml, for `bayeslm report --config`, and scores_TABLE.json beside it.

    They are of the first seed that has results. The lists to look through are those of the n-gram,
    the point-estimate LMs and the best uncertain lines.

    Returns:
        The former.
    """
    seeds = [seed for seed in results.seeds if len(report_systems(results, seed)) > 1]
    seed = (seeds or results.seeds)[0]
    folder = settings.seed_folder(seed)
    names = report_systems(results, seed)
    title = f"Table {settings.table}, size {settings.size}, seed {seed}"
    options: Dict[str, Any] = {"title": title, **perplexity_options(results, folder, names)}
    rescored = [name for name in names if results.whole[seed].systems[name].errors]
    if rescored:
        scores = settings.folder / f"scores_{settings.table}.json"
        write_scores(results, settings, folder, rescored, scores)
        options["score"] = str(scores)
        options |= list_options(results, settings, folder, rescored)
    options |= lm_options(results, seed, folder)
    path = settings.folder / f"report_{settings.table}.yaml"
    write_yaml(path, options)
    return path


def report_systems(results: Results, seed: int) -> List[str]:
    """N-gram, the point-estimate LMs with it, the other lines with both; controls."""
    of_lines = [s.get(POINT, s[NGRAM]) for s in (entry.systems for entry in results.lines)]
    names = [results.ngram, *of_lines, *results.whole[seed].controls]
    systems = {name: results.system(seed, name) for name in dict.fromkeys(names)}
    return [name for name, system in systems.items() if system and system.perplexity]


def perplexity_options(results: Results, folder: Path, names: List[str]) -> Dict[str, Any]:
    """Option of the systems' perplexities, and of each LM's alone."""
    alone = [entry.systems[ALONE] for entry in results.lines if ALONE in entry.systems]
    files = [
        f"{name}={folder / 'perplexity' / name / text}.json"
        for name in dict.fromkeys([*names, *alone])
        for text in results.sets
        if (folder / "perplexity" / name / f"{text}.json").exists()
    ]
    return {"perplexity": files}


def write_scores(
    results: Results, settings: Settings, folder: Path, names: List[str], path: Path
) -> None:
    """Write what `bayeslm score` would of the systems on the test lists."""
    lists = read_lists(settings.data / "nbest", results.sets)
    assert lists is not None  # there are systems that were rescored
    sets = Rescored(folder, lists, results.sets).scored(names)
    conditions = {
        name: compare_systems([part], num_replicates=NUM_REPLICATES) for name, part in sets.items()
    }
    pooled = compare_systems(list(sets.values()), num_replicates=NUM_REPLICATES)
    base = next((entry.base for entry in results.lines if entry.base in names), names[0])
    place = f"{results.test}_{results.conditions[0]}"
    texts = {name: read_counted(folder / "rescore" / name / place / "text") for name in names}
    known = {name: counted for name, counted in texts.items() if counted is not None}
    counted = of_all_systems(Counted(), known) if known else None
    write_json(path, scores_json(SystemScores(conditions, pooled, base, counted=counted)))


def list_options(
    results: Results, settings: Settings, folder: Path, names: List[str]
) -> Dict[str, List[str]]:
    """Options of the lists to look through, and of their references."""
    wanted = [results.ngram, *(entry.base for entry in results.lines)]
    wanted += [results.by_number(n).systems[POINT] for n in results.chosen.values()]
    shown = [name for name in dict.fromkeys(wanted) if name in names]
    # the utterances of all conditions may have the same ids: the first condition stands for all
    place = f"{results.test}_{results.conditions[0]}"
    return {
        "rescored": [f"{name}={folder / 'rescore' / name / place}" for name in shown],
        "ref": [str(settings.data / "nbest" / place / "text")],
    }


def lm_options(results: Results, seed: int, folder: Path) -> Dict[str, List[str]]:
    """Options of the trainings, the ratios and the searches."""
    run = results.whole[seed]
    found = {
        "exp": [f"{name}={folder / name}" for name in run.lms],
        "snr": [f"{folder / 'snr' / name}" for name, lm in run.lms.items() if lm.snr],
        "search": [f"{name}={folder / name}" for name in run.searches],
    }
    return {key: value for key, value in found.items() if value}

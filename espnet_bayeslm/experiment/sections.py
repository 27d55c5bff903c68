"""RESULTS of a table in Markdown: what the numbers are of, the tables, the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Mapping, Sequence

from espnet_bayeslm.configs.tables import NAMES
from espnet_bayeslm.experiment import studies, tables
from espnet_bayeslm.experiment.cells import change
from espnet_bayeslm.experiment.collect import collect
from espnet_bayeslm.experiment.figures import write_figures
from espnet_bayeslm.experiment.plan import POINT, Settings
from espnet_bayeslm.experiment.report_input import write_report_input
from espnet_bayeslm.experiment.view import DAGGER, PARTLY, WORSE, View
from espnet_bayeslm.report.table import signed
from espnet_bayeslm.utils.files import write_text


def write_results(settings: Settings, notes: Sequence[str] = ()) -> str:
    """RESULTS of a table, written beside results_TABLE.json, images and report_TABLE.yaml.

    Args:
        settings: The table.
        notes: Sentences for the head.
    """
    view = View(collect(settings))
    images = write_figures(view, settings.folder / "images")
    text = document(view, images, settings.folder, notes)
    write_text(settings.folder / f"RESULTS_{settings.table}.md", text)
    write_report_input(view, settings)
    return text


def document(view: View, images: Mapping[str, Path], folder: Path, notes: Sequence[str]) -> str:
    """RESULTS as Markdown.

    Args:
        view: The results.
        images: Name -> file of the figures.
        folder: Where RESULTS will be, for the links.
        notes: More sentences for its head.
    """
    links = {name: f"{path.relative_to(folder)}" for name, path in images.items()}
    parts = [*introduction(view, notes), *main_sections(view), *study_sections(view, links)]
    return "\n".join(part for part in [*parts, *more_sections(view, links)] if part)


def introduction(view: View, notes: Sequence[str]) -> Iterator[str]:
    """What the numbers mean."""
    content = view.content
    yield f"# RESULTS, table {content['table']}, size {content['size']}\n"
    yield "".join(f"{note}\n" for note in notes)
    yield "".join(f"{line}\n" for line in content["statistics"])
    seeds = ", ".join(map(str, view.seeds))
    spread = " `a ± b`: mean over the seeds, half of their range." if len(view.seeds) > 1 else ""
    yield (
        f"Made by `./run.sh --table {content['table']} --size {content['size']}`; the LMs'"
        f" configurations are `train.yaml` in their folders; seeds {seeds}.{spread} All lines go on"
        " from the half-trained LM of their seed by the same number of steps.\n"
    )
    yield (
        f"Tuned on {view.dev}, applied unchanged to {view.test}: interpolation weights (EM on the"
        f" {view.dev} text), LMWT and word penalty of each system and condition (fewest errors on"
        f" the {view.dev} lists); the LMs' checkpoints are those of the lowest perplexity of"
        f" {view.dev}. {view.test} was scored once with what was tuned.\n"
    )
    if content["missing_lists"]:
        yield f"There are no N-best lists ({content['missing_lists']}): no word error rates.\n"
    yield (
        'The columns "paper" are of Xue et al. 2022: the same line there, other training text,'
        " widths, lists and recogniser; its WERs are averages over its conditions. Only the"
        " direction of differences can be compared.\n"
    )


def main_sections(view: View) -> Iterator[str]:
    """Perplexities, word error rates, and what changes against the baseline."""
    yield "## Perplexity\n"
    yield (
        "Of words, `</s>` counted, unknown words left out. alone: the LM by itself;"
        f" + {view.ngram_label}: interpolated with the n-gram; + point: and with the"
        " point-estimate LM of its backbone.\n"
    )
    yield tables.perplexity_table(view)
    searched = tables.searched_lines(view)
    if searched:
        yield f"What the architecture search chose:\n\n{searched}"
    if view.conditions:
        yield "## Word error rate\n"
        yield error_legend(view)
        yield tables.error_table(view)
    changes = tables.change_table(view)
    if changes:
        yield "## Against the point-estimate LM\n"
        yield (
            f"Each line + point + {view.ngram_label} against point + {view.ngram_label} of the"
            f" same seed, on {view.test}: relative change of the perplexity"
            f"{change_legend(view)}. Below zero is better.\n"
        )
        yield changes
    chosen = list(control_sections(view))
    if chosen:
        yield "## The comparison that hurts\n"
        yield (
            "A line's mixture has a second LM beside the point-estimate one, and the prior of"
            " Bayesian and GP LMs has that trained LM as its mean. The controls have the same"
            " without being of the paper's families: L2, MAP (the same prior) and IVON, + n-gram"
            " and + point; mixtures of the point-estimate LMs of two seeds. The line beside them is"
            f" the Bayesian, GP or variational one with the lowest perplexity of {view.dev} in the"
            " mixture with both. Last columns: what it changes against each row; below zero it is"
            " better.\n"
        )
        yield from chosen


def error_legend(view: View) -> str:
    """What the table of word error rates shows."""
    every = "each seed" if len(view.seeds) > 1 else "its seed"
    pool = ", and pooled (errors and words of all conditions added)"
    return (
        f"In % on {view.test}, by condition{pool if len(view.conditions) > 1 else ''}. {DAGGER}:"
        f" significantly fewer errors than the point-estimate LM of the backbone +"
        f" {view.ngram_label} of the same seed, at {every} (MAPSSWE on the lists of all"
        f" conditions, two sides, p < 0.05); {PARTLY}: at some seeds; {WORSE}: significantly more"
        f" errors at {every}. The same sentences in several conditions are not independent, as"
        " MAPSSWE takes them to be; and of many lines one in twenty passes it by chance.\n"
    )


def change_legend(view: View) -> str:
    """What the columns of word error rates are."""
    if not view.conditions:
        return ""
    return (
        "; difference of the pooled WER in points, with its 95 % bootstrap interval (sentences"
        " drawn, each with all of its conditions) and p of MAPSSWE"
    )


def control_sections(view: View) -> Iterator[str]:
    """Of each backbone the best uncertain line beside what has no uncertainty."""
    for lm, number in view.content["chosen"].items():
        line = view.by_number(number)
        best, base = line["systems"][POINT], line["base"]
        ratios = change(view.ppl(best, view.test), view.ppl(base, view.test))
        each = ", ".join(f"{signed(value)} % (seed {seed})" for seed, value in ratios.items())
        yield (
            f"{NAMES[lm]}: {view.role_label(line, POINT)}. Perplexity of {view.test} against"
            f" {view.system_label(base)}: {each}{tested(view, best, base)}.\n"
        )
        yield tables.control_table(view, lm)


def tested(view: View, name: str, base: str) -> str:
    """Word error rate against the base in words."""
    tests = view.tests_of(name, base)
    if not tests:
        return ""
    each = (f"{signed(-t['difference'])} (p = {t['p']:.2g}, seed {s})" for s, t in tests.items())
    return f"; pooled WER in points: {', '.join(each)}"


def study_sections(view: View, images: Mapping[str, str]) -> Iterator[str]:
    """Studies that were made, with their figures."""
    if view.study is None:
        return
    text = studies.study_tables(view, view.study)
    if text:
        title = studies.TITLES[view.study]
        yield f"## {title}\n"
        yield text
        yield figure(title, images, view.table)
        yield figure(f"Signal-to-noise ratio: {title.lower()}", images, f"snr_{view.table}")


def figure(title: str, images: Mapping[str, str], name: str) -> str:
    """Link to a figure; nothing where it was not drawn."""
    return f"![{title}]({images[name]})\n" if name in images else ""


def more_sections(view: View, images: Mapping[str, str]) -> Iterator[str]:
    """Trainings, what was tuned, what the LMs learnt, what is missing."""
    parts = [
        (
            "Training",
            "NLL and KL in nats per token over the last epoch, with its draws and dropout;"
            " validation perplexity at the mean. random: how many of the parameters are.",
            [tables.training_table(view), figure("Learning curves", images, "learning_curves")],
        ),
        (f"Tuned on {view.dev}", "", [tables.tuned_table(view)]),
        (
            "Signal-to-noise ratio",
            "|mean| / standard deviation of the random weights, of a latent output over the tokens"
            f" of {view.dev}; median sigma, and over its start.",
            [tables.snr_table(view)],
        ),
        (
            "Architecture search",
            "Share of the uncertain path at each location (softmax of the architecture weights),"
            " and the most probable architectures.",
            [tables.share_table(view), tables.search_table(view)],
        ),
        ("Not run", "", ["".join(f"- {view.numbered(x)}: {why}\n" for x, why in view.not_run())]),
    ]
    for title, legend, bodies in parts:
        if any(bodies):
            yield from (f"## {title}\n", f"{legend}\n" if legend else "", *bodies)

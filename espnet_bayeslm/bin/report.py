"""`bayeslm report`: results in one HTML file."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.nbest.formats import check_format, format_option
from espnet_bayeslm.report.inputs import Repeated, named_paths
from espnet_bayeslm.utils.cli import Tool, command_line
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, option

if TYPE_CHECKING:
    from espnet_bayeslm.evaluation.bias_lists import BiasLists
    from espnet_bayeslm.evaluation.wer import Words
    from espnet_bayeslm.report.rescored_lists import Rescored


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions(ToolOptions):
    """Options of `bayeslm report`."""

    output: str = option("The file to write", "report.html")
    title: str = option("Heading of the page", "Language models for rescoring")
    score: Optional[str] = option("The JSON of `bayeslm score --output`", None)
    perplexity: Sequence[str] = option(
        "NAME=FILE, the JSON of `bayeslm perplexity --output`; NAME as in --score (repeatable)", ()
    )
    rescored: Sequence[str] = option(
        "NAME=DIR, the output of `bayeslm rescore`: its lists, its sweep.json (repeatable)", ()
    )
    ref: Sequence[str] = option("References of the lists, a Kaldi `text` or a trn (repeatable)", ())
    bias: Optional[str] = option(
        "Bias lists, as of `rescore --bias`: their words are marked in the lists, and counted", None
    )
    exp: Sequence[str] = option("NAME=EXP, an experiment folder: learning curves (repeatable)", ())
    snr: Sequence[str] = option(
        "The output of `bayeslm snr`: its folder or its snr.json (repeatable)", ()
    )
    search: Sequence[str] = option(
        "NAME=DIR, the folder of `bayeslm search`: architecture weights (repeatable)", ()
    )
    nbest_format: Optional[str] = format_option("; --rescored has them")


INPUTS = ("score", "perplexity", "rescored", "ref", "bias", "exp", "snr", "search")


def report(options: ReportOptions, *, command: str) -> None:
    """Write one HTML file with a section for each kind of results that is given."""
    from espnet_bayeslm.report.bias_plot import bias_section, read_bias_sweep
    from espnet_bayeslm.report.counted_outputs import warn_unless_alike
    from espnet_bayeslm.report.learning_section import learning_section, read_epochs
    from espnet_bayeslm.report.nbest_section import nbest_section
    from espnet_bayeslm.report.page import page
    from espnet_bayeslm.report.provenance_section import provenance_section
    from espnet_bayeslm.report.score_results import read_perplexities, read_scores, scores_section
    from espnet_bayeslm.report.search_results import read_search, search_section
    from espnet_bayeslm.report.weight_noise import read_snr, snr_section
    from espnet_bayeslm.report.weight_sweep import read_sweep, sweep_section

    def named(name: str, *, unique: bool = False) -> List[Tuple[str, str]]:
        return named_paths(f"--{name}", getattr(options, name), unique=unique)

    nbest_format = options.nbest_format
    if nbest_format is not None:
        check_format(nbest_format)
    word_errors = None if options.score is None else read_scores(options.score)
    perplexities = read_perplexities(named("perplexity"))
    experiments, searches = named("exp", unique=True), named("search", unique=True)
    folders = dict(named("rescored", unique=True))
    lists, refs = read_lists(folders, nbest_format, options.ref)
    if refs and word_errors is not None and word_errors.counted is not None:
        counts = {f"--rescored {item.name}": item.counted for item in lists[:1]}
        warn_unless_alike({f"--score {options.score}": word_errors.counted, **counts})
    sweeps = {name: read_sweep(Path(path)) for name, path in folders.items()}
    bias_sweeps = {name: read_bias_sweep(Path(path)) for name, path in folders.items()}
    # sections and what they show; without it there is none
    sections: Sequence[Tuple[Any, ...]] = [
        (scores_section, word_errors, perplexities),
        (sweep_section, {name: sweep for name, sweep in sweeps.items() if sweep is not None}),
        (bias_section, {name: own for name, own in bias_sweeps.items() if own is not None}),
        (learning_section, {name: read_epochs(path) for name, path in experiments}),
        (snr_section, *read_snr([path for _, path in named("snr")])),
        (search_section, {name: read_search(path) for name, path in searches}),
        (nbest_section, lists, refs, read_bias_of(lists, options.bias)),
    ]
    given = [section(*content) for section, *content in sections if any(content)]
    if not given:
        raise InputError(
            "nothing to report",
            remedy="Give one or more of --score, --perplexity, --rescored, --exp, --snr, --search.",
        )
    given.append(provenance_section(command, {name: named(name) for name in INPUTS}))
    write_text(options.output, page(options.title, given))
    size = Path(options.output).stat().st_size / 1e6
    print(f"{options.output}: {', '.join(section.title for section in given)} ({size:.1f} MB)")


def read_lists(
    folders: Mapping[str, str], nbest_format: Optional[str], ref: Repeated
) -> Tuple[List[Rescored], Mapping[str, Words]]:
    """N-best lists of rescorings, and their references."""
    from espnet_bayeslm.report.rescored_lists import read_references, read_rescored

    if ref and not folders:
        raise InputError("--ref without lists", remedy="Give --rescored NAME=DIR too.")
    items = [read_rescored(name, path, nbest_format) for name, path in folders.items()]
    refs = read_references(ref, items, list(folders.items()))
    if items and not refs:
        LOG.warning("no references: the lists are compared with the first pass")
    return items, refs


def read_bias_of(lists: Sequence[Rescored], path: Optional[str]) -> Optional[BiasLists]:
    """Bias lists of the utterances of lists; None where there is no file."""
    from espnet_bayeslm.evaluation.bias_lists import read_bias
    from espnet_bayeslm.evaluation.biased_words import check_bias_unit

    if path is None:
        return None
    if not lists:
        raise InputError("--bias without lists", remedy="Give --rescored NAME=DIR too.")
    check_bias_unit(path, lists[0].counting.unit)
    utts = {nbest.utt for item in lists for nbest in item.nbests}
    return read_bias(path, lists[0].normalization, utts=utts)


TOOL = Tool(
    "report",
    "Results in one HTML file that asks for nothing outside itself: tables, figures, and N-best"
    " lists to look through. It has a part for each option that is given. NAME= may be left"
    " out: a file or folder then has its own name.",
    report,
    ReportOptions,
)
get_parser = TOOL.parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm report`; the page holds the command line."""
    run = functools.partial(report, command=command_line(get_parser(), cmd))
    dataclasses.replace(TOOL, function=run).main(cmd)


if __name__ == "__main__":
    main()

"""`bayeslm report`: results in one HTML file."""

from __future__ import annotations

import argparse
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.bin.lm_options import FORMAT_HELP
from espnet_bayeslm.nbest.formats import check_format
from espnet_bayeslm.report.inputs import Repeated, named_paths
from espnet_bayeslm.utils.cli import command_line, run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text

if TYPE_CHECKING:
    from espnet_bayeslm.report.page import Section


def report(
    *,
    output: str,
    title: str,
    score: Optional[str],
    nbest_format: Optional[str],
    command: str,
    **repeated: Repeated,
) -> None:
    """Write one HTML file of what is given; options as `get_parser` explains them."""
    from espnet_bayeslm.report.learning_section import learning_section, read_epochs
    from espnet_bayeslm.report.page import page
    from espnet_bayeslm.report.provenance_section import provenance_section
    from espnet_bayeslm.report.score_results import read_scores
    from espnet_bayeslm.report.score_section import read_perplexities, scores_section
    from espnet_bayeslm.report.search_results import read_search, search_section
    from espnet_bayeslm.report.weight_noise import read_snr, snr_section

    def named(option: str, *, unique: bool = False) -> List[Tuple[str, str]]:
        return named_paths(f"--{option}", repeated[option], unique=unique)

    if nbest_format is not None:
        check_format(nbest_format)
    word_errors = None if score is None else read_scores(score)
    tables = scores_section(word_errors, read_perplexities(named("perplexity")))
    experiments, searches = named("exp", unique=True), named("search", unique=True)
    folders = dict(named("rescored", unique=True))
    lists, sweeps = rescoring_sections(folders, nbest_format, repeated["ref"])
    sections = [
        tables,
        sweeps,
        learning_section({name: read_epochs(path) for name, path in experiments}),
        snr_section(*read_snr([path for _, path in named("snr")])),
        search_section({name: read_search(path) for name, path in searches}),
        lists,
    ]
    given = [section for section in sections if section is not None]
    if not given:
        raise InputError(
            "nothing to report",
            remedy="Give one or more of --score, --perplexity, --rescored, --exp, --snr, --search.",
        )
    read = {"score": named_paths("--score", score)}
    read.update((option, named(option)) for option in repeated)
    given.append(provenance_section(command, read))
    write_text(output, page(title, given))
    size = Path(output).stat().st_size / 1e6
    print(f"{output}: {', '.join(section.title for section in given)} ({size:.1f} MB)")


def rescoring_sections(
    folders: Mapping[str, str], nbest_format: Optional[str], ref: Repeated
) -> List[Optional[Section]]:
    """N-best lists of rescorings and the sweeps that tuned them."""
    from espnet_bayeslm.report.nbest_section import nbest_section
    from espnet_bayeslm.report.rescored_lists import read_references, read_rescored
    from espnet_bayeslm.report.weight_sweep import read_sweep, sweep_section

    if ref and not folders:
        raise InputError("--ref without lists", remedy="Give --rescored NAME=DIR too.")
    items = [read_rescored(name, path, nbest_format) for name, path in folders.items()]
    refs = read_references(ref, items, list(folders.items()))
    if items and not refs:
        logging.warning("no references: the lists are compared with the first pass")
    sweeps = {name: read_sweep(Path(path)) for name, path in folders.items()}
    found = {name: sweep for name, sweep in sweeps.items() if sweep is not None}
    return [nbest_section(items, refs), sweep_section(found)]


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm report`."""
    parser = tool_parser(
        "report",
        "Results in one HTML file that asks for nothing outside itself: tables, figures, and N-best"
        " lists to look through. It has a part for each option that is given. NAME= may be left"
        " out: a file or folder then has its own name.",
    )
    parser.add_argument("--output", default="report.html", help="The file to write")
    parser.add_argument("--title", default="Language models for rescoring", help="Its heading")
    parser.add_argument("--score", help="The JSON of `bayeslm score --output`")
    repeatable = {
        "--perplexity": "NAME=FILE, the JSON of `bayeslm perplexity --output`; NAME as in --score",
        "--rescored": "NAME=DIR, the output of `bayeslm rescore`: its lists, its sweep.json",
        "--ref": "References of the lists, a Kaldi `text` or a trn",
        "--exp": "NAME=EXP, an experiment folder: learning curves",
        "--snr": "The output of `bayeslm snr`: its folder or its snr.json",
        "--search": "NAME=DIR, the folder of `bayeslm search`: architecture weights",
    }
    for option, what in repeatable.items():
        parser.add_argument(option, action="append", default=[], help=f"{what} (repeatable)")
    parser.add_argument("--nbest_format", help=f"Of the lists in --rescored. {FORMAT_HELP}")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm report`."""
    parser = get_parser()
    run_tool(parser, functools.partial(report, command=command_line(parser, cmd)), cmd)


if __name__ == "__main__":
    main()

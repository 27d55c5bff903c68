"""RESULTS of a table in Markdown, from results.md.jinja."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Mapping

import jinja2

from espnet_bayeslm.utils.files import write_text
from lab import studies, tables
from lab.figures import write_figures
from lab.plan import Settings
from lab.report_input import write_report_input
from lab.results import Results

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

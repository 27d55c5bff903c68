"""Results of a table: collected, and written as Markdown with figures."""

from __future__ import annotations

from typing import Sequence

from espnet_bayeslm.experiment.collect import collect
from espnet_bayeslm.experiment.figures import write_figures
from espnet_bayeslm.experiment.plan import Settings
from espnet_bayeslm.experiment.report_input import write_report_input
from espnet_bayeslm.experiment.sections import document
from espnet_bayeslm.experiment.view import View
from espnet_bayeslm.utils.files import atomic_write


def write_results(settings: Settings, notes: Sequence[str] = ()) -> str:
    """RESULTS of a table, written beside results_TABLE.json, images and report_TABLE.yaml.

    Args:
        settings: The table.
        notes: Sentences for the head.
    """
    view = View(collect(settings))
    images = write_figures(view, settings.folder / "images")
    text = document(view, images, settings.folder, notes)
    with atomic_write(settings.folder / f"RESULTS_{settings.table}.md") as f:
        f.write(text)
    write_report_input(view, settings)
    return text

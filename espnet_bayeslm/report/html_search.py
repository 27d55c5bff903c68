"""The report's architecture weights: shares of the kinds, their history, the best architectures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.kinds.search.history import HISTORY, read_history
from espnet_bayeslm.kinds.search.ranking import ArchitectureWeights, Record, shares
from espnet_bayeslm.report.architecture import history_figure, weights_figure
from espnet_bayeslm.report.html_input import expecting, mapping, number, read_json
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.plots import svg
from espnet_bayeslm.report.search import describe
from espnet_bayeslm.report.table import Table

SEARCH, RETRAINED = "search.json", "retrain.json"
REMEDY = "Make it with `bayeslm search --exp DIR`."


class Search(NamedTuple):
    """What `bayeslm search` wrote.

    Attributes:
        runs: Run -> its architecture weights at the end.
        history: Run -> the weights over the training, where they were written down.
        ranking: The best architectures.
        num_architectures: How many there are.
        retrained: Rank -> perplexity of the architecture trained by itself, where it was.
    """

    runs: Dict[str, ArchitectureWeights]
    history: Dict[str, Sequence[Record]]
    ranking: List[Mapping[str, Any]]
    num_architectures: int
    retrained: Dict[int, float]


def read_search(folder: str) -> Search:
    """Search of a folder.

    Raises:
        InputError: A file is missing or not usable.
    """
    path = Path(folder) / SEARCH
    content = read_json(path, remedy=REMEDY)
    with expecting("architecture weights and a ranking", path=path, remedy=REMEDY):
        runs = {str(run["name"]): _weights(run["weights"]) for run in content["runs"]}
        if not runs:
            raise ValueError("there is no run")
        for weights in runs.values():
            shares(weights)
        if len({str(_names(weights)) for weights in runs.values()}) > 1:
            raise ValueError("the runs have different locations or kinds")
        ranking = [_ranked(item) for item in content["ranking"]]
        total = int(number(content["num_architectures"]))
        places = {str(run["name"]): Path(str(run["path"])) for run in content["runs"]}
    history = {name: _history(Path(folder), place) for name, place in places.items()}
    known = {name: records for name, records in history.items() if records}
    return Search(runs, known, ranking, total, _retrained(Path(folder) / RETRAINED))


def _weights(content: Any) -> ArchitectureWeights:
    """{location: {kind: weight}}; null is minus infinity, which JSON has not."""
    return {
        location: {
            kind: -math.inf if value is None else number(value)
            for kind, value in mapping(kinds).items()
        }
        for location, kinds in mapping(content).items()
    }


def _names(weights: ArchitectureWeights) -> List[Any]:
    return [(location, list(kinds)) for location, kinds in weights.items()]


def _ranked(item: Any) -> Mapping[str, Any]:
    """Architecture of the ranking with what the table shows of it."""
    number(item["rank"])
    number(item["probability"])
    describe(item["choices"])
    if not isinstance(item["ranks"], list):
        raise ValueError("no ranks of the runs")
    return mapping(item)


def _history(folder: Path, run: Path) -> Sequence[Record]:
    """Weights over a run's training; the folder may have been moved."""
    for path in (folder / run.name / HISTORY, run / HISTORY):
        if path.is_file():
            return read_history(path)
    return []


def _retrained(path: Path) -> Dict[int, float]:
    if not path.exists():
        return {}
    content = read_json(path, remedy=REMEDY)
    with expecting("trained architectures", path=path, remedy=REMEDY):
        return {int(number(row["rank"])): number(row["valid_ppl"]) for row in content}


def search_section(searches: Mapping[str, Search]) -> Optional[Section]:
    """Figures and tables of searches; None where there is none."""
    if not searches:
        return None
    parts = []
    for name, search in searches.items():
        figures = [svg(weights_figure(search.runs), f"Share of each kind by location: {name}")]
        if search.history:
            drawn = history_figure(search.history)
            figures.append(svg(drawn, f"Shares over the training: {name}"))
        parts.append({"name": name, "figures": figures, "ranking": ranking_table(search, name)})
    return Section("search", "Architecture weights", {"searches": parts})


def ranking_table(search: Search, name: str) -> Table:
    """Best architectures."""
    header = ["rank", "uncertain", "probability", "rank in each run"]
    header += ["valid ppl, trained by itself"] if search.retrained else []
    rows = []
    for item in search.ranking:
        ranks = ", ".join("–" if rank is None else f"{rank}" for rank in item["ranks"])
        row = [f"{item['rank']}", describe(item["choices"]), f"{item['probability']:.3g}", ranks]
        if search.retrained:
            row.append(perplexity_text(search.retrained.get(item["rank"])))
        rows.append(row)
    caption = f"The best of {search.num_architectures} architectures: {name}"
    return Table(caption, header, rows, words=(1,))

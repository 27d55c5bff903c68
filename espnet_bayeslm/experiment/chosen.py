"""Which uncertain line stands for its backbone, and which systems it has to be compared with."""

from __future__ import annotations

from typing import Any, List, Optional

from espnet_bayeslm.configs.tables import UNCERTAIN
from espnet_bayeslm.experiment.outputs import Json
from espnet_bayeslm.experiment.plan import ALONE, POINT, backbone


def best_line(content: Json, lm: str) -> Optional[Json]:
    """Chosen line of a backbone; None where no uncertain line was evaluated."""
    dev = content["sets"][0]
    found = []
    for line in content["lines"]:
        if line["lm"] != lm or line["kind"] not in UNCERTAIN or is_point(content, line):
            continue
        values = [value[dev]["ppl"] for value in _perplexities(content, line["systems"][POINT])]
        if values:
            # those of the most seeds first: a mean of fewer is not comparable
            found.append((-len(values), sum(values) / len(values), line["number"], line))
    return min(found, key=lambda item: item[:3])[3] if found else None


def is_point(content: Json, line: Json) -> bool:
    """Whether the search left an uncertain line no uncertain location at any seed."""
    lms = [run["lms"].get(line["name"]) for run in content["runs"] if run["study"] == "all"]
    found = [lm["uncertainty"] for lm in lms if lm]
    return bool(found) and all(value == {} for value in found)


def _perplexities(content: Json, system: str) -> List[Any]:
    runs = [run["systems"].get(system) for run in content["runs"] if run["study"] == "all"]
    return [run["perplexity"] for run in runs if run and run["perplexity"]]


def control_systems(content: Json, run: Json, lm: str) -> List[str]:
    """Backbone's systems without an uncertain LM that is of the paper's families."""
    found = []
    for line in content["lines"]:
        if line["lm"] == lm and line["kind"] not in UNCERTAIN:
            found += [name for role, name in line["systems"].items() if role != ALONE]
    mixtures = [name for name in run["controls"] if backbone(name.split("+")[0]) == lm]
    return [name for name in [*found, *mixtures] if name in run["systems"]]

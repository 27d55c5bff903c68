"""Options that name files for each condition: references, outputs of systems, N-best lists."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Sequence, Tuple

from espnet_bayeslm.report.inputs import Repeated, labelled_paths
from espnet_bayeslm.utils.errors import InputError

# The condition of a --ref that gives none.
UNNAMED = ""


@dataclasses.dataclass(frozen=True)
class ConditionFiles:
    """The files of one condition, such as one microphone."""

    name: str
    ref: str
    hyps: Dict[str, str]
    nbest: Optional[str]


def condition_files(ref: Repeated, hyp: Repeated, nbest: Repeated) -> List[ConditionFiles]:
    """Files of each condition, in the order of the references.

    Args:
        ref: TEXT, or CONDITION=TEXT for each condition.
        hyp: NAME=TEXT, or NAME:CONDITION=TEXT for each system and condition.
        nbest: DIR, or CONDITION=DIR for each condition.
    """
    refs = _by_condition("--ref", ref)
    if not refs:
        raise InputError("no references", remedy="Give --ref TEXT.")
    systems = _by_system(hyp, list(refs))
    lists = _by_condition("--nbest", nbest)
    if list(lists) == [UNNAMED] and len(refs) == 1:
        lists = {next(iter(refs)): lists[UNNAMED]}
    if not systems and not lists:
        raise InputError("nothing to score", remedy="Give --hyp NAME=TEXT or --nbest DIR.")
    for name, paths in systems.items():
        _check_complete(f"--hyp {name}:", paths, refs)
    if lists:
        _check_complete("--nbest ", lists, refs)
    return [
        ConditionFiles(
            condition,
            path,
            {name: paths[condition] for name, paths in systems.items()},
            lists.get(condition),
        )
        for condition, path in refs.items()
    ]


def _by_condition(option: str, values: Repeated) -> Dict[str, str]:
    """{condition: path}; a path by itself belongs to the condition `UNNAMED`."""
    paths: Dict[str, str] = {}
    for condition, path in labelled_paths(option, values, "CONDITION"):
        if condition in paths or (paths and UNNAMED in {condition, *paths}):
            raise InputError(
                f"{option} {path}",
                remedy=f"Of several, give {option} CONDITION=PATH, each with its own CONDITION.",
            )
        paths[condition] = path
    return paths


def _by_system(values: Repeated, conditions: Sequence[str]) -> Dict[str, Dict[str, str]]:
    """{system: {condition: path}}."""
    systems: Dict[str, Dict[str, str]] = {}
    for value in [values] if isinstance(values, str) else values or []:
        label, _, path = value.partition("=")
        name, condition = _split_label(label, conditions)
        if not name or not path or condition in systems.get(name, {}):
            several = "" if len(conditions) == 1 else ":CONDITION"
            raise InputError(
                f"--hyp {value}", remedy=f"Give NAME{several}=TEXT, each with its own NAME."
            )
        systems.setdefault(name, {})[condition] = path
    return systems


def _split_label(label: str, conditions: Sequence[str]) -> Tuple[str, str]:
    """System and the condition of NAME:CONDITION, or of NAME alone if there is one."""
    name, separator, condition = label.rpartition(":")
    if separator and condition in conditions and condition != UNNAMED:
        return name, condition
    if len(conditions) == 1:
        return label, conditions[0]
    raise InputError(
        f"--hyp {label}: no condition of --ref ({', '.join(conditions)})",
        remedy="Give NAME:CONDITION=TEXT.",
    )


def _check_complete(option: str, given: Dict[str, str], refs: Dict[str, str]) -> None:
    """Check that there is a path for every condition, and no other."""
    unknown = [condition for condition in given if condition not in refs]
    missing = [condition for condition in refs if condition not in given]
    if unknown or missing:
        first = (unknown or missing)[0]
        problem = "has no --ref" if unknown else "is missing"
        raise InputError(
            f"{option}{first}{'=...' if first else ''} {problem}",
            remedy="Every system needs an output in every condition, and N-best lists likewise.",
        )

"""Outputs of `bayeslm rescore` and how their errors were counted: read, put together, compared."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Dict, Mapping, Optional, Sequence, Union

from espnet_bayeslm.evaluation.wer import Counted
from espnet_bayeslm.report.inputs import expecting, typed
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_mapping
from espnet_bayeslm.utils.log import LOG

SCALES = "scales.yaml"
REMEDY = "Write the folder anew with `bayeslm rescore`."
# Field of `Counted` that rates only compare with if it is the same -> its name, its option
COMPARED = {
    "unit": ("unit", "--unit"),
    "normalize": ("normalisation", "--normalize"),
    "ignored": ("ignored words", "--ignore_words"),
}


def read_counted(path: PathLike) -> Optional[Counted]:
    """Facts of how the errors of an output of `bayeslm rescore` were counted; None: not known."""
    beside = Path(path).parent / SCALES
    try:
        content = read_yaml_mapping(beside) if beside.is_file() else {}
    except InputError:  # of another program
        return None
    files = content.get("files")
    if "counted" not in content or not isinstance(files, list) or Path(path).name not in files:
        return None
    with expecting("how errors were counted (`counted`)", path=beside, remedy=REMEDY):
        counted: Counted = typed(Counted, content["counted"])
        return counted


def of_all_systems(counted: Counted, systems: Mapping[str, Counted]) -> Counted:
    """Facts of how the errors in a table of several systems are counted.

    Text forms and tuning are those of the systems. An LM with several forms is named with its
    system.
    """
    forms: Dict[str, str] = {}
    for system, found in systems.items():
        for lm, form in found.text_forms.items():
            forms[lm if forms.get(lm, form) == form else f"{system}: {lm}"] = form
    tuned_on = dict.fromkeys(f.tuned_on for f in systems.values() if f.tuned_on is not None)
    return dataclasses.replace(counted, text_forms=forms, tuned_on=", ".join(tuned_on) or None)


def warn_unless_alike(counts: Mapping[str, Counted]) -> None:
    """Warn of the first two systems, by name, whose error rates do not compare."""
    for (a, one), (b, other) in itertools.combinations(counts.items(), 2):
        pairs = {name: (getattr(one, name), getattr(other, name)) for name in COMPARED}
        differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if differing:
            LOG.warning(
                "%s and %s count errors differently: %s. Their error rates do not compare: give"
                " both the same %s",
                *(a, b),
                "; ".join(
                    f"{COMPARED[name][0]} {_shown(of_one)} and {_shown(of_other)}"
                    for name, (of_one, of_other) in differing.items()
                ),
                ", ".join(COMPARED[name][1] for name in differing),
            )
            return


def _shown(value: Union[str, Sequence[str]]) -> str:
    """Value of a field, for people."""
    return value if isinstance(value, str) else ",".join(value) or "none"

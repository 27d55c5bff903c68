"""Weights of a mixture's components as options give them: a file, or numbers with commas."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Union

import numpy as np

from espnet_bayeslm.pretrained.text_forms import TextForm
from espnet_bayeslm.scoring.word_scores import Component
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_as
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import check_weights


class NamedWeight(NamedTuple):
    """The weight of a component, as a file has it.

    Attributes:
        name: The component's name where the weights were estimated.
        weight: Weight of the component.
        fingerprint: Digest of the component's files then; empty where the file does not say.
        text_form: Form in which a pretrained LM read text then; empty for all other components.
    """

    name: str
    weight: float
    fingerprint: str = ""
    text_form: str = ""


class KeptForm(NamedTuple):
    """Form in which a pretrained LM read text where weights or scales were estimated.

    Attributes:
        source: The option that gives the weights or scales.
        name: The LM's name among the components of this run.
        form: Value of `--text_form`.
    """

    source: str
    name: str
    form: str


def checked_form(value: Any) -> str:
    """Form of the text that a file names, as `--text_form` has it; empty if it names none."""
    return str(TextForm.parse(value, "text_form")) if value else ""


def kept_forms(
    source: str, known: Sequence[NamedWeight], components: Sequence[Component]
) -> List[KeptForm]:
    """Forms of the text that belong to the pretrained LMs of some components.

    A form belongs to the component of the same files, else to the one of its name.
    """
    by_digest = {row.fingerprint: row.text_form for row in known if row.fingerprint}
    by_name = {row.name: row.text_form for row in known}
    kept = []
    for component in components:
        form = by_digest.get(component.fingerprint) or by_name.get(component.name)
        if form and component.pretrained is not None:
            kept.append(KeptForm(source, component.name, form))
    return kept


def warn_of_other_forms(kept: Sequence[KeptForm], forms: Mapping[str, str]) -> None:
    """Warn of each LM that reads text in another form than the one that is kept."""
    for row in kept:
        if row.name in forms and forms[row.name] != row.form:
            LOG.warning(
                f"{row.name}: it reads text by --text_form {forms[row.name]}, and {row.source} was"
                f" made with --text_form {row.form}: leave out --text_form, or estimate"
                f" {row.source} again"
            )


def check_subtracted(weights: Sequence[NamedWeight]) -> None:
    """Raise an InputError where the weight of a subtracted LM is above zero, or not finite."""
    for row in weights:
        if not -math.inf < row.weight <= 0:
            raise InputError(
                f"the weight of the subtracted LM {row.name} is {row.weight:g}, and a number at or"
                " below zero was expected",
                remedy="Give an LM that is to be added by --lm or --ngram.",
            )


def match_weights(
    known: Sequence[NamedWeight], names: Sequence[str], fingerprints: Sequence[str] = ()
) -> List[float]:
    """Weights in the order of some components.

    A weight belongs to the component of the same files (of an equal fingerprint), else to the only
    one of its name.
    """
    rest = list(known)
    weight_of: Dict[int, float] = {}
    for index, fingerprint in enumerate(fingerprints):
        same = next((row for row in rest if fingerprint and row.fingerprint == fingerprint), None)
        if same is not None:
            weight_of[index] = same.weight
            rest.remove(same)
    # without the numbers of equal names
    missing = {n: re.sub(r"#\d+$", "", name) for n, name in enumerate(names) if n not in weight_of}
    rows = {re.sub(r"#\d+$", "", row.name): row for row in rest}
    if len(rest) != len(missing) or set(rows) != set(missing.values()):
        raise InputError(
            f"has weights for {', '.join(row.name for row in known)}, but the components are"
            f" {', '.join(names)}",
            remedy="Give the --lm and --ngram with which the weights were estimated.",
        )
    if len(rows) < len(rest):
        twice = Counter(missing.values()).most_common(1)[0][0]
        raise InputError(
            f"several components are named {twice}, and their files do not tell which weight"
            " is whose",
            remedy="Estimate the weights again, or give them as W,W,... in the order of the"
            " components.",
        )
    for index, name in missing.items():
        weight_of[index] = rows[name].weight
        if rows[name].fingerprint and any(fingerprints):
            LOG.warning(f"{name}: its weight was estimated with another file of this name")
    return [weight_of[index] for index in range(len(names))]


def read_named_weights(path: PathLike) -> List[NamedWeight]:
    """Weights of components, with their names, from a file of `bayeslm interpolate`."""
    return read_yaml_as(
        path,
        _named_weights,
        problem="not a weights file",
        remedy="Make it with `bayeslm interpolate`.",
    )


def _named_weights(content: Mapping[str, Any]) -> List[NamedWeight]:
    """Weights from the content of a yaml file."""
    return [
        NamedWeight(
            str(row["name"]),
            float(row["weight"]),
            str(row.get("fingerprint", "")),
            checked_form(row.get("text_form")),
        )
        for row in content["components"]
    ]


def forms_of_weights(
    weights: Union[PathLike, Sequence[float], None], components: Sequence[Component]
) -> List[KeptForm]:
    """Forms of the text of pretrained LMs among some components that a file of weights keeps."""
    if not isinstance(weights, (str, os.PathLike)) or not Path(weights).is_file():
        return []
    return kept_forms("--weights", read_named_weights(weights), components)


def read_weights(
    weights: Union[PathLike, Sequence[float], None],
    names: Sequence[str],
    *,
    fingerprints: Sequence[str] = (),
) -> np.ndarray:
    """Weights of the components, (K,).

    They come from a file of `bayeslm interpolate`, from `W,W,..` or numbers, or are 1 for a single
    component.
    """
    if weights is None and len(names) > 1:
        raise InputError(
            f"{len(names)} components and no --weights",
            remedy="Estimate them with `bayeslm interpolate`.",
        )
    if weights is None:
        return np.ones(1)
    if isinstance(weights, (str, os.PathLike)) and Path(weights).is_file():
        known = read_named_weights(weights)
        try:
            return check_weights(match_weights(known, names, fingerprints), len(names))
        except InputError as error:
            raise InputError(str(error), path=weights) from None
    if isinstance(weights, (str, os.PathLike)):
        try:
            weights = [float(value) for value in str(weights).split(",")]
        except ValueError:
            raise InputError(
                f"--weights {weights}: neither a file nor numbers with commas",
                remedy="Give the weights.yaml of `bayeslm interpolate`, or W,W,...",
            ) from None
    return check_weights(weights, len(names))

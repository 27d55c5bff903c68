"""Weights of a mixture's components as options give them: a file, or numbers with commas."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, List, Mapping, Sequence, Tuple, Union

import numpy as np

from espnet_bayeslm.mixture.facts import ComponentFacts, checked_form, match_weights
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_as
from espnet_bayeslm.utils.options import check_weights

Weights = Union[PathLike, Sequence[float], None]
"""A file of weights, `W,W,..` or numbers, or nothing."""


def read_weights_file(path: PathLike) -> List[ComponentFacts]:
    """Components and their weights, from a file of `bayeslm interpolate`."""
    return read_yaml_as(
        path,
        _rows,
        problem="not a weights file",
        remedy="Make it with `bayeslm interpolate`.",
    )


def _rows(content: Mapping[str, Any]) -> List[ComponentFacts]:
    """Components from the content of a yaml file."""
    return [
        ComponentFacts(
            str(row["name"]),
            float(row["weight"]),
            str(row.get("fingerprint", "")),
            checked_form(row.get("text_form")),
        )
        for row in content["components"]
    ]


def read_weights(
    weights: Weights, names: Sequence[str], *, fingerprints: Sequence[str] = ()
) -> Tuple[np.ndarray, Sequence[ComponentFacts]]:
    """Weights of the components, (K,), and what their file holds, if they are in one.

    They come from a file of `bayeslm interpolate`, from `W,W,..` or numbers, or are 1 for a single
    component.
    """
    if weights is None and len(names) > 1:
        raise InputError(
            f"no --weights for the {len(names)} components {', '.join(names)}",
            remedy="Estimate them with `bayeslm interpolate`, and give its file.",
        )
    if weights is None:
        return np.ones(1), ()
    if isinstance(weights, (str, os.PathLike)) and Path(weights).is_file():
        known = read_weights_file(weights)
        try:
            found = check_weights(match_weights(known, names, fingerprints), len(names))
        except InputError as error:
            raise InputError(str(error), path=weights) from None
        return found, known
    if isinstance(weights, (str, os.PathLike)):
        try:
            weights = [float(value) for value in str(weights).split(",")]
        except ValueError:
            raise InputError(
                f"--weights {weights}: neither a file nor numbers with commas",
                remedy="Give the weights.yaml of `bayeslm interpolate`, or W,W,...",
            ) from None
    return check_weights(weights, len(names)), ()


def check_subtracted(weights: Mapping[str, float]) -> None:
    """Raise an InputError where the weight of a subtracted LM is above zero, or not finite."""
    for name, weight in weights.items():
        if not -math.inf < weight <= 0:
            raise InputError(
                f"the weight of the subtracted LM {name} is {weight:g}, and a number at or"
                " below zero was expected",
                remedy="Give an LM that is to be added by --lm or --ngram.",
            )


def subtracted_weights(
    lms: Sequence[ComponentFacts],
    known: Sequence[ComponentFacts],
    given: Sequence[float],
    *,
    tunes: bool = False,
) -> List[float]:
    """Weight of each subtracted LM: as given, in their order, or as known from a tuning.

    With `tunes` they are yet to be found, and zero.
    """
    used = [row.name for row in known if row.weight]
    problem = remedy = ""
    if tunes and given:
        problem = "--subtract_weight where scales are tuned"
        remedy = "Leave it out to tune the weight, or give --lmwt or --scales."
    elif given and len(given) != len(lms):
        problem = f"{len(given)} --subtract_weight for {len(lms)} --subtract_lm"
        remedy = "Give a weight at or below zero for each --subtract_lm."
    elif used and not lms and not tunes:
        problem = f"--scales were tuned with the subtracted LM {used[0]}, and there is none"
        remedy = "Give it by --subtract_lm."
    elif lms and not (given or known or tunes):
        problem = f"no weight of the subtracted LM {lms[0].name}"
        remedy = "Tune it (`bayeslm rescore --tune_ref`), and give its --scales or"
        remedy += " --subtract_weight."
    if problem:
        raise InputError(problem, remedy=remedy)
    if not lms or tunes:
        return [0.0] * len(lms)
    names, digests = [row.name for row in lms], [row.fingerprint for row in lms]
    try:
        values = list(given or match_weights(known, names, digests))
    except InputError as error:
        raise InputError(f"--scales, subtracted LMs: {error}") from None
    check_subtracted(dict(zip(names, values, strict=True)))
    return values

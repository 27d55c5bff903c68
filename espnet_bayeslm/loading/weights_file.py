"""Weights of a mixture's components as options give them: a file, or numbers with commas."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_mapping
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.weights import check_weights


def unique_names(names: Sequence[str]) -> List[str]:
    """Names of components in a weights file: equal ones are numbered."""
    seen: Counter = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return unique


class NamedWeight(NamedTuple):
    """The weight of a component, as a file has it.

    Attributes:
        name: The component's name where the weights were estimated.
        weight: Weight of the component.
        fingerprint: Digest of the component's files then; empty where the file does not say.
    """

    name: str
    weight: float
    fingerprint: str = ""


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
    found: Dict[int, float] = {}
    for index, fingerprint in enumerate(fingerprints):
        same = next((row for row in rest if fingerprint and row.fingerprint == fingerprint), None)
        if same is not None:
            found[index] = same.weight
            rest.remove(same)
    # without the numbers of equal names
    missing = {n: re.sub(r"#\d+$", "", name) for n, name in enumerate(names) if n not in found}
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
        found[index] = rows[name].weight
        if rows[name].fingerprint and any(fingerprints):
            LOG.warning(f"{name}: its weight was estimated with another file of this name")
    return [found[index] for index in range(len(names))]


def read_weights(
    weights: Union[PathLike, Sequence[float], None],
    names: Sequence[str],
    *,
    fingerprints: Sequence[str] = (),
) -> Optional[np.ndarray]:
    """Weights of the components, (K,), or None where several components have none.

    They come from a file of `bayeslm interpolate`, from `W,W,..` or numbers, or are 1 for a single
    component.
    """
    if weights is None:
        return np.ones(1) if len(names) == 1 else None
    if isinstance(weights, (str, os.PathLike)) and Path(weights).is_file():
        try:
            known = [
                NamedWeight(str(c["name"]), float(c["weight"]), str(c.get("fingerprint", "")))
                for c in read_yaml_mapping(weights)["components"]
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"not a weights file ({error!r})",
                path=weights,
                remedy="Make it with `bayeslm interpolate`.",
            ) from error
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

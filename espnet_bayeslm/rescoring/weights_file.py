"""Weights of a mixture's components as options give them: a file, or numbers with commas."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import numpy as np
import yaml

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.weights import check_weights


def unique_names(names: Sequence[str]) -> List[str]:
    """Return the names by which a weights file goes: equal ones are numbered."""
    seen: Counter = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return unique


def read_weights(
    weights: Optional[str], names: Sequence[str], *, check: bool = True
) -> Optional[np.ndarray]:
    """Return the components' weights: of a file, of a list `W,W,..`, or 1 for a single one.

    Args:
        weights: A file that `bayeslm interpolate` wrote, numbers with commas, or None.
        names: The components' names, each different.
        check: Whether numbers with commas must be those of a linear mixture.

    Returns:
        (K,), or None where several components have none.

    Raises:
        InputError: The weights do not fit the components.
    """
    if weights is None:
        return np.ones(1) if len(names) == 1 else None
    if Path(weights).is_file():
        return _weights_of_file(Path(weights), names)
    try:
        values = [float(value) for value in str(weights).split(",")]
    except ValueError:
        raise InputError(
            f"--weights {weights}: neither a file nor numbers with commas",
            remedy="Give the weights.yaml of `bayeslm interpolate`, or W,W,...",
        ) from None
    return check_weights(values, len(names)) if check else np.array(values)


def _weights_of_file(path: Path, names: Sequence[str]) -> np.ndarray:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        known: Dict[str, float] = {c["name"]: float(c["weight"]) for c in content["components"]}
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"not a weights file ({error!r})",
            path=path,
            remedy="Make it with `bayeslm interpolate`.",
        ) from error
    if set(known) != set(names):
        raise InputError(
            f"has weights for {', '.join(known)}, but the components are {', '.join(names)}",
            path=path,
            remedy="Give the same --lm and --ngram as to `bayeslm interpolate`.",
        )
    try:
        return check_weights([known[name] for name in names], len(names))
    except InputError as error:
        raise InputError(str(error), path=path) from None

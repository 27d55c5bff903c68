"""Weights of a linear mixture."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from espnet_bayeslm.utils.errors import InputError


def check_weights(weights: ArrayLike, num_components: int) -> np.ndarray:
    """Weights of a mixture's components, (K,), checked and scaled to the sum 1."""
    values = np.asarray(weights, dtype=np.float64)
    problem = ""
    if values.shape != (num_components,):
        problem = f"{values.size} weights for {num_components} components"
    elif not np.isfinite(values).all() or (values < 0).any():
        problem = f"weights {values.tolist()} where numbers from 0 to 1 were expected"
    elif abs(values.sum() - 1) > 1e-3:
        problem = f"weights {values.tolist()} with the sum {values.sum():.4f}, not 1"
    if problem:
        raise InputError(problem, remedy="Estimate them with `bayeslm interpolate`.")
    return values / values.sum()

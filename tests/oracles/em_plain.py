"""Mixture weights, the slow and obvious way."""

import math

import numpy as np
from scipy.optimize import minimize


def log_likelihood(log_probs, weights):
    """Return sum_t ln sum_k w_k p_tk, word by word, with Python's own numbers."""
    total = 0.0
    for row in log_probs:
        p = sum(w * math.exp(value) for w, value in zip(weights, row, strict=True))
        total += math.log(p) if p > 0 else -math.inf
    return total


def plain_em(log_probs, *, num_steps=200_000, tol=1e-13):
    """Return the weights at which expectation-maximisation alone comes to rest."""
    probs = np.exp(np.asarray(log_probs, dtype=float))
    weights = np.full(probs.shape[1], 1 / probs.shape[1])
    for _ in range(num_steps):
        posterior = probs * weights
        posterior /= posterior.sum(axis=1, keepdims=True)
        updated = posterior.mean(axis=0)
        if np.abs(updated - weights).max() < tol:
            break
        weights = updated
    return weights


def scipy_optimum(log_probs):
    """Return the weights that a general optimiser finds on the simplex."""
    probs = np.exp(np.asarray(log_probs, dtype=float))
    num_components = probs.shape[1]
    result = minimize(
        lambda w: -np.log(np.maximum(probs @ w, 1e-300)).mean(),
        np.full(num_components, 1 / num_components),
        jac=lambda w: -(probs / np.maximum(probs @ w, 1e-300)[:, None]).mean(axis=0),
        bounds=[(0, 1)] * num_components,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return result.x

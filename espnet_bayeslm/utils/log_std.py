"""The range of log standard deviations."""

from __future__ import annotations

import math
from typing import Any

import torch

from espnet_bayeslm.utils.errors import InputError

# exp(-20) = 2e-9 counts as certain; exp(4) is beyond any useful weight.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 4.0
LEAST_START, MOST_START = math.exp(LOG_STD_MIN), math.exp(LOG_STD_MAX)


def clamp_log_std(log_std: torch.Tensor) -> torch.Tensor:
    """Log standard deviations within their range."""
    return log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def check_spread(spread: float, location: str) -> None:
    """Check that the standard deviation of a location's weights is one of a trained LM's."""
    if not spread <= math.exp(LOG_STD_MAX):
        raise InputError(
            f"the weights of {location} have a spread of {spread:.3g}: their training diverged",
            remedy="Train again from the start with a lower learning rate (optim_conf lr), or set"
            " grad_clip.",
        )


def start_error(std: Any, location: str) -> InputError:
    """Error of a standard deviation that training starts from, and which would get no gradient."""
    return InputError(
        f"init_std of {location}: expected a start between {LEAST_START:.2g} and"
        f" {MOST_START:.3g}, got {std!r}, which no training would change",
        remedy="For weights that are not random leave the location out.",
    )

"""Version of the ESPnet that is installed."""

from __future__ import annotations

from espnet_bayeslm.utils.errors import InputError

OLDEST = "202412"
"""Oldest ESPnet that `make test-espnet` tests."""


def check_espnet() -> None:
    """Check that ESPnet is there, and new enough.

    Raises:
        InputError: ESPnet is missing, or older than `OLDEST`.
    """
    remedy = f"Run: pip install 'espnet>={OLDEST}'"
    try:
        from espnet2 import __version__ as version
    except ImportError:
        raise InputError("ESPnet is not installed", remedy=remedy) from None
    # years and months; before them 0.10.6
    if version.startswith("0.") or (version[:6].isdigit() and version[:6] < OLDEST):
        raise InputError(
            f"ESPnet {version} is too old: {OLDEST} or newer was expected", remedy=remedy
        )

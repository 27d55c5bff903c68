"""Versions of Python and ESPnet that work, and differences between ESPnets."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from typing import Callable, Mapping, Sequence, Union

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from espnet_bayeslm.utils.errors import InputError

OLDEST = "202412"
"""Oldest ESPnet that `make test-espnet` tests."""
PYTHONS = ("3.10", "3.13")
"""Oldest and newest Python, as setup.cfg has them."""


def check_espnet() -> None:
    """Raise an InputError where Python or ESPnet is too old or too new, or ESPnet is missing."""
    python = platform.python_version()
    oldest, newest = (Version(version).release for version in PYTHONS)
    if not oldest <= Version(python).release[:2] <= newest:
        raise InputError(
            f"Python {python} does not work: Python {' to '.join(PYTHONS)} was expected",
            remedy=f"Install this package and ESPnet in an environment of Python {PYTHONS[1]}.",
        )
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
    needed = _python_of_espnet()
    if not SpecifierSet(needed).contains(python, prereleases=True):
        raise InputError(
            f"ESPnet {version} does not work with Python {python}: it needs Python {needed}",
            remedy="Install ESPnet in an environment of that Python, or an ESPnet for this one:"
            " pip install --force-reinstall espnet",
        )


def _python_of_espnet() -> str:
    """Pythons that the installed ESPnet says it needs; empty where it says nothing."""
    try:
        metadata = importlib.metadata.metadata("espnet")
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path
        return ""
    return (metadata.get_all("Requires-Python") or [""])[0]


def text_cleaner(cleaner: Union[str, Sequence[str], None]) -> Callable[[str], str]:
    """ESPnet's text cleaner, if everything is installed that it needs.

    ESPnet 202609 and newer do not install it, and say so at the first sentence.
    """
    from espnet2.text.cleaner import TextCleaner

    try:
        clean = TextCleaner(cleaner)
        clean("a")
    except (RuntimeError, ImportError) as error:
        raise InputError(f"--cleaner {cleaner} cannot be used ({error})") from error
    return clean


def epoch_seconds(time: Union[datetime.timedelta, Mapping[str, float]]) -> float:
    """Seconds that an epoch took, from the `time` of a checkpoint's reporter.

    ESPnet 202609 and newer write `{"__timedelta_seconds__": SECONDS}`.
    """
    if isinstance(time, datetime.timedelta):
        return time.total_seconds()
    (seconds,) = time.values()
    return seconds

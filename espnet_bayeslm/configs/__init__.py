"""The training configurations that are shipped, found by name."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Dict, Union

from espnet_bayeslm.utils.errors import InputError

FOLDER = Path(__file__).parent


def shipped() -> Dict[str, Path]:
    """Shipped configurations, {name: file}, ordered by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def find_config(config: Union[str, Path]) -> Path:
    """File of a configuration: a file of the user's, else the shipped one of that name.

    Args:
        config: A path, or a name as `bayeslm configs` lists it, with or without `.yaml`.

    Raises:
        InputError: There is neither.
    """
    path = Path(config)
    if path.is_file():
        return path
    known = shipped()
    # conf/NAME.yaml is how recipes and the documentation call a shipped one
    named = path.parent in (Path(), Path("conf"))
    if named and path.suffix in ("", ".yaml") and path.stem in known:
        return known[path.stem]
    near = difflib.get_close_matches(path.stem, known, n=3) or list(known)
    raise InputError(
        "cannot be read: no such file, and no shipped configuration of that name",
        path=path,
        remedy=f"Did you mean {', '.join(near)}? `bayeslm configs` lists them.",
    )


def describe(path: Path) -> str:
    """First sentence of a configuration's comment."""
    text = path.read_text(encoding="utf-8")
    comment = " ".join(
        line.removeprefix("#").strip() for line in text.split("\nlm: ")[0].splitlines()
    )
    return re.split(r"\. |: |:$", comment)[0].removesuffix(".")

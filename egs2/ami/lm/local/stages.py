"""What a stage needs of those before it."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from espnet_bayeslm.utils.errors import InputError


def need(files: Mapping[Path, int], what: str = "file") -> None:
    """Raise an InputError where a file is missing, which names the stage that makes it.

    Args:
        files: {file: stage}.
        what: What such a file is.
    """
    for path, stage in files.items():
        if not path.is_file():
            raise InputError(f"no such {what}", path=path, remedy=f"Run stage {stage} first.")

"""Training texts of LMs, in which test sentences are looked for."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any, Iterable, Sequence

from espnet_bayeslm.evaluation.leakage import warn_leakage
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import option

# `bayeslm train` keeps the training text in an experiment's folder, with keys
KEPT = Path("data") / "train.txt"
# A larger one is read only where --train_text names it: about 100 MB take a minute
LARGE = 300_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainTextOptions:
    """Training texts that are compared with the test text."""

    train_texts: Sequence[PathLike] = option(
        "Training text of an LM or n-gram, a sentence a line: a warning says how many test"
        " sentences stand in it (repeatable; that of an experiment of `bayeslm train` is known)",
        (),
        name="train_text",
    )

    def warn_leakage(
        self, lms: Sequence[Any], sentences: Iterable[Sequence[str]], *, what: str
    ) -> None:
        """Warn where test sentences, of a text `what`, stand in a training text.

        LMs that are no folders or checkpoints are passed over.
        """
        test = list(sentences)
        for path in self.train_texts:
            warn_leakage(test, path, what=what)
        paths = [Path(lm) for lm in lms if isinstance(lm, (str, os.PathLike))]
        known = ((path if path.is_dir() else path.parent) / KEPT for path in paths)
        for path in dict.fromkeys(path for path in known if path.is_file()):
            if path.stat().st_size > LARGE:
                logging.info("%s: too large to look for test sentences unasked", path)
                continue
            warn_leakage(test, path, what=what, keyed=True)

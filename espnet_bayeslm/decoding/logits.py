"""Logits of a CTC recogniser, frames x tokens for each utterance, from NumPy or Kaldi files."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, Iterator, Tuple

import numpy as np

from espnet_bayeslm.utils.errors import InputError, one_line
from espnet_bayeslm.utils.files import PathLike, read_keyed_lines

SUM_ERROR = 0.1
"""Rows of probabilities sum to one and so much, at most."""
EQUAL = 1e-6
"""Logits of a frame are alike that differ by so much of the largest one, at most."""
BAD_FILES = (
    *(OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, struct.error, zlib.error),
    *(AssertionError, RuntimeError, TypeError),  # of kaldiio
)
FORMS = (
    "Give an .npz with an array (frames, tokens) for each utterance, as"
    " numpy.savez(FILE, **{utterance: logits}), or an .ark or .scp of such matrices."
)


def read_logits(path: PathLike) -> Iterator[Tuple[str, np.ndarray]]:
    """Yield (utterance id, logits) of an .npz, an .ark or an .scp, in the order of the file."""
    file = Path(path)
    if not file.is_file():
        raise InputError("no such file of logits", path=path, remedy=FORMS)
    readers = {".npz": _npz, ".ark": _ark, ".scp": _scp}
    if file.suffix not in readers:
        expected = ", ".join(readers)
        raise InputError(f"one of {expected} was expected", path=path, remedy=FORMS)
    is_empty = True
    try:
        for utt, logits in readers[file.suffix](file):
            is_empty = False
            yield utt, logits
    except InputError:
        raise
    except BAD_FILES as error:
        reason = one_line(str(error))[:200] or type(error).__name__
        raise InputError(f"cannot be read ({reason})", path=path, remedy=FORMS) from error
    if is_empty:
        raise InputError("no utterance in it", path=path, remedy=FORMS)


def _npz(path: Path) -> Iterator[Tuple[str, np.ndarray]]:
    arrays = np.load(path, allow_pickle=False)
    if isinstance(arrays, np.ndarray):
        raise InputError("one array, without ids of utterances", path=path, remedy=FORMS)
    with arrays:
        for utt in arrays.files:
            yield utt, arrays[utt]


def _ark(path: Path) -> Iterator[Tuple[str, np.ndarray]]:
    import kaldiio

    yield from kaldiio.load_ark(str(path))


def _scp(path: Path) -> Iterator[Tuple[str, np.ndarray]]:
    import kaldiio

    for utt, (line, value) in read_keyed_lines(path).items():
        if not value or value.endswith("|"):
            problem, remedy = f"{value[:80]!r} is no archive", "Commands are not run: write files."
            raise InputError(problem, path=path, line=line, remedy=remedy)
        yield utt, kaldiio.load_mat(value)


def log_probs_of(logits: Any) -> np.ndarray:
    """Ln P of each token at each frame, (T, V) float64, of logits, ln P or probabilities.

    Args:
        logits: (T, V), of NumPy or torch. T is smaller afterwards where frames say nothing.
    """
    return heard_frames(logits)[0]


def heard_frames(logits: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Ln P of each token at each frame that says something, (T, V), and the frames' numbers, (T,).

    Logits are normalised, which leaves log-probabilities as they are. Rows of probabilities, none
    below zero and each with a sum of about 1 or less, are taken for such. Frames whose tokens are
    all alike, as of padding, say nothing: they are left out.

    Args:
        logits: (T, V), of NumPy or torch.
    """
    values = _checked(logits)
    top = values.max(axis=1, keepdims=True)
    says = (top - values.min(axis=1, keepdims=True) > EQUAL * np.abs(top))[:, 0]
    if not says.any():
        raise InputError(
            f"all tokens are alike in each of the {len(values)} frames, and one was expected to"
            " lead",
            remedy="Leave the utterance out, or look at the recogniser.",
        )
    values, top = values[says], top[says]
    if values.min() >= 0 and values.sum(axis=1).max() < 1 + SUM_ERROR:
        with np.errstate(divide="ignore"):
            values = np.log(values)
            top = values.max(axis=1, keepdims=True)
    sums = np.log(np.exp(values - top).sum(axis=1, keepdims=True))
    return values - top - sums, np.flatnonzero(says)


def _checked(logits: Any) -> np.ndarray:
    """Logits, (T, V) float64, of which each frame has a finite maximum."""
    if hasattr(logits, "detach"):
        logits = logits.detach().cpu().double().numpy()  # NumPy has no bfloat16
    try:
        values = np.asarray(logits)
    except ValueError:  # rows of unequal length
        values = np.array(None)
    problem = remedy = ""
    if values.dtype.kind not in "fiu" or values.ndim != 2:
        shape = "x".join(map(str, values.shape)) or "no"
        problem = (
            f"an array {shape} of {values.dtype}, and frames x tokens of numbers were expected"
        )
        remedy = "Write the utterances of a batch one by one, without padding."
    elif 0 in values.shape:
        problem = f"{len(values)} frames x {values.shape[1]} tokens: one or more were expected"
        remedy = "Leave the utterance out."
    if problem:
        raise InputError(f"the logits are {problem}", remedy=remedy)
    top = values.max(axis=1)  # NaN where a frame has one
    bad = np.flatnonzero(~np.isfinite(top))
    if len(bad):
        raise InputError(
            f"the largest logit of frame {bad[0]} is {top[bad[0]]}, and a finite number was"
            f" expected ({len(bad)} of {len(values)} frames are so)",
            remedy="Leave padding out, or look at the recogniser: float16 may have overflowed.",
        )
    return values.astype(np.float64)

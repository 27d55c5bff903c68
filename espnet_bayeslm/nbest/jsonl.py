"""N-best lists as JSON lines, one utterance each, which hold all that an `NBest` holds.

    {"utt": "u1", "hypotheses": [{"text": "a b", "am_score": -9.5, "lm_score": -4.2}], "ref": "a"}

Scores are natural logs. `lm_score`, `graph_score` and `ref` may be missing or null; `am_score`
may be missing from all hypotheses of an utterance, and is then 0.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
from pathlib import Path
from typing import IO, Any, Dict, Iterable, Iterator, List, Optional, Tuple, cast

from espnet_bayeslm.nbest.fields import (
    OPTIONAL,
    check_id,
    check_no_others,
    is_utf8,
    natural_order,
    words_line,
    writable,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, read_lines

PATTERN = r".*\.jsonl(\.gz)?"
"""Names that `read_jsonl` reads in a folder."""

DEFAULT_NAME = "nbest.jsonl"
SUFFIXES = (".jsonl", ".jsonl.gz")
KEYS = {"utt", "hypotheses", "ref"}
HYPOTHESIS_KEYS = {"text", "am_score", *OPTIONAL}


class _BadValue(ValueError):
    """What is wrong with a line; the message goes into an InputError."""


def read_jsonl(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.jsonl and *.jsonl.gz, in their order.

    Raises:
        InputError: A line that is not such JSON (file, line, remedy), or an id twice.
    """
    seen: Dict[str, Tuple[Path, int]] = {}
    for file in _jsonl_files(Path(path)):
        for number, line in read_lines(file):
            try:
                nbest = _parse(line)
            except _BadValue as error:
                raise InputError(
                    str(error),
                    path=file,
                    line=number,
                    remedy='Lines are {"utt": .., "hypotheses": [{"text": .., "am_score": ..,'
                    ' "lm_score": ..}, ..], "ref": ..}.',
                ) from error
            check_id(nbest.utt, path=file, line=number)
            if nbest.utt in seen:
                first, first_line = seen[nbest.utt]
                raise InputError(
                    f"the utterance {nbest.utt[:80]!r} stands already in {first}:{first_line}",
                    path=file,
                    line=number,
                    remedy="Utterance ids must be unique.",
                )
            seen[nbest.utt] = file, number
            yield nbest
    if not seen:
        raise InputError("no utterances", path=path, remedy="One JSON line for each is expected.")


def _jsonl_files(path: Path) -> List[Path]:
    """Return the files to read."""
    if not path.is_dir():
        return [path]
    names = [entry.name for entry in path.iterdir() if entry.name.endswith(SUFFIXES)]
    if not names:
        raise InputError("no *.jsonl in it", path=path)
    return [path / name for name in sorted(names, key=natural_order)]


def _parse(line: str) -> NBest:
    """Return the list of one line."""
    try:
        content = json.loads(
            line, object_pairs_hook=_unique, parse_constant=_refuse, parse_int=float
        )
    except json.JSONDecodeError as error:
        raise _BadValue(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise _BadValue("brackets within brackets without an end") from error
    _check_object(content, KEYS, "the line")
    utt, ref = content.get("utt"), content.get("ref")
    if not isinstance(utt, str):
        raise _BadValue(f"utt is {_shown(utt)}, and a string was expected")
    hypotheses = content.get("hypotheses")
    if not isinstance(hypotheses, list) or not hypotheses:
        raise _BadValue(f"hypotheses are {_shown(hypotheses)}, and a list was expected")
    for hyp in hypotheses:
        _check_object(hyp, HYPOTHESIS_KEYS, "a hypothesis")
    num_scored = sum(hyp.get("am_score") is not None for hyp in hypotheses)
    if num_scored not in (0, len(hypotheses)):
        raise _BadValue(f"{num_scored} of {len(hypotheses)} hypotheses have an am_score")
    words = None if ref is None else _words(ref, "ref")
    return NBest(utt, tuple(map(_hypothesis, hypotheses)), words)


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return a JSON object whose keys come once each."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise _BadValue("a key that comes twice in one object")
    return content


def _refuse(constant: str) -> None:
    """Refuse NaN and the infinities, which JSON does not have and Python reads."""
    raise _BadValue(f"{constant} is not a finite number")


def _check_object(content: Any, keys: Iterable[str], what: str) -> None:
    """Check that a JSON value is an object with no other keys: a misspelt one would be lost."""
    if not isinstance(content, dict):
        raise _BadValue(f"{what} is {_shown(content)}, and an object was expected")
    unknown = sorted(content.keys() - keys)
    if unknown:
        raise _BadValue(f"unknown key {unknown[0][:80]!r} (the keys are {', '.join(sorted(keys))})")


def _hypothesis(content: Dict[str, Any]) -> Hypothesis:
    """Return one hypothesis."""
    am_score, lm_score, graph_score = (_score(content, n) for n in ("am_score", *OPTIONAL))
    words = _words(content.get("text"), "text")
    return Hypothesis(words, 0.0 if am_score is None else am_score, lm_score, graph_score)


def _score(content: Dict[str, Any], name: str) -> Optional[float]:
    """Return a score, None where there is none."""
    value = content.get(name)
    if value is None:
        return None
    if not isinstance(value, float) or not math.isfinite(value):
        raise _BadValue(f"{name} is {_shown(value)}, and a finite number was expected")
    return value


def _words(text: Any, name: str) -> Tuple[str, ...]:
    """Return the words of a string."""
    if not isinstance(text, str) or not is_utf8(text):
        raise _BadValue(f"{name} is {_shown(text)}, and a string was expected")
    return tuple(text.split())


def _shown(value: Any) -> str:
    """Return a JSON value as an error shows it."""
    return "missing" if value is None else ascii(value)[:80]


def write_jsonl(nbests: Iterable[NBest], path: Path) -> None:
    """Write N-best lists as JSON lines; reading them gives the same lists.

    Args:
        nbests: The lists.
        path: The file where it ends in .jsonl or .jsonl.gz (gzipped), else the folder in which
            nbest.jsonl is written (made where it is missing).

    Raises:
        ValueError: A list that the format cannot hold, or other *.jsonl stand in the folder.
            Nothing is written then.
    """
    file = path if path.name.endswith(SUFFIXES) and not path.is_dir() else path / DEFAULT_NAME
    if file != path:
        check_no_others(path, PATTERN, written=(DEFAULT_NAME,))
    with atomic_write(file, "wb") as raw, _text_to(raw, zipped=file.suffix == ".gz") as f:
        for nbest in writable(nbests, format="jsonl", holds=(*OPTIONAL, "ref")):
            f.write(json.dumps(_as_json(nbest), ensure_ascii=False, allow_nan=False) + "\n")


@contextlib.contextmanager
def _text_to(raw: IO[bytes], *, zipped: bool) -> Iterator[IO[str]]:
    """Yield a stream of text into a stream of bytes."""
    with contextlib.ExitStack() as stack:
        if zipped:
            # No name and no time in it: equal lists give equal files
            packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)
            raw = cast(IO[bytes], stack.enter_context(packed))
        text = io.TextIOWrapper(raw, encoding="utf-8")
        try:
            yield text
        finally:
            text.detach()  # else it would close what is not its own


def _as_json(nbest: NBest) -> Dict[str, Any]:
    """Return the JSON object of a list."""
    hypotheses = []
    for hyp in nbest.hypotheses:
        scores = {name: getattr(hyp, name) for name in ("am_score", *OPTIONAL)}
        given = {name: score for name, score in scores.items() if score is not None}
        hypotheses.append({"text": words_line(hyp.words), **given})
    content: Dict[str, Any] = {"utt": nbest.utt, "hypotheses": hypotheses}
    return content if nbest.ref is None else {**content, "ref": words_line(nbest.ref)}

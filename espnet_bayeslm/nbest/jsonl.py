"""N-best lists as JSON lines, one utterance each, which hold all that an `NBest` holds.

    {"utt": "u1", "hypotheses": [{"text": "a b", "am_score": -9.5, "lm_score": -4.2}], "ref": "a"}

Scores are natural logs; each may be missing or null, `am_score` from all hypotheses of an
utterance or none. A total `score` stands for a missing `am_score`. A hypothesis may be a string.
Where all hypotheses have a `rank`, they are in its order. `speaker` and `ref` are optional, and
what has another key is kept and written again.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import logging
import math
from pathlib import Path
from typing import IO, Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union, cast

from espnet_bayeslm.nbest.fields import (
    SCORES,
    AddList,
    Writable,
    check_id,
    check_no_others,
    is_utf8,
    natural_order,
    words_line,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, read_lines

PATTERN = r".*\.jsonl(\.gz)?"
"""Names that `read_jsonl` reads in a folder."""

DEFAULT_NAME = "nbest.jsonl"
SUFFIXES = (".jsonl", ".jsonl.gz")
KEYS = ("utt", "hypotheses", "ref", "speaker")
HYPOTHESIS_KEYS = ("text", *SCORES)
READ_AS_OTHERS = {"score", "rank"}
# An integer of more digits is read as a float: a million digits would take hours
_MAX_DIGITS = 18


class _BadValue(ValueError):
    """What is wrong with a line; the message goes into an InputError."""


def read_jsonl(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.jsonl and *.jsonl.gz, in their order.

    Raises:
        InputError: A line that is not such JSON (file, line, remedy), or an id twice.
    """
    seen: Dict[str, Tuple[Path, int]] = {}
    kept: Set[str] = set()
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
            kept.update(nbest.extra, *(hyp.extra for hyp in nbest.hypotheses))
            yield nbest
    if not seen:
        raise InputError("no utterances", path=path, remedy="One JSON line for each is expected.")
    kept -= READ_AS_OTHERS
    if kept:  # among them may be a misspelt one
        logging.info("%s: kept, and not used: %s", path, ", ".join(sorted(kept))[:200])


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
            line, object_pairs_hook=_unique, parse_constant=_refuse, parse_int=_integer
        )
    except json.JSONDecodeError as error:
        raise _BadValue(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise _BadValue("brackets within brackets without an end") from error
    _check_object(content, "the line")
    utt, ref, speaker = (content.get(name) for name in ("utt", "ref", "speaker"))
    if not isinstance(utt, str):
        raise _BadValue(f"utt is {_shown(utt)}, and a string was expected")
    if not (speaker is None or (isinstance(speaker, str) and is_utf8(speaker))):
        raise _BadValue(f"speaker is {_shown(speaker)}, and a string was expected")
    hypotheses = content.get("hypotheses")
    if not isinstance(hypotheses, list) or not hypotheses:
        raise _BadValue(f"hypotheses are {_shown(hypotheses)}, and a list was expected")
    found = [_hypothesis(hyp) for hyp in _in_order(hypotheses)]
    num_scored = sum(hyp.am_score is not None for hyp in found)
    if num_scored not in (0, len(found)):
        raise _BadValue(f"{num_scored} of {len(found)} hypotheses have an am_score")
    words = None if ref is None else _words(ref, "ref")
    return NBest(utt, tuple(found), words, speaker, _without(content, KEYS))


def _in_order(hypotheses: List[Any]) -> List[Dict[str, Any]]:
    """Hypotheses as objects, the best first."""
    objects = [{"text": hyp} if isinstance(hyp, str) else hyp for hyp in hypotheses]
    for hyp in objects:
        _check_object(hyp, "a hypothesis")
    ranks = [hyp.get("rank") for hyp in objects]
    if any(type(rank) is not int for rank in ranks):
        return objects
    if len(set(ranks)) < len(ranks):
        raise _BadValue("two hypotheses of one rank")
    return sorted(objects, key=lambda hyp: hyp["rank"])


def _without(content: Dict[str, Any], keys: Iterable[str]) -> Dict[str, Any]:
    """Return what stands under other keys, if it can be written again."""
    others = {name: value for name, value in content.items() if name not in keys}
    try:
        _as_text(others).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise _BadValue(f"{_shown(others)} cannot be kept: {error}"[:200]) from error
    return others


def _integer(digits: str) -> Union[int, float]:
    """Return the number of a JSON integer."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return a JSON object whose keys come once each."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise _BadValue("a key that comes twice in one object")
    return content


def _refuse(constant: str) -> None:
    """Refuse NaN and the infinities, which JSON does not have and Python reads."""
    raise _BadValue(f"{constant} is not a finite number")


def _check_object(content: Any, what: str) -> None:
    """Check that a JSON value is an object that can be written again."""
    if not isinstance(content, dict):
        raise _BadValue(f"{what} is {_shown(content)}, and an object was expected")


def _hypothesis(content: Dict[str, Any]) -> Hypothesis:
    """Return one hypothesis."""
    am_score, lm_score, graph_score = (_score(content, name) for name in SCORES)
    if am_score is None:
        am_score = _score(content, "score")
    words = _words(content.get("text"), "text")
    extra = _without(content, HYPOTHESIS_KEYS)
    return Hypothesis(words, am_score, lm_score, graph_score, extra)


def _score(content: Dict[str, Any], name: str) -> Optional[float]:
    """Return a score, None where there is none."""
    value = content.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _BadValue(f"{name} is {_shown(value)}, and a finite number was expected")
    return float(value)


def _words(text: Any, name: str) -> Tuple[str, ...]:
    """Return the words of a string."""
    if not isinstance(text, str) or not is_utf8(text):
        raise _BadValue(f"{name} is {_shown(text)}, and a string was expected")
    return tuple(text.split())


def _shown(value: Any) -> str:
    """Return a JSON value as an error shows it."""
    return "missing" if value is None else ascii(value)[:80]


@contextlib.contextmanager
def jsonl_writer(path: Path) -> Iterator[AddList]:
    """Write JSON lines, list by list; reading them gives the same lists.

    Args:
        path: The file where it ends in .jsonl or .jsonl.gz (gzipped), else the folder in which
            nbest.jsonl is written (made where it is missing).

    Yields:
        What adds a list.

    Raises:
        ValueError: A list that the format cannot hold, or other *.jsonl stand in the folder.
            Nothing is written then.
    """
    known = Writable("jsonl", holds=(*SCORES, "ref"))
    file = path if path.name.endswith(SUFFIXES) and not path.is_dir() else path / DEFAULT_NAME
    if file != path:
        check_no_others(path, PATTERN, written=(DEFAULT_NAME,))
    with atomic_write(file, "wb") as raw, _text_to(raw, zipped=file.suffix == ".gz") as f:

        def add(nbest: NBest) -> None:
            known.check(nbest)
            f.write(_as_text(_as_json(nbest)) + "\n")

        yield add
        known.finish()


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


def _as_text(content: Dict[str, Any]) -> str:
    """Return an object as JSON has it."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def _as_json(nbest: NBest) -> Dict[str, Any]:
    """Return the JSON object of a list."""
    hypotheses = []
    for hyp in nbest.hypotheses:
        scores = {name: getattr(hyp, name) for name in SCORES}
        given = {name: score for name, score in scores.items() if score is not None}
        hypotheses.append({"text": words_line(hyp.words), **given, **hyp.extra})
    content: Dict[str, Any] = {"utt": nbest.utt, "hypotheses": hypotheses}
    if nbest.ref is not None:
        content["ref"] = words_line(nbest.ref)
    if nbest.speaker is not None:
        content["speaker"] = nbest.speaker
    return {**content, **nbest.extra}

"""N-best lists that are JSON: JSON lines, Whisper's, Vosk's, and tuples of Python programs.

docs/lists.md shows each format. Scores are natural logs. A list without an id is named after its
file and its number from 1 (`FILE-000001`), and Vosk's only list of a file after the file. Keys that
are not read are kept, and written again.

JSON lines hold all that an `NBest` holds. Each score may be missing or null, `am_score` from all
hypotheses of an utterance or none; a total `score` stands for a missing `am_score`. Of Whisper's
scores, `am_score` and `score` are kept, too. Vosk's `confidence` is the log-likelihood of the path,
acoustic and graph: the total score. A beam of pyctcdecode, of four or more values, ends in the
score of the logits and the total, which holds the LM's weighted score too; what stands between is
passed over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.nbest.fields import (
    BESIDE,
    SCORES,
    SURROGATE,
    AddList,
    UniqueUtterances,
    check_scores,
    file_writer,
    files_matching,
    words_line,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PACKED, PathLike, read_lines, unpacked_name, unpacked_text
from espnet_bayeslm.utils.log import LOG

PLACE_KEYS = ("recording", "start")
KEYS = ("utt", "hypotheses", "ref", "speaker", *PLACE_KEYS)
HYPOTHESIS_KEYS = ("text", *SCORES)
LIST, SCORED = "a list of one or more", "a text with two scores"
PAIR = "a text with a score"
READ_AS_OTHERS = {"score", "rank"}
JSONL = (
    'Lines are {"utt": .., "hypotheses": [{"text": .., "am_score": .., "lm_score": ..}, ..],'
    ' "ref": ..}.'
)
HYPORADISE_IDS = ("id", "utt")
HYPORADISE_KEYS = ("input", "output", "scores", "speaker", *HYPORADISE_IDS)
HYPORADISE_SCORES = ("am_score", "score")
"""Keys of scores where there is no `scores`."""
HYPORADISE = 'The file is [{"input": ["hypothesis", ..], "output": "reference"}, ..].'
VOSK = (
    'Objects are {"alternatives": [{"text": .., "confidence": ..}, ..]}, as of SetMaxAlternatives.'
)
BEAMS = 'The file is [[["hypothesis", acoustic score, LM score], ..], ..], or {"utt": [..], ..}.'
TRIPLE = 3
"""Values of a hypothesis of a brain-to-text decoder."""

_START = re.compile(r"[ \t\r\n]*(\[?)[ \t\r\n]*")
# What stands between values, and between items of a list or after the last
_BLANKS = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*(,[ \t\r\n]*|(?=\]\Z))")

Value = Tuple[int, str, Any]
"""Line from 1, id where the value has none, and the JSON value of a list."""


@contextlib.contextmanager
def located(path: PathLike, line: int, remedy: str) -> Iterator[None]:
    """Turn what is wrong with JSON within the block into an InputError with its place."""
    try:
        yield
    except (ValueError, RecursionError) as error:  # a ValueError by itself: a million digits
        problem = str(error) if isinstance(error, InputError) else f"not JSON ({error})"
        if isinstance(error, RecursionError):
            problem = "brackets are nested too deeply"
        elif isinstance(error, json.JSONDecodeError):
            of_text = f"line {error.lineno}, " * (error.lineno > 1)
            problem = f"not JSON ({error.msg} at {of_text}column {error.colno})"
        raise InputError(problem, path=path, line=line, remedy=remedy) from error


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """JSON object whose keys come once each."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise InputError("a key comes twice in one object")
    return content


DECODER = json.JSONDecoder(object_pairs_hook=_unique)
"""Decoder of JSON texts; a key that comes twice is an error."""
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""Encoder of JSON texts on one line."""


def json_items(path: PathLike, *, remedy: str) -> Iterator[Tuple[int, Any]]:
    """Yield (line from 1, value) of the items of a JSON list, or of values one after the other."""
    text = unpacked_text(path).rstrip(" \t\r\n")
    start = _START.match(text)
    assert start is not None  # of an empty text too
    line, place, listed = 1 + start[0].count("\n"), start.end(), bool(start[1])
    closed = listed and text.endswith("]")
    gap = None
    while place < len(text) - closed:
        with located(path, line, remedy):
            value, after = DECODER.raw_decode(text, place)
        yield line, value
        gap = (_COMMA if listed else _BLANKS).match(text, after)
        if gap is None:
            break
        line += text.count("\n", place, gap.end())
        place = gap.end()
    ends_with_comma = listed and gap is not None and gap[1].startswith(",")
    if place < len(text) - closed or listed > closed or ends_with_comma:
        problem = "not JSON (',' or the end of the list was expected)"
        raise InputError(problem, path=path, line=line, remedy=remedy)


# Kind of a value -> test of it; integers of JSON may be larger than a float
_KINDS: Dict[str, Callable[[Any], bool]] = {
    "an object": lambda value: isinstance(value, dict),
    LIST: lambda value: isinstance(value, list) and bool(value),
    SCORED: lambda value: isinstance(value, list) and len(value) >= TRIPLE,
    PAIR: lambda value: isinstance(value, list) and len(value) == len(("text", "score")),
    "a string": lambda value: isinstance(value, str) and not SURROGATE.search(value),
    "a number from 1": lambda value: type(value) is int and value > 0,
    "a finite number": lambda value: (
        type(value) in (int, float) and abs(value) <= sys.float_info.max
    ),
}


def checked(value: Any, what: str, kind: str) -> Any:
    """JSON value of a kind; `what` names it in the error."""
    if not _KINDS[kind](value):
        verb = "are" if kind == LIST else "is"
        raise InputError(f"{what} {verb} {_shown(value)}, and {kind} was expected")
    return value


def named(value: Any, what: str) -> str:
    """Id or name of a JSON value: a string, or an integer, which is read as text."""
    return str(value) if type(value) is int else checked(value, what, "a string")


def _shown(value: Any) -> str:
    """JSON value as an error shows it."""
    return "missing" if value is None else ascii(value)[:80]


def _words(value: Any, what: str) -> Tuple[str, ...]:
    return tuple(checked(value, what, "a string").split())


def _score(value: Any, what: str) -> Optional[float]:
    """Finite number, None where there is none."""
    if value is None or (type(value) is float and math.isfinite(value)):
        return value
    return float(checked(value, what, "a finite number"))


def _others(content: Mapping[str, Any], keys: Sequence[str]) -> Dict[str, Any]:
    """Values under other keys, if they can be written again."""
    others = {name: value for name, value in content.items() if name not in keys}
    try:
        ENCODER.encode(others).encode()  # to UTF-8
    except (ValueError, RecursionError) as error:
        raise InputError(f"{_shown(others)} cannot be kept: {error}"[:200]) from error
    return others


def nbest_of(
    utt: str,
    hypotheses: Iterable[Hypothesis],
    content: Mapping[str, Any],
    *,
    keys: Sequence[str],
    ref: str = "ref",
) -> NBest:
    """List of an utterance, with its reference, speaker and other fields."""
    hyps = tuple(hypotheses)
    num_scored = sum(hyp.am_score is not None for hyp in hyps)
    if num_scored not in (0, len(hyps)):
        raise InputError(f"{num_scored} of {len(hyps)} hypotheses have a score")
    words, speaker = content.get(ref), content.get("speaker")
    return NBest(
        utt,
        hyps,
        None if words is None else _words(words, ref),
        None if speaker is None else named(speaker, "speaker"),
        _others(content, keys),
    )


def _numbered(path: Path, remedy: str) -> Iterator[Value]:
    """Yield the values of a JSON file, named after the file and numbered from 1."""
    for number, (line, value) in enumerate(json_items(path, remedy=remedy), 1):
        yield line, f"{_stem(path)}-{number:06d}", value


def _stem(path: Path) -> str:
    """Name of a JSON file without .json, .json.gz or such."""
    return unpacked_name(path.name).removesuffix(".json")


def read_json_lists(
    path: PathLike,
    parse: Callable[[Any, str], NBest],
    *,
    remedy: str,
    suffix: str = ".json",
    values: Optional[Callable[[Path, str], Iterator[Value]]] = None,
) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's files by natural order.

    Args:
        path: The file or folder.
        parse: Makes a list of a JSON value and of the id that it has where the value says none.
        remedy: Description of the file that was expected, for errors.
        suffix: Suffix of the files that are read in a folder, perhaps with .gz or such.
        values: Yields the values of a file, from its path and the remedy; None: the lines are the
            values, as texts.

    Raises:
        InputError: A value is not such JSON (file, line, remedy), an id comes twice, or there is no
            file.
    """
    pattern = rf"{BESIDE}.*{re.escape(suffix)}{PACKED}"
    utterances = UniqueUtterances(path)
    for file in files_matching(Path(path), pattern, problem=f"no *{suffix} in it"):
        lines = ((line, "", text) for line, text in read_lines(file))
        for line, name, value in values(file, remedy) if values else lines:
            with located(file, line, remedy):
                nbest = parse(value, name)
            utterances.add(nbest.utt, file, line)
            yield nbest
    utterances.check(remedy=remedy)


def read_jsonl(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.jsonl; log which keys are only kept.

    Raises:
        InputError: As of `read_json_lists`.
    """
    kept = set(READ_AS_OTHERS)
    for nbest in read_json_lists(path, _list, remedy=JSONL, suffix=".jsonl"):
        kept.update(nbest.extra, *(hyp.extra for hyp in nbest.hypotheses))
        yield nbest
    if kept := kept - READ_AS_OTHERS:  # among them may be a misspelt one
        LOG.info("%s: kept, and not used: %s", path, ", ".join(sorted(kept))[:200])


def _list(text: str, _: str) -> NBest:
    content = checked(DECODER.decode(text), "the line", "an object")
    utt = content.get("utt")
    # half a character has an error of its own
    utt = utt if isinstance(utt, str) else named(utt, "utt")
    hyps = [
        {"text": hyp} if isinstance(hyp, str) else checked(hyp, "a hypothesis", "an object")
        for hyp in checked(content.get("hypotheses"), "hypotheses", LIST)
    ]
    ranks = [hyp.get("rank") for hyp in hyps]
    if all(type(rank) is int for rank in ranks):
        if len(set(ranks)) < len(ranks):
            raise InputError("two hypotheses of one rank")
        hyps.sort(key=lambda hyp: hyp["rank"])
    hypotheses = []
    for hyp in hyps:
        am_score, lm_score, graph_score = (_score(hyp.get(name), name) for name in SCORES)
        if am_score is None:
            am_score = _score(hyp.get("score"), "score")
        words, kept = _words(hyp.get("text"), "text"), _others(hyp, HYPOTHESIS_KEYS)
        hypotheses.append(Hypothesis(words, am_score, lm_score, graph_score, kept))
    nbest = nbest_of(utt, hypotheses, content, keys=KEYS)
    recording, start = (content.get(name) for name in PLACE_KEYS)
    return dataclasses.replace(
        nbest,
        recording=None if recording is None else named(recording, "recording"),
        start=None if start is None else checked(start, "start", "a finite number"),
    )


@contextlib.contextmanager
def jsonl_writer(path: Path) -> Iterator[AddList]:
    """Write N-best lists into one file, one by one; reading them gives the same lists.

    It is `path` where this ends in .jsonl or .jsonl.gz (compressed), else `path`/nbest.jsonl.

    Raises:
        ValueError: A list that cannot be held, or the folder has other such files. Nothing is
            written then.
    """
    with file_writer(path, rf".*\.jsonl{PACKED}", "nbest.jsonl") as (known, write):

        def add(nbest: NBest) -> None:
            known.add(nbest.utt)
            check_scores(nbest)
            hyps = []
            for hyp in nbest.hypotheses:
                scores = {name: getattr(hyp, name) for name in SCORES}
                given = {name: score for name, score in scores.items() if score is not None}
                kept = _others(hyp.extra, HYPOTHESIS_KEYS)
                hyps.append({"text": words_line(hyp.words), **given, **kept})
            content: Dict[str, Any] = {"utt": nbest.utt, "hypotheses": hyps}
            if nbest.ref is not None:
                content["ref"] = words_line(nbest.ref)
            for name in ("speaker", *PLACE_KEYS):
                if (value := getattr(nbest, name)) is not None:
                    content[name] = value
            text = ENCODER.encode({**content, **_others(nbest.extra, KEYS)})
            write(f"{text}\n".encode())

        yield add


def _hyporadise_list(value: Any, name: str) -> NBest:
    content = checked(value, "it", "an object")
    inputs = checked(content.get("input"), "input", LIST)
    texts = [_words(text, "a hypothesis") for text in inputs]
    key, scores = "scores", content.get("scores")
    if scores is None:
        key = next((key for key in HYPORADISE_SCORES if isinstance(content.get(key), list)), key)
        scores = content.get(key)
    scores = [None] * len(texts) if scores is None else checked(scores, key, LIST)
    if len(scores) != len(texts):
        raise InputError(f"{len(texts)} hypotheses and {len(scores)} {key}")
    numbers = [_score(score, key) for score in scores]
    utt = next((content[key] for key in HYPORADISE_IDS if content.get(key) is not None), name)
    hyps = map(Hypothesis, texts, numbers)
    return nbest_of(named(utt, "id"), hyps, content, keys=HYPORADISE_KEYS, ref="output")


def _vosk_values(path: Path, remedy: str) -> Iterator[Value]:
    """Yield the values of a file; the only one has the file's name."""
    values = _numbered(path, remedy)
    first = list(itertools.islice(values, 2))
    if len(first) == 1:
        first = [(line, _stem(path), value) for line, _, value in first]
    yield from itertools.chain(first, values)


def _vosk_list(value: Any, name: str) -> NBest:
    content = checked(value, "it", "an object")
    hyps = []
    for item in checked(content.get("alternatives"), "alternatives", LIST):
        item = checked(item, "an alternative", "an object")
        score = _score(item.get("confidence"), "confidence")
        words = _words(item.get("text"), "text")
        hyps.append(Hypothesis(words, score, extra=_others(item, ("text", "confidence"))))
    utt = named(content.get("utt", name), "utt")
    nbest = nbest_of(utt, hyps, content, keys=("alternatives", "utt", "ref", "speaker"))
    return dataclasses.replace(nbest, acoustic=True)


def _beams_values(path: Path, remedy: str) -> Iterator[Value]:
    """Yield the list of each utterance with its line, and its key or number."""
    for line, number, value in _numbered(path, remedy):
        named = value if isinstance(value, dict) else {number: value}
        yield from ((line, name, rows) for name, rows in named.items())


def _beams_list(value: Any, name: str) -> NBest:
    """List of hypotheses that are a text and its last two values."""
    hyps = []
    for row in checked(value, "hypotheses", LIST):
        words = _words(checked(row, "a hypothesis", SCORED)[0], "a hypothesis")
        am, last = (_score(value, "a score") for value in row[-2:])
        if am is None or last is None:
            expected = "two numbers were expected at its end"
            raise InputError(f"a hypothesis is {_shown(row)}, and {expected}")
        hyps.append(Hypothesis(words, am, last if len(row) == TRIPLE else last - am))
    return nbest_of(name, hyps, {}, keys=())


def _reader(**options: Any) -> Callable[[PathLike], Iterator[NBest]]:
    """Reader of one format, with the documentation of `read_json_lists`."""
    return functools.update_wrapper(functools.partial(read_json_lists, **options), read_json_lists)


read_hyporadise = _reader(parse=_hyporadise_list, remedy=HYPORADISE, values=_numbered)
read_vosk = _reader(parse=_vosk_list, remedy=VOSK, values=_vosk_values)
read_beams = _reader(parse=_beams_list, remedy=BEAMS, values=_beams_values)

"""N-best lists that are JSON: JSON lines, Whisper's, Vosk's, and tuples of Python programs.

JSON lines have one utterance each, and hold all that an `NBest` holds:

    {"utt": "u1", "hypotheses": [{"text": "a b", "am_score": -9.5, "lm_score": -4.2}], "ref": "a"}

Scores are natural logs; each may be missing or null, `am_score` from all hypotheses of an
utterance or none. A total `score` stands for a missing `am_score`. A hypothesis may be a string.
Where all hypotheses have a `rank`, they are in its order. `speaker` and `ref` are optional. Any
other key is kept and written again.

Whisper and others in the Hypotheses Paradise write one list:

    [{"input": ["the first hypothesis", "the second"], "output": "the reference"}, ...]

`output` may be missing. An utterance's id is its `id` (or `utt`), else the file's name and its
number from 1. A list of scores, natural logs, may stand beside `input`, one for each hypothesis:
`scores`, else `am_score`, else `score`. The last two are kept, too.

Vosk's alternatives (`SetMaxAlternatives`) are an object for each utterance:

    {"alternatives": [{"confidence": 228.63, "text": "the first"}, {"confidence": .., ..}, ..]}

`confidence` is the log-likelihood of the path, acoustic and graph, natural log: the total score.
A file holds one object, named after the file, or several one after the other, numbered from 1
(`FILE-000001`); an object's own `utt` wins. `result` (words with times) is kept.

Beams are tuples of brain-to-text decoders and of pyctcdecode, a list for each utterance, the best
hypothesis first, or an object whose keys are the utterances' ids:

    {"u1": [["it is a test", -3.5, -8.1], ["it's a test", -4.0, -7.9]]}

A hypothesis of three values has text, acoustic score and LM score, as brain-to-text decoders do.
One of four or more is a beam of pyctcdecode: its last two values are the score of the logits and
the total, which holds the LM's weighted score too; what stands between is passed over. Scores are
natural logs. Without ids a list is named after the file and its number from 1.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set

from espnet_bayeslm.nbest.fields import SCORES, AddList, Writable, check_no_others, words_line
from espnet_bayeslm.nbest.json_values import (
    BadValue,
    Value,
    as_score,
    as_text,
    as_words,
    checked,
    json_items,
    json_stem,
    nbest_of,
    numbered_items,
    others,
    parse_json,
    read_json_lists,
    shown,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.files import PathLike, atomic_write, compress_to, read_lines

KEYS = ("utt", "hypotheses", "ref", "speaker")
HYPOTHESIS_KEYS = ("text", *SCORES)
READ_AS_OTHERS = {"score", "rank"}
PATTERN = r".*\.jsonl(\.gz)?"
"""Names that are read in a folder."""

DEFAULT_NAME = "nbest.jsonl"
REMEDY = (
    'Lines are {"utt": .., "hypotheses": [{"text": .., "am_score": .., "lm_score": ..}, ..],'
    ' "ref": ..}.'
)

WHISPER_IDS = ("id", "utt")
WHISPER_KEYS = ("input", "output", "scores", "speaker", *WHISPER_IDS)
OTHER_SCORES = ("am_score", "score")
"""Keys of scores where there is no `scores`."""
WHISPER = 'The file is [{"input": ["hypothesis", ..], "output": "reference"}, ..].'

VOSK_KEYS = ("alternatives", "utt", "ref", "speaker")
VOSK = (
    'Objects are {"alternatives": [{"text": .., "confidence": ..}, ..]}, as of SetMaxAlternatives.'
)
BEAMS = 'The file is [[["hypothesis", acoustic score, LM score], ..], ..], or {"utt": [..], ..}.'
TRIPLE = 3
"""Values of a hypothesis of a brain-to-text decoder."""


def read_jsonl(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.jsonl; log which keys are only kept.

    Raises:
        InputError: A line is not such JSON (file, line, remedy), an id comes twice, or there is no
            file.
    """
    kept: Set[str] = set()
    for nbest in read_json_lists(path, _nbest, remedy=REMEDY, suffix=".jsonl", values=_values):
        kept.update(nbest.extra, *(hyp.extra for hyp in nbest.hypotheses))
        yield nbest
    kept -= READ_AS_OTHERS
    if kept:  # among them may be a misspelt one
        logging.info("%s: kept, and not used: %s", path, ", ".join(sorted(kept))[:200])


def _values(path: Path) -> Iterator[Value]:
    """Yield (line, nothing, text) of each line: lists must have an id."""
    return ((number, "", line) for number, line in read_lines(path))


def _nbest(text: str, _: str) -> NBest:
    """List of one line."""
    content = checked(parse_json(text), "the line", "an object")
    utt = content.get("utt")
    if not isinstance(utt, str):
        raise BadValue(f"utt is {shown(utt)}, and a string was expected")
    objects = _in_order(checked(content.get("hypotheses"), "hypotheses", "a list"))
    return nbest_of(utt, map(_hypothesis, objects), content, keys=KEYS)


def _in_order(hypotheses: List[Any]) -> List[Dict[str, Any]]:
    """Hypotheses as objects, the best first."""
    objects = [
        {"text": hyp} if isinstance(hyp, str) else checked(hyp, "a hypothesis", "an object")
        for hyp in hypotheses
    ]
    ranks = [hyp.get("rank") for hyp in objects]
    if any(type(rank) is not int for rank in ranks):
        return objects
    if len(set(ranks)) < len(ranks):
        raise BadValue("two hypotheses of one rank")
    return sorted(objects, key=lambda hyp: hyp["rank"])


def _hypothesis(content: Dict[str, Any]) -> Hypothesis:
    """Hypothesis of one object."""
    am_score, lm_score, graph_score = (as_score(content.get(name), name) for name in SCORES)
    if am_score is None:
        am_score = as_score(content.get("score"), "score")
    words = as_words(content.get("text"), "text")
    return Hypothesis(words, am_score, lm_score, graph_score, others(content, HYPOTHESIS_KEYS))


@contextlib.contextmanager
def jsonl_writer(path: Path) -> Iterator[AddList]:
    """Write N-best lists into one file, one by one; reading them gives the same lists.

    Args:
        path: The file where it ends in .jsonl or .jsonl.gz (gzipped), else the folder in which
            `nbest.jsonl` is written (made where it is missing).

    Raises:
        ValueError: A list that cannot be held, or the folder has other such files. Nothing is
            written then.
    """
    is_file = re.fullmatch(PATTERN, path.name, re.DOTALL) and not path.is_dir()
    file = path if is_file else path / DEFAULT_NAME
    if not is_file:
        check_no_others(path, PATTERN, written=(DEFAULT_NAME,))
    known = Writable()
    with atomic_write(file, "wb") as raw, compress_to(raw, file) as f:

        def add(nbest: NBest) -> None:
            known.add_list(nbest)
            hyps = []
            for hyp in nbest.hypotheses:
                scores = {name: getattr(hyp, name) for name in SCORES}
                given = {name: score for name, score in scores.items() if score is not None}
                kept = others(hyp.extra, HYPOTHESIS_KEYS)
                hyps.append({"text": words_line(hyp.words), **given, **kept})
            content: Dict[str, Any] = {"utt": nbest.utt, "hypotheses": hyps}
            if nbest.ref is not None:
                content["ref"] = words_line(nbest.ref)
            if nbest.speaker is not None:
                content["speaker"] = nbest.speaker
            f.write(f"{as_text({**content, **others(nbest.extra, KEYS)})}\n".encode())

        yield add
        known.finish()


def read_whisper(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.json and *.json.gz.

    Raises:
        InputError: A value is not such JSON (file, line, remedy), an id comes twice, or there is no
            file.
    """
    return read_json_lists(path, _whisper_list, remedy=WHISPER)


def _whisper_list(value: Any, name: str) -> NBest:
    content = checked(value, "it", "an object")
    inputs = checked(content.get("input"), "input", "a list")
    texts = [as_words(text, "a hypothesis") for text in inputs]
    key, scores = "scores", content.get("scores")
    if scores is None:
        key = next((key for key in OTHER_SCORES if isinstance(content.get(key), list)), key)
        scores = content.get(key)
    scores = [None] * len(texts) if scores is None else checked(scores, key, "a list")
    if len(scores) != len(texts):
        raise BadValue(f"{len(texts)} hypotheses and {len(scores)} {key}")
    found = [as_score(score, key) for score in scores]
    utt = next((content[key] for key in WHISPER_IDS if content.get(key) is not None), name)
    utt = str(utt) if type(utt) is int else checked(utt, "id", "a string")
    hyps = map(Hypothesis, texts, found)
    return nbest_of(utt, hyps, content, keys=WHISPER_KEYS, ref="output")


def read_vosk(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.json and *.json.gz.

    Raises:
        InputError: As of `read_whisper`.
    """
    return read_json_lists(path, _vosk_list, remedy=VOSK, values=_vosk_values)


def _vosk_values(path: Path) -> Iterator[Value]:
    """Yield the values of a file; the only one has the file's name."""
    values = numbered_items(path, VOSK)
    first = list(itertools.islice(values, 2))
    if len(first) == 1:
        ((line, _, value),) = first
        first = [(line, json_stem(path), value)]
    yield from itertools.chain(first, values)


def _vosk_list(value: Any, name: str) -> NBest:
    content = checked(value, "it", "an object")
    hyps = []
    for item in checked(content.get("alternatives"), "alternatives", "a list"):
        item = checked(item, "an alternative", "an object")
        score = as_score(item.get("confidence"), "confidence")
        words = as_words(item.get("text"), "text")
        hyps.append(Hypothesis(words, score, extra=others(item, ("text", "confidence"))))
    utt = checked(content.get("utt", name), "utt", "a string")
    return nbest_of(utt, hyps, content, keys=VOSK_KEYS)


def read_beams(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.json and *.json.gz.

    Raises:
        InputError: As of `read_whisper`.
    """
    return read_json_lists(path, _beams_list, remedy=BEAMS, values=_beams_values)


def _beams_values(path: Path) -> Iterator[Value]:
    """Yield the list of each utterance with its line, and its key or number."""
    number = 0
    for line, value in json_items(path, remedy=BEAMS):
        if isinstance(value, dict):
            yield from ((line, name, rows) for name, rows in value.items())
        else:
            number += 1
            yield line, f"{json_stem(path)}-{number:06d}", value


def _beams_list(value: Any, name: str) -> NBest:
    hyps = map(_beam, checked(value, "hypotheses", "a list"))
    return nbest_of(name, hyps, {}, keys=())


def _beam(row: Any) -> Hypothesis:
    """Hypothesis of a text and its last two values."""
    if not isinstance(row, list) or len(row) < TRIPLE:
        raise BadValue(f"a hypothesis is {shown(row)}, and a text with two scores was expected")
    words = as_words(row[0], "a hypothesis")
    am, last = (as_score(value, "a score") for value in row[-2:])
    if am is None or last is None:
        raise BadValue(f"a hypothesis is {shown(row)}, and two numbers were expected at its end")
    return Hypothesis(words, am, last if len(row) == TRIPLE else last - am)

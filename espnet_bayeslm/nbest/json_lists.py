"""N-best lists that are JSON: of Whisper, of Vosk, and the tuples of Python programs.

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

import itertools
from pathlib import Path
from typing import Any, Iterator

from espnet_bayeslm.nbest.json_values import (
    BadValue,
    Value,
    as_score,
    as_words,
    checked,
    json_items,
    json_stem,
    nbest_of,
    numbered_items,
    others,
    read_json_lists,
    shown,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.files import PathLike

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

"""Vosk's alternatives (`SetMaxAlternatives`): a JSON object for each utterance.

    {"alternatives": [{"confidence": 228.63, "text": "the first"}, {"confidence": .., ..}, ..]}

`confidence` is the log-likelihood of the path, acoustic and graph, natural log: the total score.
A file holds one object, named after the file, or several one after the other, numbered from 1
(`FILE-000001`); an object's own `utt` wins. `result` (words with times) is kept.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Iterator

from espnet_bayeslm.nbest.json_values import (
    Value,
    as_list,
    as_object,
    as_score,
    as_string,
    as_words,
    json_stem,
    nbest_of,
    numbered_items,
    others,
    read_json_lists,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.files import PathLike

KEYS = ("alternatives", "utt", "ref", "speaker")
HYPOTHESIS_KEYS = ("text", "confidence")
REMEDY = (
    'Objects are {"alternatives": [{"text": .., "confidence": ..}, ..]}, as of SetMaxAlternatives.'
)


def read_vosk(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.json and *.json.gz.

    Raises:
        InputError: A value is not such JSON (file, line, remedy), an id comes twice, or there is no
            file.
    """
    return read_json_lists(path, _nbest, remedy=REMEDY, values=_values)


def _values(path: Path) -> Iterator[Value]:
    """Yield the values of a file; the only one has the file's name."""
    values = numbered_items(path, REMEDY)
    first = list(itertools.islice(values, 2))
    if len(first) == 1:
        ((line, _, value),) = first
        first = [(line, json_stem(path), value)]
    yield from itertools.chain(first, values)


def _nbest(value: Any, name: str) -> NBest:
    """List of one object."""
    content = as_object(value, "it")
    alternatives = as_list(content.get("alternatives"), "alternatives")
    utt = as_string(content.get("utt", name), "utt")
    return nbest_of(utt, map(_hypothesis, alternatives), content, keys=KEYS)


def _hypothesis(content: Any) -> Hypothesis:
    """Alternative of one object."""
    content = as_object(content, "an alternative")
    score = as_score(content.get("confidence"), "confidence")
    words = as_words(content.get("text"), "text")
    return Hypothesis(words, score, extra=others(content, HYPOTHESIS_KEYS))

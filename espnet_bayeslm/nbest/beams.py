"""N-best lists that Python programs hold as tuples: of brain-to-text decoders and of pyctcdecode.

A JSON list with a list of each utterance, the best hypothesis first, or an object whose keys are
the utterances' ids:

    {"u1": [["it is a test", -3.5, -8.1], ["it's a test", -4.0, -7.9]]}

A hypothesis of three values has text, acoustic score and LM score, as brain-to-text decoders do.
One of four or more is a beam of pyctcdecode: its last two values are the score of the logits and
the total, which holds the LM's weighted score too; what stands between is passed over. Scores are
natural logs. Without ids a list is named after the file and its number from 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

from espnet_bayeslm.nbest.json_values import (
    BadValue,
    Value,
    as_list,
    as_score,
    as_words,
    json_items,
    json_stem,
    nbest_of,
    read_json_lists,
    shown,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.files import PathLike

REMEDY = 'The file is [[["hypothesis", acoustic score, LM score], ..], ..], or {"utt": [..], ..}.'
TRIPLE = 3
"""Values of a hypothesis of a brain-to-text decoder."""


def read_beams(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.json and *.json.gz.

    Raises:
        InputError: A value is not such JSON (file, line, remedy), an id comes twice, or there is no
            file.
    """
    return read_json_lists(path, _nbest, remedy=REMEDY, values=_values)


def _values(path: Path) -> Iterator[Value]:
    """Yield the list of each utterance with its line, and its key or number."""
    number = 0
    for line, value in json_items(path, remedy=REMEDY):
        if isinstance(value, dict):
            yield from ((line, name, rows) for name, rows in value.items())
        else:
            number += 1
            yield line, f"{json_stem(path)}-{number:06d}", value


def _nbest(value: Any, name: str) -> NBest:
    """List of one utterance."""
    hyps = [_hypothesis(row) for row in as_list(value, "hypotheses")]
    return nbest_of(name, hyps, {}, keys=())


def _hypothesis(row: Any) -> Hypothesis:
    """Hypothesis of a text and its last two values."""
    if not isinstance(row, list) or len(row) < TRIPLE:
        raise BadValue(f"a hypothesis is {shown(row)}, and a text with two scores was expected")
    words = as_words(row[0], "a hypothesis")
    am, last = (as_score(value, "a score") for value in row[-2:])
    if am is None or last is None:
        raise BadValue(f"a hypothesis is {shown(row)}, and two numbers were expected at its end")
    return Hypothesis(words, am, last if len(row) == TRIPLE else last - am)

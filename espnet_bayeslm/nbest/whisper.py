"""N-best lists of Whisper and others in the Hypotheses Paradise: one JSON list.

    [{"input": ["the first hypothesis", "the second"], "output": "the reference"}, ...]

`output` may be missing. An utterance's id is its `id` (or `utt`), else the file's name and its
number from 1. A list of scores, natural logs, may stand beside `input`, one for each hypothesis:
`scores`, else `am_score`, else `score`. The last two are kept, too.
"""

from __future__ import annotations

from typing import Any, Iterator

from espnet_bayeslm.nbest.json_values import (
    BadValue,
    as_list,
    as_object,
    as_score,
    as_string,
    as_words,
    nbest_of,
    read_json_lists,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.files import PathLike

IDS = ("id", "utt")
KEYS = ("input", "output", "scores", "speaker", *IDS)
OTHER_SCORES = ("am_score", "score")
"""Keys of scores where there is no `scores`."""
REMEDY = 'The file is [{"input": ["hypothesis", ..], "output": "reference"}, ..].'


def read_whisper(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.json and *.json.gz.

    Raises:
        InputError: A value is not such JSON (file, line, remedy), an id comes twice, or there is no
            file.
    """
    return read_json_lists(path, _nbest, remedy=REMEDY)


def _nbest(value: Any, name: str) -> NBest:
    """List of one object."""
    content = as_object(value, "it")
    texts = [as_words(text, "a hypothesis") for text in as_list(content.get("input"), "input")]
    key, scores = "scores", content.get("scores")
    if scores is None:
        key = next((key for key in OTHER_SCORES if isinstance(content.get(key), list)), key)
        scores = content.get(key)
    scores = [None] * len(texts) if scores is None else as_list(scores, key)
    if len(scores) != len(texts):
        raise BadValue(f"{len(texts)} hypotheses and {len(scores)} {key}")
    found = [as_score(score, key) for score in scores]
    utt = next((content[key] for key in IDS if content.get(key) is not None), name)
    utt = str(utt) if type(utt) is int else as_string(utt, "id")
    return nbest_of(utt, map(Hypothesis, texts, found), content, keys=KEYS, ref="output")

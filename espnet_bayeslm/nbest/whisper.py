"""N-best lists of Whisper and others in the Hypotheses Paradise: one JSON list.

    [{"input": ["the first hypothesis", "the second"], "output": "the reference"}, ...]

`output` may be missing. An utterance's id is its `id` (or `utt`), else the file's name and its
number from 1. A list of scores, natural logs, may stand beside `input`, one for each hypothesis:
`scores`, else `am_score`, else `score`. The last two are kept, too.
"""

from __future__ import annotations

from typing import Any, Dict

from espnet_bayeslm.nbest.fields import words_line
from espnet_bayeslm.nbest.json_values import (
    BadValue,
    Beside,
    JsonFormat,
    as_list,
    as_object,
    as_score,
    as_string,
    as_words,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest

IDS = ("id", "utt")
OTHER_SCORES = ("am_score", "score")
"""Keys of scores where there is no `scores`."""


class Whisper(JsonFormat):
    """Files *.json and *.json.gz; a value has the hypotheses, and perhaps their scores."""

    name = "whisper"
    remedy = 'The file is [{"input": ["hypothesis", ..], "output": "reference"}, ..].'
    suffixes = (".json", ".json.gz")
    beside = Beside(("input", "output", "scores", "speaker", *IDS), ref="output")
    scored = "hypotheses have a score"
    frame = ("[\n", ",\n", "\n]\n")

    def parse(self, value: Any, name: str) -> NBest:
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
        return self.list_of(utt, list(map(Hypothesis, texts, found)), content)

    def as_json(self, nbest: NBest) -> Dict[str, Any]:
        """JSON object of a list."""
        content: Dict[str, Any] = {"id": nbest.utt}
        content["input"] = [words_line(hyp.words) for hyp in nbest.hypotheses]
        scores = [hyp.am_score for hyp in nbest.hypotheses]
        if scores[0] is not None:
            content["scores"] = scores
        return content

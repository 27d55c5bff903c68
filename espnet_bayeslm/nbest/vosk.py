"""Vosk's alternatives (`SetMaxAlternatives`): a JSON object for each utterance.

    {"alternatives": [{"confidence": 228.63, "text": "the first"}, {"confidence": .., ..}, ..]}

`confidence` is the log-likelihood of the path, acoustic and graph, natural log: the total score.
A file holds one object, named after the file, or several one after the other, numbered from 1
(`FILE-000001`); an object's own `utt` wins. `result` (words with times) is kept.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

from espnet_bayeslm.nbest.fields import words_line
from espnet_bayeslm.nbest.json_values import (
    Beside,
    JsonFormat,
    as_list,
    as_object,
    as_score,
    as_string,
    as_words,
    others,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest

HYPOTHESIS_KEYS = ("text", "confidence")


class Vosk(JsonFormat):
    """Files *.json and *.json.gz; a value has the alternatives of an utterance."""

    name = "vosk"
    remedy = (
        'Objects are {"alternatives": [{"text": .., "confidence": ..}, ..]},'
        " as of SetMaxAlternatives."
    )
    suffixes = (".json", ".json.gz")
    beside = Beside(("alternatives", "utt", "ref", "speaker"))
    scored = "alternatives have a confidence"

    def values(self, file: Path) -> Iterator[Tuple[int, str, Any]]:
        """Yield (line, name, value) of each list; the name of the only one is the file's."""
        values = super().values(file)
        first = list(itertools.islice(values, 2))
        if len(first) == 1:
            ((line, _, value),) = first
            first = [(line, self.stem(file), value)]
        yield from itertools.chain(first, values)

    def parse(self, value: Any, name: str) -> NBest:
        """List of one object."""
        content = as_object(value, "it")
        found = [_hypothesis(a) for a in as_list(content.get("alternatives"), "alternatives")]
        return self.list_of(as_string(content.get("utt", name), "utt"), found, content)

    def as_json(self, nbest: NBest) -> Dict[str, Any]:
        """JSON object of a list."""
        alternatives = []
        for hyp in nbest.hypotheses:
            score = {} if hyp.am_score is None else {"confidence": hyp.am_score}
            kept = others(hyp.extra, HYPOTHESIS_KEYS)
            alternatives.append({**score, "text": words_line(hyp.words), **kept})
        return {"utt": nbest.utt, "alternatives": alternatives}


def _hypothesis(content: Any) -> Hypothesis:
    """Alternative of one object."""
    content = as_object(content, "an alternative")
    score = as_score(content.get("confidence"), "confidence")
    words = as_words(content.get("text"), "text")
    return Hypothesis(words, score, extra=others(content, HYPOTHESIS_KEYS))

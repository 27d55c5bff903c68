"""N-best lists as JSON lines, one utterance each, which hold all that an `NBest` holds.

    {"utt": "u1", "hypotheses": [{"text": "a b", "am_score": -9.5, "lm_score": -4.2}], "ref": "a"}

Scores are natural logs; each may be missing or null, `am_score` from all hypotheses of an
utterance or none. A total `score` stands for a missing `am_score`. A hypothesis may be a string.
Where all hypotheses have a `rank`, they are in its order. `speaker` and `ref` are optional, and
what has another key is kept and written again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

from espnet_bayeslm.nbest.fields import SCORES, words_line
from espnet_bayeslm.nbest.json_values import (
    BadValue,
    Beside,
    JsonFormat,
    as_list,
    as_object,
    as_score,
    as_words,
    others,
    parse_json,
    shown,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.files import PathLike, read_lines

HYPOTHESIS_KEYS = ("text", *SCORES)
READ_AS_OTHERS = {"score", "rank"}


class Jsonl(JsonFormat):
    """Files *.jsonl and *.jsonl.gz; a value is a line."""

    name = "jsonl"
    remedy = (
        'Lines are {"utt": .., "hypotheses": [{"text": .., "am_score": .., "lm_score": ..}, ..],'
        ' "ref": ..}.'
    )
    suffixes = (".jsonl", ".jsonl.gz")
    beside = Beside(("utt", "hypotheses", "ref", "speaker"))
    holds = (*SCORES, "ref")

    def read(self, path: PathLike) -> Iterator[NBest]:
        """Yield the N-best lists, and log which keys are kept. See `JsonFormat.read`.

        Raises:
            InputError: As there.
        """
        kept: Set[str] = set()
        for nbest in super().read(path):
            kept.update(nbest.extra, *(hyp.extra for hyp in nbest.hypotheses))
            yield nbest
        kept -= READ_AS_OTHERS
        if kept:  # among them may be a misspelt one
            logging.info("%s: kept, and not used: %s", path, ", ".join(sorted(kept))[:200])

    def values(self, file: Path) -> Iterator[Tuple[int, str, str]]:
        """Yield (line, nothing, text) of each line: lists must have an id."""
        return ((number, "", line) for number, line in read_lines(file))

    def parse(self, value: str, name: str) -> NBest:
        """List of one line."""
        content = as_object(parse_json(value), "the line")
        utt = content.get("utt")
        if not isinstance(utt, str):
            raise BadValue(f"utt is {shown(utt)}, and a string was expected")
        objects = _in_order(as_list(content.get("hypotheses"), "hypotheses"))
        return self.list_of(utt, list(map(_hypothesis, objects)), content)

    def as_json(self, nbest: NBest) -> Dict[str, Any]:
        """JSON object of a list."""
        hypotheses = []
        for hyp in nbest.hypotheses:
            scores = {name: getattr(hyp, name) for name in SCORES}
            given = {name: score for name, score in scores.items() if score is not None}
            hypotheses.append({"text": words_line(hyp.words), **given})
            hypotheses[-1].update(others(hyp.extra, HYPOTHESIS_KEYS))
        return {"utt": nbest.utt, "hypotheses": hypotheses}


def _in_order(hypotheses: List[Any]) -> List[Dict[str, Any]]:
    """Hypotheses as objects, the best first."""
    objects = [
        {"text": hyp} if isinstance(hyp, str) else as_object(hyp, "a hypothesis")
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

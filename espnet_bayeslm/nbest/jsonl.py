"""N-best lists as JSON lines, one utterance each, which hold all that an `NBest` holds.

    {"utt": "u1", "hypotheses": [{"text": "a b", "am_score": -9.5, "lm_score": -4.2}], "ref": "a"}

Scores are natural logs; each may be missing or null, `am_score` from all hypotheses of an
utterance or none. A total `score` stands for a missing `am_score`. A hypothesis may be a string.
Where all hypotheses have a `rank`, they are in its order. `speaker` and `ref` are optional. Any
other key is kept and written again.
"""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set

from espnet_bayeslm.nbest.fields import SCORES
from espnet_bayeslm.nbest.json_values import (
    BadValue,
    Value,
    as_score,
    as_text,
    as_words,
    checked,
    nbest_of,
    others,
    parse_json,
    read_json_lists,
    shown,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.nbest.writing import AddList, Writable, check_no_others, words_line
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
            known.check(nbest)
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

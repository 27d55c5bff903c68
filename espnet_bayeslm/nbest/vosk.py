"""Vosk's alternatives (`SetMaxAlternatives`): a JSON object for each utterance.

    {"alternatives": [{"confidence": 228.63, "text": "the first"}, {"confidence": .., ..}, ..]}

`confidence` is the log-likelihood of the path, acoustic and graph, natural log: the total score.
A file holds one object, named after the file, or several one after the other, numbered from 1
(`FILE-000001`); an object's own `utt` wins. `result` (words with times) is kept.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, ContextManager, Dict, Iterator, Tuple

from espnet_bayeslm.nbest.fields import AddList, UniqueUtterances, words_line
from espnet_bayeslm.nbest.json_values import (
    JsonFormat,
    all_scored,
    as_list,
    as_object,
    as_score,
    as_string,
    as_words,
    json_items,
    located,
    others,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.files import PathLike

HYPOTHESIS_KEYS = ("text", "confidence")
FORMAT = JsonFormat(
    "vosk",
    'Objects are {"alternatives": [{"text": .., "confidence": ..}, ..]}, as of SetMaxAlternatives.',
    suffixes=(".json", ".json.gz"),
    keys=("alternatives", "utt", "ref", "speaker"),
)


def read_vosk(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.json and *.json.gz, in their order.

    Raises:
        InputError: What is not such JSON (file, line, remedy), or an id twice.
    """
    utterances = UniqueUtterances(path)
    for file in FORMAT.files(path):
        for nbest, line in _lists(file):
            utterances.add(nbest.utt, file, line)
            yield nbest
    utterances.check(FORMAT.remedy)


def _lists(file: Path) -> Iterator[Tuple[NBest, int]]:
    """Yield the lists of a file with their lines."""
    name = FORMAT.stem(file)
    objects = enumerate(json_items(file, remedy=FORMAT.remedy), 1)
    # the name of a file with one object is its name, so the second is looked for
    previous = next(objects, None)
    for current in itertools.chain(objects, [None]):
        if previous is None:
            return
        number, (line, content) = previous
        is_single = number == 1 and current is None
        with located(file, line, FORMAT.remedy):
            nbest = _parse(content, name if is_single else f"{name}-{number:06d}")
        yield nbest, line
        previous = current


def _parse(content: Any, name: str) -> NBest:
    """List of one object."""
    content = as_object(content, "it")
    found = [_hypothesis(a) for a in as_list(content.get("alternatives"), "alternatives")]
    hypotheses = all_scored(found, "alternatives have a confidence")
    utt = as_string(content.get("utt", name), "utt")
    return FORMAT.list_of(utt, hypotheses, content)


def _hypothesis(content: Any) -> Hypothesis:
    """Alternative of one object."""
    content = as_object(content, "an alternative")
    score = as_score(content.get("confidence"), "confidence")
    words = as_words(content.get("text"), "text")
    return Hypothesis(words, score, extra=others(content, HYPOTHESIS_KEYS))


def vosk_writer(path: Path) -> ContextManager[AddList]:
    """Write objects one after the other; reading them gives the same lists.

    Raises:
        ValueError: A list with more than an `am_score`, and see `JsonFormat.writer`.
    """
    return FORMAT.writer(path, _as_json)


def _as_json(nbest: NBest) -> Dict[str, Any]:
    """JSON object of a list."""
    alternatives = []
    for hyp in nbest.hypotheses:
        score = {} if hyp.am_score is None else {"confidence": hyp.am_score}
        alternative: Dict[str, Any] = {**score, "text": words_line(hyp.words)}
        alternative.update(others(hyp.extra, HYPOTHESIS_KEYS))
        alternatives.append(alternative)
    return {"utt": nbest.utt, "alternatives": alternatives}

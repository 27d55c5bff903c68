"""N-best lists without scores, as those of Whisper in the Hypotheses Paradise: one JSON list.

    [{"input": ["the first hypothesis", "the second"], "output": "the reference"}, ...]

`output` may be missing. An utterance's id is its `id` (or `utt`), else the file's name and its
number from 1. `scores`, natural logs, may stand beside `input`: a score for each hypothesis.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ContextManager, Dict, Iterator

from espnet_bayeslm.nbest.fields import AddList, UniqueUtterances, words_line
from espnet_bayeslm.nbest.json_values import (
    BadValue,
    JsonFormat,
    all_scored,
    as_list,
    as_object,
    as_score,
    as_string,
    as_words,
    json_items,
    located,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.files import PathLike

IDS = ("id", "utt")
FORMAT = JsonFormat(
    "whisper",
    'The file is [{"input": ["hypothesis", ..], "output": "reference"}, ..].',
    suffixes=(".json", ".json.gz"),
    keys=("input", "output", "scores", "speaker", *IDS),
    ref="output",
    frame=("[\n", ",\n", "\n]\n"),
)


def read_whisper(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's *.json and *.json.gz, in their order.

    Raises:
        InputError: What is not such JSON (file, line, remedy), or an id twice.
    """
    utterances = UniqueUtterances(path)
    for file in FORMAT.files(path):
        name = FORMAT.stem(file)
        for number, (line, content) in enumerate(json_items(file, remedy=FORMAT.remedy), 1):
            with located(file, line, FORMAT.remedy):
                nbest = _parse(content, f"{name}-{number:06d}")
            utterances.add(nbest.utt, file, line)
            yield nbest
    utterances.check(FORMAT.remedy)


def _parse(content: Any, name: str) -> NBest:
    """List of one object."""
    content = as_object(content, "it")
    texts = [as_words(text, "a hypothesis") for text in as_list(content.get("input"), "input")]
    scores = content.get("scores")
    scores = [None] * len(texts) if scores is None else as_list(scores, "scores")
    if len(scores) != len(texts):
        raise BadValue(f"{len(texts)} hypotheses and {len(scores)} scores")
    found = [as_score(score, "a score") for score in scores]
    given = [content[key] for key in IDS if content.get(key) is not None]
    utt = given[0] if given else name
    utt = str(utt) if type(utt) is int else as_string(utt, "id")
    pairs = zip(texts, found, strict=True)
    hypotheses = all_scored([Hypothesis(*pair) for pair in pairs], "hypotheses have a score")
    return FORMAT.list_of(utt, hypotheses, content)


def whisper_writer(path: Path) -> ContextManager[AddList]:
    """Write one JSON list, list by list; reading it gives the same words, scores and ids.

    Raises:
        ValueError: A list with more than an `am_score`, and see `JsonFormat.writer`.
    """
    return FORMAT.writer(path, _as_json)


def _as_json(nbest: NBest) -> Dict[str, Any]:
    """JSON object of a list."""
    content: Dict[str, Any] = {"id": nbest.utt}
    content["input"] = [words_line(hyp.words) for hyp in nbest.hypotheses]
    scores = [hyp.am_score for hyp in nbest.hypotheses]
    if scores[0] is not None:
        content["scores"] = scores
    return content

"""The files of a rescoring, written list by list."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import IO, Any, Iterable, Iterator, Mapping, Optional, Sequence

from espnet_bayeslm.nbest.fields import hypothesis_key
from espnet_bayeslm.nbest.formats import nbest_writer
from espnet_bayeslm.rescoring.decision import DIGITS, RescoredList

UNCERTAINTY = "uncertainty.ndjson"
CONFIDENCE = "confidence.ndjson"
COSTS, WORD_COSTS, BEST, BEST_TRN = "lmwt.nn", "lmwt.nn.words", "text", "trn"
WITHOUT_LM = "text_without_lm"
SUBTRACTED_COSTS = "lmwt.subtracted"
BEST_LISTS = "best"
# Name in uncertainty.ndjson -> attribute of `scoring.uncertainty.Uncertainty`
MEASURES = {"log_prob": "log_probs", "entropy": "entropy"}
MEASURES |= {"mutual_information": "mutual_information", "variance": "variance"}


def written_lists(
    folder: Path,
    items: Iterable[RescoredList],
    *,
    format: str,
    token_scores: bool,
    subtracted: bool = False,
    write_best: Optional[int] = None,
) -> Iterator[RescoredList]:
    """Write rescored lists to a folder (`lmwt.nn`, `text`, `trn`, ..), and yield each when written.

    With `token_scores` there are the costs of the words too, with `subtracted` those under
    subtracted LMs, a column for each, and with `write_best` lists of so many hypotheses.
    """
    whole_control = True
    with contextlib.ExitStack() as stack:

        @functools.cache
        def file(name: str) -> IO:
            return stack.enter_context((folder / name).open("w", encoding="utf-8"))

        def write(name: str, *lines: str) -> None:
            file(name).writelines(f"{line}\n" for line in lines)

        def write_costs(name: str, keys: Iterable[str], costs: Iterable[Iterable[float]]) -> None:
            for key, row in zip(keys, costs, strict=True):
                write(name, " ".join([key, *(f"{-value:.{DIGITS}f}" for value in row)]))

        optional = {WORD_COSTS: token_scores, SUBTRACTED_COSTS: subtracted}
        for name in (COSTS, BEST, BEST_TRN, *(name for name, wanted in optional.items() if wanted)):
            file(name)
        add_list = stack.enter_context(nbest_writer(folder, format=format))
        if write_best is not None:
            add_best = stack.enter_context(nbest_writer(folder / BEST_LISTS, format=format))
        for item in items:
            add_list(item.nbest.source or item.nbest)
            if write_best is not None:
                add_best(item.best_hypotheses(write_best))
            utt, hyps = item.nbest.utt, item.nbest.hypotheses
            keys = [hypothesis_key(utt, rank) for rank in range(1, len(hyps) + 1)]
            write_costs(COSTS, keys, ([score] for score in item.lm_scores))
            if token_scores:
                write_costs(WORD_COSTS, keys, (row.tolist() for row in item.word_log_probs))
            if item.subtracted:
                write_costs(SUBTRACTED_COSTS, keys, zip(*item.subtracted.values(), strict=True))
            for rank, (hyp, values) in enumerate(zip(hyps, item.uncertainty, strict=False), 1):
                shown = {name: getattr(values, of) for name, of in MEASURES.items()}
                write(UNCERTAINTY, _json_line(utt, hyp.words, shown, rank=rank))
            if item.masses is not None:
                shown = {"confidence": item.confidences, "posterior": item.masses}
                expected = round(item.expected_errors or 0.0, DIGITS)
                write(CONFIDENCE, _json_line(utt, item.words, shown, expected_errors=expected))
            whole_control &= item.control is not None
            if item.control is not None:
                write(WITHOUT_LM, " ".join((utt, *item.text_of(item.control))))
            write(BEST, " ".join((utt, *item.text)))
            write(BEST_TRN, " ".join((*item.text, f"({utt})")))
            yield item
    if not whole_control:
        (folder / WITHOUT_LM).unlink(missing_ok=True)


def _json_line(utt: str, words: Sequence[str], values: Mapping[str, Any], **more: Any) -> str:
    """Line of JSON: words, and rounded values of each."""
    rounded = {name: array.round(DIGITS).tolist() for name, array in values.items()}
    return json.dumps({"utt": utt, **more, "words": list(words), **rounded})

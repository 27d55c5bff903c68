"""The files of a rescoring, written list by list, and read again where jobs are merged."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import IO, Any, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple

import numpy as np
import yaml

from espnet_bayeslm.loading.weights_file import NamedWeight
from espnet_bayeslm.nbest.formats import nbest_writer
from espnet_bayeslm.nbest.kaldi import key_of
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.decision import DIGITS, ListScores, RescoredList
from espnet_bayeslm.rescoring.scales import subtracted_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_keyed_lines

UNCERTAINTY = "uncertainty.ndjson"
CONFIDENCE = "confidence.ndjson"
COSTS, WORD_COSTS, BEST, BEST_TRN, JOB = "lmwt.nn", "lmwt.nn.words", "text", "trn", "job.yaml"
WITHOUT_LM = "text_without_lm"
SUBTRACTED_COSTS = "lmwt.subtracted"
BEST_LISTS = "best"
# Name in uncertainty.ndjson -> attribute of `scoring.uncertainty.Uncertainty`
MEASURES = {"log_prob": "log_probs", "entropy": "entropy"}
MEASURES |= {"mutual_information": "mutual_information", "variance": "variance"}
# What all jobs of one rescoring have in common.
SHARED = ("num_jobs", "lists", "settings")


def written_lists(
    folder: Path,
    items: Iterable[RescoredList],
    *,
    format: str,
    token_scores: bool,
    subtracted: bool = False,
    write_best: Optional[int] = None,
) -> Iterator[RescoredList]:
    """Yield rescored lists, each when it is in the files of a folder: `lmwt.nn`, `text`, `trn`, ...

    With `token_scores` there are the costs of the words too, with `subtracted` those under
    subtracted LMs, a column for each, and with `write_best` lists of so many hypotheses.
    """
    whole_control, add_list, add_best = True, None, None
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
        for item in items:
            # of many jobs the last may have no work, and then no lists
            add_list = add_list or stack.enter_context(nbest_writer(folder, format=format))
            add_list(item.nbest.source or item.nbest)
            if write_best is not None:
                add_best = add_best or stack.enter_context(
                    nbest_writer(folder / BEST_LISTS, format=format)
                )
                add_best(item.best_hypotheses(write_best))
            utt, hyps = item.nbest.utt, item.nbest.hypotheses
            keys = [key_of(utt, rank) for rank in range(1, len(hyps) + 1)]
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


def check_jobs(folders: Sequence[Path], *, digest: str) -> Tuple[NamedWeight, ...]:
    """Subtracted LMs, with the weights given, of folders that are all jobs of one rescoring.

    Raises:
        InputError: A folder is no job, a job of other lists or settings, or one is missing.
    """
    jobs: Dict[int, Path] = {}
    first: Dict[str, Any] = {}
    for folder in folders:
        try:
            content = yaml.safe_load((folder / JOB).read_text(encoding="utf-8"))
            number, shared = int(content["job"]), {k: content[k] for k in SHARED}
        except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"not a job of `bayeslm rescore --job` ({error!r})", path=folder / JOB
            ) from error
        first = first or shared
        problem, remedy = "", "Give each job of one rescoring once."
        if shared["lists"] != digest:
            problem = "was made from other lists than --nbest has"
            remedy = "Merge with the lists that the jobs have rescored."
        elif number in jobs:
            problem = f"is job {number} as {jobs[number]}"
        elif shared != first:
            problem = f"has other settings: {shared}, expected {first}"
        if problem:
            raise InputError(problem, path=folder / JOB, remedy=remedy)
        jobs[number] = folder
    missing = [number for number in range(1, first["num_jobs"] + 1) if number not in jobs]
    if missing:
        raise InputError(
            f"{len(missing)} of {first['num_jobs']} jobs are missing, the first {missing[0]}",
            path=folders[0],
            remedy="Run them, and give all folders.",
        )
    return subtracted_of(first["settings"])


def merged_lists(
    nbests: Iterable[NBest], folders: Sequence[Path], *, token_scores: bool, subtracted: bool
) -> Iterator[ListScores]:
    """Yield the lists with the costs that jobs wrote, in the lists' order."""
    name = WORD_COSTS if token_scores else COSTS
    costs = _read_costs([folder / name for folder in folders])
    others = _read_costs([folder / SUBTRACTED_COSTS for folder in folders if subtracted])
    for item in nbests:
        rows = []
        for key in (key_of(item.utt, rank) for rank in range(1, len(item.hypotheses) + 1)):
            if key not in costs or (subtracted and key not in others):
                raise InputError(
                    f"no job has a cost of {key!r}",
                    path=folders[0] / (SUBTRACTED_COSTS if key in costs else name),
                    remedy="Merge with the lists that the jobs have rescored.",
                )
            row = -costs.pop(key)[None]
            if subtracted:
                # a subtracted LM's score of a hypothesis stands as that of the last word
                own = np.zeros((len(others[key]), row.shape[1]))
                own[:, -1] = -others[key]
                row = np.vstack([row, own])
            rows.append(row)
        yield ListScores(item, tuple(rows))
    if costs:
        raise InputError(
            f"the jobs have {len(costs)} costs of hypotheses that are not in the lists, the first"
            f" of {next(iter(costs))!r}",
            path=folders[0] / name,
        )


def _read_costs(paths: Iterable[Path]) -> Dict[str, np.ndarray]:
    """Costs of files, by their keys."""
    found = {}
    for path in paths:
        for key, (line, values) in read_keyed_lines(path).items():
            try:
                found[key] = np.array([float(value) for value in values.split()])
            except ValueError:
                problem = f"expected costs, got {values[:80]!r}"
                raise InputError(problem, path=path, line=line) from None
    return found

"""The files of a rescoring, written list by list, and read again where jobs are merged."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import yaml

from espnet_bayeslm.loading.weights_file import NamedWeight
from espnet_bayeslm.nbest.formats import nbest_writer
from espnet_bayeslm.nbest.kaldi import key_of
from espnet_bayeslm.nbest.normalized_lists import restored
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.decision import DIGITS, ListScores, subtracted_of
from espnet_bayeslm.rescoring.pipeline import RescoredList
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_keyed_lines

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.uncertainty import Uncertainty

UNCERTAINTY = "uncertainty.ndjson"
CONFIDENCE = "confidence.ndjson"
COSTS, WORD_COSTS, BEST, BEST_TRN, JOB = "lmwt.nn", "lmwt.nn.words", "text", "trn", "job.yaml"
WITHOUT_LM = "text_without_lm"
SUBTRACTED = "lmwt.subtracted"
# What all jobs of one rescoring have in common.
SHARED = ("num_jobs", "lists", "settings")


class RescoredFiles(contextlib.ExitStack):
    """The lists, `lmwt.nn`, `text`, `trn` and other files of a folder.

    Args:
        folder: The folder.
        format: Format of the lists.
        token_scores: True to write the costs of the words too.
        subtracted: True to write the costs under subtracted LMs too, a column for each.
    """

    def __init__(self, folder: Path, *, format: str, token_scores: bool, subtracted: bool = False):
        super().__init__()
        self._folder, self._format = folder, format
        self._add_list: Optional[Callable[[NBest], None]] = None
        self._files: Dict[str, IO] = {}
        self._whole_control = True
        self.callback(self._drop_part_of_control)
        optional = {WORD_COSTS: token_scores, SUBTRACTED: subtracted}
        for name in (COSTS, BEST, BEST_TRN, *(name for name, wanted in optional.items() if wanted)):
            self._write(name)

    def _write(self, name: str, *lines: str) -> None:
        """Write lines to a file, which is made where it is missing."""
        if name not in self._files:
            path = self._folder / name
            self._files[name] = self.enter_context(path.open("w", encoding="utf-8"))
        self._files[name].writelines(f"{line}\n" for line in lines)

    def _drop_part_of_control(self) -> None:
        """Remove the control's hypotheses where some list has none."""
        if not self._whole_control:
            (self._folder / WITHOUT_LM).unlink(missing_ok=True)

    def add(self, item: RescoredList) -> None:
        """Write a list, the costs of its hypotheses, and its best one."""
        # of many jobs the last may have no work, and then no lists
        if self._add_list is None:
            self._add_list = self.enter_context(nbest_writer(self._folder, format=self._format))
        self._add_list(restored(item.nbest))
        utt, hyps = item.nbest.utt, item.nbest.hypotheses
        keys = [key_of(utt, rank) for rank in range(1, len(hyps) + 1)]
        self._write(COSTS, *map(_cost_line, keys, ([-score] for score in item.lm_scores)))
        if WORD_COSTS in self._files:
            costs = ((-log_probs).tolist() for log_probs in item.word_log_probs)
            self._write(WORD_COSTS, *map(_cost_line, keys, costs))
        if item.subtracted:
            columns = (-log_probs for log_probs in item.subtracted.values())
            self._write(SUBTRACTED, *map(_cost_line, keys, zip(*columns, strict=True)))
        for rank, uncertainty in enumerate(item.uncertainty, 1):
            words = hyps[rank - 1].words
            self._write(UNCERTAINTY, uncertainty_line(utt, rank, words, uncertainty))
        if item.masses is not None:
            self._write(CONFIDENCE, confidence_line(item))
        self._whole_control &= item.control is not None
        if item.control is not None:
            self._write(WITHOUT_LM, " ".join((utt, *item.text_of(item.control))))
        self._write(BEST, " ".join((utt, *item.text)))
        self._write(BEST_TRN, " ".join((*item.text, f"({utt})")))


def _cost_line(key: str, costs: Iterable[float]) -> str:
    return " ".join([key, *(f"{cost:.{DIGITS}f}" for cost in costs)])


def confidence_line(item: RescoredList) -> str:
    """One line of JSON: the words of the best hypothesis, and how sure each is."""
    values = {"confidence": item.confidences, "posterior": item.masses}
    rounded = {n: a.round(DIGITS).tolist() for n, a in values.items() if a is not None}
    expected = round(item.expected_errors or 0.0, DIGITS)
    words = list(item.words)
    return json.dumps(
        {"utt": item.nbest.utt, "words": words, **rounded, "expected_errors": expected}
    )


def uncertainty_line(utt: str, rank: int, words: Sequence[str], uncertainty: Uncertainty) -> str:
    """Line of JSON: scores and uncertainty of each word and `</s>` over an LM's draws, in nats."""
    values = {
        "log_prob": uncertainty.log_probs,
        "entropy": uncertainty.entropy,
        "mutual_information": uncertainty.mutual_information,
        "variance": uncertainty.variance,
    }
    rounded = {name: array.round(DIGITS).tolist() for name, array in values.items()}
    return json.dumps({"utt": utt, "rank": rank, "words": list(words), **rounded})


def write_job(
    folder: Path, *, job: int, num_jobs: int, lists: str, settings: Mapping[str, Any]
) -> None:
    """Write which part of which lists a folder has, and by what settings it was done."""
    content = {"job": job, "num_jobs": num_jobs, "lists": lists, "settings": dict(settings)}
    (folder / JOB).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def check_jobs(folders: Sequence[Path], *, digest: str) -> None:
    """Check that folders are all jobs of one rescoring of some lists."""
    jobs: Dict[int, Path] = {}
    first: Dict[str, Any] = {}
    for folder in folders:
        try:
            content = yaml.safe_load((folder / JOB).read_text(encoding="utf-8"))
            number, whole = int(content["job"]), {k: content[k] for k in SHARED}
        except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"not a job of `bayeslm rescore --job` ({error!r})", path=folder / JOB
            ) from error
        first = first or whole
        if whole["lists"] != digest:
            raise InputError(
                "was made from other lists than --nbest has",
                path=folder / JOB,
                remedy="Merge with the lists that the jobs have rescored.",
            )
        if whole != first or number in jobs:
            problem = (
                f"is job {number} as {jobs[number]}" if number in jobs else "has other settings"
            )
            raise InputError(
                f"{problem}: {whole}, expected {first}",
                path=folder / JOB,
                remedy="Give each job of one rescoring once.",
            )
        jobs[number] = folder
    missing = [number for number in range(1, first["num_jobs"] + 1) if number not in jobs]
    if missing:
        raise InputError(
            f"{len(missing)} of {first['num_jobs']} jobs are missing, the first {missing[0]}",
            path=folders[0],
            remedy="Run them, and give all folders.",
        )


def merged_lists(
    nbests: Iterable[NBest], folders: Sequence[Path], *, token_scores: bool, subtracted: int = 0
) -> Iterator[ListScores]:
    """Yield the lists with the costs that jobs wrote, in the lists' order."""
    name = WORD_COSTS if token_scores else COSTS
    costs = {key: values for folder in folders for key, values in _read_costs(folder / name)}
    others: Dict[str, np.ndarray] = {}
    for folder in folders if subtracted else ():
        others.update(_read_costs(folder / SUBTRACTED))
    for item in nbests:
        keys = [key_of(item.utt, rank) for rank in range(1, len(item.hypotheses) + 1)]
        missing = [key for key in keys if key not in costs]
        if missing:
            raise InputError(
                f"no job has a cost of {missing[0]!r}",
                path=folders[0] / name,
                remedy="Merge with the lists that the jobs have rescored.",
            )
        rows = [-costs.pop(key)[None] for key in keys]
        for place, key in enumerate(keys if subtracted else ()):
            if key not in others:
                raise InputError(
                    f"no job has costs of {key!r} under the subtracted LMs, in {SUBTRACTED}",
                    remedy="Run the jobs again.",
                )
            # a subtracted LM's score of a hypothesis stands as that of the last word
            own = np.zeros((len(others[key]), rows[place].shape[1]))
            own[:, -1] = -others[key]
            rows[place] = np.vstack([rows[place], own])
        yield ListScores(item, tuple(rows))
    if costs:
        raise InputError(
            f"the jobs have {len(costs)} costs of hypotheses that are not in the lists, the first"
            f" of {next(iter(costs))!r}",
            path=folders[0] / name,
        )


def subtracted_of_job(folder: Path) -> Tuple[NamedWeight, ...]:
    """Subtracted LMs of a job, with the weights that it was given."""
    return subtracted_of(yaml.safe_load((folder / JOB).read_text(encoding="utf-8"))["settings"])


def _read_costs(path: Path) -> Iterator[Tuple[str, np.ndarray]]:
    """Yield (key, its costs) of a file."""
    for key, (line, values) in read_keyed_lines(path).items():
        try:
            yield key, np.array([float(value) for value in values.split()])
        except ValueError:
            raise InputError(f"expected costs, got {values[:80]!r}", path=path, line=line) from None

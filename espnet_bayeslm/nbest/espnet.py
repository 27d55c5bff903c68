"""ESPnet's decode directories: `output.JOB/{n}best_recog/{text,score}`, lines `utterance value`.

`score` is the weighted total of all that took part in the beam search, natural log, and becomes
`am_score`: nothing tells the parts apart, so a list to be rescored is decoded without an LM.
`token` and `token_int` are not read. An utterance may have fewer hypotheses than others.
"""

from __future__ import annotations

import collections
import contextlib
import re
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Set

from espnet_bayeslm.nbest.fields import (
    NUMBER,
    AddList,
    Columns,
    OutOfStep,
    Row,
    Rows,
    UniqueUtterances,
    Writable,
    are_in_step,
    check_has_keys,
    format_number,
    numbered,
    packed,
    parse_number,
    rows_in_step,
    words_line,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, Table, read_table

PATTERN = r"[0-9]+best_recog|output\.[0-9]+"
"""Names that `read_espnet` reads in a folder."""

# The beam search's scores are tensors, and ESPnet prints them by str(score)
_TENSOR = re.compile(
    rf"tensor\((\[)?(?P<score>{NUMBER}|[-+]?inf|nan)(?(1)\])(?:, [a-z_]+=[^()]*)?\)", re.ASCII
)
_MAX_OPEN_FILES = 400  # 1024 is what a process may have open on most systems
_FLUSH_EVERY = 2000  # utterances


def read_espnet(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a decode directory.

    Args:
        path: The folder that holds `output.1` ... `output.N` (ESPnet's `logdir`), the folder
            that holds this `logdir`, or one job's folder, which holds `1best_recog` and so on.

    Yields:
        Lists in the order of the jobs and of the lines in each `1best_recog/text`.

    Raises:
        InputError: A line, a key or a score that cannot be used (file, line, remedy).
    """
    remedy = "Utterance ids must be unique: was a job copied twice?"
    utterances = UniqueUtterances(path, remedy=remedy)
    for job in _jobs(Path(path)):
        for utt, rows in _read_job(job):
            file, line, _ = rows[0]["text"]
            utterances.add(utt, file, line)
            yield NBest(utt, tuple(map(_hypothesis, rows)))
    utterances.check("", problem="no hypotheses")


def _jobs(folder: Path) -> List[Path]:
    """Folders with a `1best_recog`."""
    if not folder.is_dir():
        raise InputError("not an ESPnet decode directory", path=folder)
    jobs, ranks = numbered(folder, "output.{}"), numbered(folder, "{}best_recog")
    if not jobs and not ranks and (folder / "logdir").is_dir():
        return _jobs(folder / "logdir")
    if bool(jobs) == bool(ranks):
        found = "both" if jobs else "neither"
        raise InputError(
            f"one of output.1 and 1best_recog was expected in it, and there is {found}",
            path=folder,
            remedy="Give the `logdir` of a decode directory.",
        )
    return jobs or [folder]


def _read_job(job: Path) -> Rows:
    """Yield the rows of a job: ranks 2, 3, ... may leave utterances out."""
    folders = numbered(job, "{}best_recog")
    if not folders:
        raise InputError("no 1best_recog in it", path=job, remedy="Did the job fail?")
    ranks = [{kind: [packed(rank / kind)] for kind in ("text", "score")} for rank in folders]
    few = 2 * len(ranks) <= _MAX_OPEN_FILES
    in_step = few and are_in_step(_side_by_side(ranks))
    return _side_by_side(ranks) if in_step else _by_key(ranks)


def _side_by_side(ranks: Sequence[Columns]) -> Rows:
    """Yield the rows of files in step.

    Raises:
        OutOfStep: They are not, or a key comes twice; what was yielded may then be incomplete.
    """
    first, *others = map(rows_in_step, ranks)
    heads = [next(rank, None) for rank in others]
    utts: Set[str] = set()
    for utt, row in first:
        rows = [row]
        for n, rank in enumerate(others):
            head = heads[n]
            if head is None or head[0] != utt:
                break
            rows.append(head[1])
            heads[n] = next(rank, None)
        if utt in utts:
            raise OutOfStep
        utts.add(utt)
        yield utt, rows
    if any(head is not None for head in heads):
        raise OutOfStep


def _by_key(ranks: Sequence[Columns]) -> Rows:
    """Yield the rows of files whose lines stand in any order."""
    tables: List[Dict[str, Table]] = []
    for number, columns in enumerate(ranks):
        text, score = map(read_table, columns.values())
        check_has_keys(score, text, paths=columns["score"])
        check_has_keys(text, score, paths=columns["text"])
        if tables:
            check_has_keys(tables[-1]["text"], text, paths=ranks[number - 1]["text"])
        tables.append({"text": text, "score": score})
    for utt in tables[0]["text"]:
        of_utt = (found for found in tables if utt in found["text"])
        yield utt, [{kind: table[utt] for kind, table in found.items()} for found in of_utt]


def _hypothesis(row: Row) -> Hypothesis:
    """Hypothesis of one utterance and rank."""
    path, line, value = row["score"]
    tensor = _TENSOR.fullmatch(value)
    total = parse_number(
        tensor["score"] if tensor else value,
        path=path,
        line=line,
        remedy="Lines are `utterance score`, a number or ESPnet's tensor(number).",
    )
    return Hypothesis(tuple(row["text"][2].split()), total)


@contextlib.contextmanager
def espnet_writer(folder: Path) -> Iterator[AddList]:
    """Write one job's folder, list by list; reading it gives the same lists.

    Raises:
        ValueError: A list without an `am_score` or with other scores, or other lists stand there.
            Nothing is written then.
    """
    known = Writable("espnet", needs=("am_score",))
    lines: Dict[str, List[str]] = collections.defaultdict(list)
    with known.staged(folder, PATTERN) as temporary:

        def add(nbest: NBest) -> None:
            known.check(nbest)
            for rank, hyp in enumerate(nbest.hypotheses, 1):
                assert hyp.am_score is not None  # `Writable` has seen to it
                values = {"text": words_line(hyp.words), "score": format_number(hyp.am_score)}
                for kind, value in values.items():
                    lines[f"{rank}best_recog/{kind}"].append(f"{nbest.utt} {value}\n")
            if len(known.utts) % _FLUSH_EVERY == 0:  # N may be more than the files that may be open
                _append(temporary, lines)

        yield add
        _append(temporary, lines)


def _append(folder: Path, lines: Dict[str, List[str]]) -> None:
    """Append {file: lines} to the files, and forget them."""
    for name, new in lines.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with open(folder / name, "a", encoding="utf-8") as f:
            f.writelines(new)
    lines.clear()

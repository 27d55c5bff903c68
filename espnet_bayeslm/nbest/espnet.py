"""ESPnet's decode directories: `output.JOB/{n}best_recog/{text,score}`, lines `utterance value`.

`score` is the weighted total of all that took part in the beam search, natural log, and becomes
`am_score`: nothing tells the parts apart, so a list to be rescored is decoded without an LM.
`token` and `token_int` are not read. An utterance may have fewer hypotheses than others.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Set, Tuple

from espnet_bayeslm.nbest.fields import (
    NUMBER,
    AddList,
    Entry,
    OutOfStep,
    Table,
    Writable,
    check_has_keys,
    check_no_others,
    format_number,
    numbered,
    packed,
    parse_number,
    read_entries,
    read_table,
    words_line,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, staged

PATTERN = r"[0-9]+best_recog|output\.[0-9]+"
"""Names that `read_espnet` reads in a folder."""

# The beam search's scores are tensors, and ESPnet prints them by str(score)
_TENSOR = re.compile(
    rf"tensor\((\[)?(?P<score>{NUMBER}|[-+]?inf|nan)(?(1)\])(?:, [a-z_]+=[^()]*)?\)", re.ASCII
)
_MAX_OPEN_FILES = 400  # 1024 is what a process may have open on most systems
_FLUSH_EVERY = 2000  # utterances

Row = Tuple[Entry, Entry]
"""The entries of a hypothesis in `text` and in `score`."""


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
    seen: Dict[str, Path] = {}
    for job in _jobs(Path(path)):
        for utt, rows in _read_job(_rank_files(job)):
            text, line, _ = rows[0][0]
            if utt in seen:
                raise InputError(
                    f"the utterance {utt[:80]!r} stands already in {seen[utt]}",
                    path=text,
                    line=line,
                    remedy="Utterance ids must be unique: was a job copied twice?",
                )
            seen[utt] = text
            yield NBest(utt, tuple(_hypothesis(*row) for row in rows))
    if not seen:
        raise InputError("no hypotheses", path=path)


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


def _rank_files(job: Path) -> List[Tuple[Path, Path]]:
    """Files (text, score) of each rank of a job, rank 1 first."""
    ranks = numbered(job, "{}best_recog")
    if not ranks:
        raise InputError("no 1best_recog in it", path=job, remedy="Did the job fail?")
    return [(packed(rank / "text"), packed(rank / "score")) for rank in ranks]


def _read_job(files: List[Tuple[Path, Path]]) -> Iterator[Tuple[str, List[Row]]]:
    """Yield (utterance, its hypotheses from rank 1 on)."""
    return _side_by_side(files) if _in_step(files) else _by_key(files)


def _in_step(files: List[Tuple[Path, Path]]) -> bool:
    """Whether all files have their keys in the order of the first, without any fault."""
    if 2 * len(files) > _MAX_OPEN_FILES:
        return False
    utts: Set[str] = set()
    try:
        for num_utts, (utt, _) in enumerate(_side_by_side(files), 1):
            utts.add(utt)
            if len(utts) != num_utts:
                return False
    except OutOfStep:
        return False
    return True


def _side_by_side(files: List[Tuple[Path, Path]]) -> Iterator[Tuple[str, List[Row]]]:
    """Yield (utterance, rows) of files in step: ranks 2, 3, ... may leave utterances out.

    Raises:
        OutOfStep: They are not in step; what was yielded may then be incomplete.
    """
    first, *others = (_pairs(*pair) for pair in files)
    heads: List[Optional[Tuple[str, Row]]] = [next(rank, None) for rank in others]
    for utt, row in first:
        rows = [row]
        for n, rank in enumerate(others):
            head = heads[n]
            if head is None or head[0] != utt:
                break
            rows.append(head[1])
            heads[n] = next(rank, None)
        yield utt, rows
    if any(head is not None for head in heads):
        raise OutOfStep


def _pairs(text: Path, score: Path) -> Iterator[Tuple[str, Row]]:
    """Yield (utterance, row) of one rank."""
    for a, b in itertools.zip_longest(read_entries([text]), read_entries([score])):
        if a is None or b is None or a[0] != b[0]:
            raise OutOfStep
        yield a[0], (a[1], b[1])


def _by_key(files: List[Tuple[Path, Path]]) -> Iterator[Tuple[str, List[Row]]]:
    """Yield (utterance, rows) of files whose lines stand in any order."""
    ranks: List[Tuple[Table, Table]] = []
    for text_path, score_path in files:
        text, score = read_table([text_path]), read_table([score_path])
        check_has_keys(score, text, path=score_path)
        check_has_keys(text, score, path=text_path)
        if ranks:
            check_has_keys(ranks[-1][0], text, path=files[len(ranks) - 1][0])
        ranks.append((text, score))
    for utt in ranks[0][0]:
        yield utt, [(text[utt], score[utt]) for text, score in ranks if utt in text]


def _hypothesis(text: Entry, score: Entry) -> Hypothesis:
    """Hypothesis of one utterance and rank."""
    path, line, value = score
    tensor = _TENSOR.fullmatch(value)
    total = parse_number(
        tensor["score"] if tensor else value,
        path=path,
        line=line,
        remedy="Lines are `utterance score`, a number or ESPnet's tensor(number).",
    )
    return Hypothesis(tuple(text[2].split()), total)


@contextlib.contextmanager
def espnet_writer(folder: Path) -> Iterator[AddList]:
    """Write one job's folder, list by list; reading it gives the same lists.

    Args:
        folder: The folder (made where it is missing).

    Yields:
        What adds a list, with an `am_score` and no other scores.

    Raises:
        ValueError: A list that the format cannot hold, or other lists stand there. Nothing is
            written then.
    """
    known = Writable("espnet", needs=("am_score",))
    names: Set[str] = set()
    lines: Dict[str, List[str]] = {}
    with staged(folder) as temporary:

        def add(nbest: NBest) -> None:
            known.check(nbest)
            for rank, hyp in enumerate(nbest.hypotheses, 1):
                assert hyp.am_score is not None  # `Writable` has seen to it
                name = f"{rank}best_recog"
                values = {"text": words_line(hyp.words), "score": format_number(hyp.am_score)}
                for kind, value in values.items():
                    lines.setdefault(f"{name}/{kind}", []).append(f"{nbest.utt} {value}\n")
                names.add(name)
            if len(known.utts) % _FLUSH_EVERY == 0:  # N may be more than the files that may be open
                _append(temporary, lines)

        yield add
        known.finish()
        _append(temporary, lines)
        check_no_others(Path(folder), PATTERN, written=names)


def _append(folder: Path, lines: Dict[str, List[str]]) -> None:
    """Append {file: lines} to the files, and forget them."""
    for name, new in lines.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with open(folder / name, "a", encoding="utf-8") as f:
            f.writelines(new)
    lines.clear()

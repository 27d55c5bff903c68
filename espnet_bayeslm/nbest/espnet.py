"""ESPnet's decode directories: `output.JOB/{n}best_recog/{text,score}`, lines `utterance value`.

`score` is the weighted total of all that took part in the beam search, natural log, and becomes
`am_score`: nothing tells the parts apart, so a list to be rescored is decoded without an LM.
`token` and `token_int` are not read. An utterance may have fewer hypotheses than others. The files
of one job are in memory.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from espnet_bayeslm.nbest.fields import (
    UniqueUtterances,
    check_has_keys,
    numbered,
    packed,
    parse_number,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import Entry, PathLike, Table, read_table

Row = Tuple[Entry, Entry]
"""Text and score of a hypothesis."""

PATTERN = r"[0-9]+best_recog|output\.[0-9]+"
"""Names that `read_espnet` reads in a folder."""

# The beam search's scores are tensors, and ESPnet prints them by str(score)
_TENSOR = re.compile(
    r"tensor\((\[)?(?P<score>[^()\[\], ]+)(?(1)\])(?:, [a-z_]+=[^()]*)?\)", re.ASCII
)


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
            (file, line, _), _ = rows[0]
            utterances.add(utt, file, line)
            yield NBest(utt, tuple(map(_hypothesis, rows)))
    utterances.check("", problem="no hypotheses")


def _jobs(folder: Path) -> List[Path]:
    """Folders with a `1best_recog`."""
    error = functools.partial(InputError, path=folder)
    if not folder.is_dir():
        remedy = "Give the folder of a decoding by ESPnet with --nbest N."
        raise error("not an ESPnet decode directory", remedy=remedy)
    jobs, ranks = numbered(folder, "output.{}"), numbered(folder, "{}best_recog")
    if not jobs and not ranks and (folder / "logdir").is_dir():
        return _jobs(folder / "logdir")
    if bool(jobs) == bool(ranks):
        problem = "one of output.1 and 1best_recog was expected in it, and there is"
        remedy = "Give the `logdir` of a decode directory."
        raise error(f"{problem} {'both' if jobs else 'neither'}", remedy=remedy)
    return jobs or [folder]


def _read_job(job: Path) -> Iterator[Tuple[str, List[Row]]]:
    """Yield (utterance, its text and score of each rank): later ranks may leave utterances out."""
    folders = numbered(job, "{}best_recog")
    if not folders:
        remedy = "Run the job again: it may have failed."
        raise InputError("no 1best_recog in this folder", path=job, remedy=remedy)
    ranks: List[Tuple[Table, Table]] = []
    before: Optional[Path] = None
    for folder in folders:
        paths = [packed(folder / name) for name in ("text", "score")]
        text, score = (read_table([path]) for path in paths)
        check_has_keys(score, text, paths=paths[1:])
        check_has_keys(text, score, paths=paths[:1])
        if before is not None:
            check_has_keys(ranks[-1][0], text, paths=[before])
        ranks.append((text, score))
        before = paths[0]
    for utt in ranks[0][0]:
        yield utt, [(text[utt], score[utt]) for text, score in ranks if utt in text]


def _hypothesis(row: Row) -> Hypothesis:
    """Hypothesis of one utterance and rank."""
    (_, _, words), (path, line, value) = row
    tensor = _TENSOR.fullmatch(value)
    total = parse_number(
        tensor["score"] if tensor else value,
        path=path,
        line=line,
        remedy="Lines are `utterance score`, a number or ESPnet's tensor(number).",
    )
    return Hypothesis(tuple(words.split()), total)

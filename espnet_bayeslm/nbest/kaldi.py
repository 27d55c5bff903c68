"""Kaldi N-best archives: a folder of text files with the keys `<utt>-<n>`, n from 1, costs (-ln).

`words_text` holds the words, `acwt` the acoustic cost; `lmwt.nolm` and `lmwt.withlm`, where they
are there, the graph cost without and with the first-pass LM, whose cost is the difference. They
stand in the folder, or in its `archives.1` ... `archives.N`, as Kaldi's rnnlm/lmrescore_nbest.sh
leaves them, and may be gzipped. Where all files have the same keys in the same order, which is how
Kaldi writes them, they are read side by side and nothing is kept but the ids. Other orders take the
memory of all lines.
"""

from __future__ import annotations

import collections
import contextlib
import decimal
import itertools
import re
from decimal import Decimal
from pathlib import Path
from typing import IO, Counter, Dict, Iterator, List, Set, Tuple

from espnet_bayeslm.nbest.fields import (
    AddList,
    Columns,
    OutOfStep,
    Row,
    Rows,
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
from espnet_bayeslm.utils.files import PathLike, Table, read_table, read_text

WORDS, ACOUSTIC, NOLM, WITHLM = "words_text", "acwt", "lmwt.nolm", "lmwt.withlm"
PATTERN = r"(words_text|acwt|lmwt\.nolm|lmwt\.withlm)(\.gz)?|archives\.[0-9]+"
"""Names that `read_kaldi` reads in a folder."""

KEY = re.compile(r"(.+)-([1-9][0-9]{0,8})", re.ASCII | re.DOTALL)

# Enough for the exact difference of any two float64
_EXACT = decimal.Context(prec=1200)


def read_kaldi(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a folder, in the order of their first lines in `words_text`.

    Raises:
        InputError: A line, a key or a score that cannot be used (file, line, remedy).
    """
    columns = _find_columns(Path(path))
    # what is at fault `_by_key` finds out
    in_step = are_in_step(_side_by_side(columns))
    yield from _lists(_side_by_side(columns) if in_step else _by_key(columns))


def read_kaldi_once(path: PathLike) -> Iterator[NBest]:
    """Yield the lists of a folder whose files have the same keys in the same order.

    Raises:
        OutOfStep: They have not; what was yielded may then be incomplete.
        InputError: As `read_kaldi`.
    """
    yield from _lists(_side_by_side(_find_columns(Path(path))))


def _lists(rows: Rows) -> Iterator[NBest]:
    for utt, of_utterance in rows:
        yield NBest(utt, tuple(map(_hypothesis, of_utterance)))


def _hypothesis(row: Row) -> Hypothesis:
    """Hypothesis of one key."""
    remedy = "Lines are `utterance-n cost`."
    costs = {
        name: parse_number(value, path=path, line=line, remedy=remedy)
        for name, (path, line, value) in row.items()
        if name != WORDS
    }
    return Hypothesis(
        words=tuple(row[WORDS][2].split()),
        am_score=-costs[ACOUSTIC],
        lm_score=_difference(row[NOLM][2], row[WITHLM][2]) if WITHLM in row else None,
        graph_score=-costs[NOLM] if NOLM in row else None,
    )


def _difference(first: str, second: str) -> float:
    """Difference of two numbers, rounded once: a written one comes back exactly."""
    try:
        return float(_EXACT.subtract(Decimal(first), Decimal(second)))
    except decimal.DecimalException:  # an exponent beyond decimal's own limits
        return float(first) - float(second)


def key_of(utt: str, rank: int) -> str:
    """Key of the hypothesis `rank` (from 1)."""
    return f"{utt}-{rank}"


def _find_columns(folder: Path) -> Columns:
    """{name: its files, one for each part} of the files that are there.

    Raises:
        InputError: A part or a file is missing, or stands there twice.
    """
    parts = _parts(folder)
    columns = {name: [packed(part / name) for part in parts] for name in (WORDS, ACOUSTIC)}
    for name in (NOLM, WITHLM):
        paths = [packed(part / name) for part in parts]
        there = [path.exists() for path in paths]
        if any(there):
            columns[name] = paths
            if not all(there):
                raise InputError(
                    f"missing, and {paths[there.index(True)]} is there",
                    path=paths[there.index(False)],
                    remedy="All parts of an archive must have the same files.",
                )
    if WITHLM in columns and NOLM not in columns:
        raise InputError(
            f"missing, and {WITHLM} alone does not tell the LM's cost from the graph's",
            path=parts[0] / NOLM,
            remedy="Write both, or neither.",
        )
    return columns


def _parts(folder: Path) -> List[Path]:
    """Folders of the files."""
    if not folder.is_dir():
        raise InputError("not a folder of Kaldi N-best archives", path=folder)
    parts = numbered(folder, "archives.{}")
    if not parts:
        return [folder]
    if packed(folder / WORDS).exists():
        raise InputError(
            f"holds {WORDS} and {parts[0].name}",
            path=folder,
            remedy="Which is meant? Move one of them to another folder.",
        )
    if (jobs := packed(folder / "num_jobs")).is_file():
        num_jobs = read_text(jobs).strip()
        if num_jobs != str(len(parts)):
            raise InputError(
                f"says {num_jobs[:80]!r}, and there are {len(parts)} archives",
                path=jobs,
                remedy="Did a job fail, or was an archive not copied?",
            )
    return parts


def _side_by_side(columns: Columns) -> Rows:
    """Yield the rows of files in step.

    Raises:
        OutOfStep: They are not: a file has another key than `words_text`, a key is no key or
            comes twice, a rank is missing, or an utterance's keys do not stand together. What was
            yielded may then be incomplete.
    """
    utts: Set[str] = set()
    for utt, group in itertools.groupby(_ranked(columns), key=lambda item: item[0]):
        lines = list(group)
        ranks = {rank: row for _, rank, row in lines}
        if utt in utts or max(ranks) != len(ranks) or len(ranks) != len(lines):
            raise OutOfStep
        utts.add(utt)
        yield utt, [ranks[rank] for rank in range(1, len(ranks) + 1)]
    if not utts:
        raise OutOfStep


def _ranked(columns: Columns) -> Iterator[Tuple[str, int, Row]]:
    """Yield (utterance, rank, row) of each line of files in step."""
    for key, row in rows_in_step(columns):
        match = KEY.fullmatch(key)
        if not match:
            raise OutOfStep
        yield match[1], int(match[2]), row


def _by_key(columns: Columns) -> Rows:
    """Yield the rows of files whose lines stand in any order, by the first lines in `words_text`.

    Raises:
        InputError: The files have different keys, a key is bad or comes twice, a rank is
            missing, or there is no line at all.
    """
    text = read_table(columns[WORDS])
    if not text:
        raise InputError("no hypotheses", path=columns[WORDS][0])
    ranks = _ranks(text)
    tables = {WORDS: text}
    for name in list(columns)[1:]:
        tables[name] = read_table(columns[name])
        check_has_keys(tables[name], text, paths=columns[name])
        check_has_keys(text, tables[name], paths=columns[WORDS])
    _check_ranks(text, ranks)
    for utt, keys in ranks.items():
        ordered = [keys[rank] for rank in sorted(keys)]
        yield utt, [{name: table[key] for name, table in tables.items()} for key in ordered]


def _ranks(text: Table) -> Dict[str, Dict[int, str]]:
    """{utterance: {rank: key}}."""
    ranks: Dict[str, Dict[int, str]] = {}
    for key, (path, line, _) in text.items():
        match = KEY.fullmatch(key)
        if not match:
            raise InputError(
                f"the key {key[:80]!r} is not of the form `utterance-n` with n from 1",
                path=path,
                line=line,
                remedy="Kaldi's N-best keys end in -1, -2, ...; is this a plain `text`?",
            )
        ranks.setdefault(match[1], {})[int(match[2])] = key
    return ranks


def _check_ranks(text: Table, ranks: Dict[str, Dict[int, str]]) -> None:
    """Check that each utterance's ranks go from 1 to N."""
    for utt, keys in ranks.items():
        if max(keys) != len(keys):
            gap = next(n for n in range(1, len(keys) + 1) if n not in keys)
            last = keys[max(keys)]
            raise InputError(
                f"the hypothesis {key_of(utt[:80], gap)!r} is missing, {len(keys)} others of its"
                f" utterance are there, up to {last[:80]!r}",
                path=text[last][0],
                line=text[last][1],
                remedy="Ranks must go from 1 to N without gaps: was the file cut or filtered?",
            )


@contextlib.contextmanager
def kaldi_writer(folder: Path) -> Iterator[AddList]:
    """Write archives, list by list; reading them gives the same lists.

    All hypotheses must have the same kinds of scores. A hypothesis with an LM score and no graph
    score is read with a graph score of 0.

    Raises:
        ValueError: Some hypotheses have an LM or a graph score, and some have not; a list that
            the format cannot hold; or other archives stand there. Nothing is written then.
    """
    known = Writable("kaldi", holds=("lm_score", "graph_score"), needs=("am_score",))
    counts: Counter[str] = collections.Counter()
    with known.staged(folder, PATTERN) as temporary:
        with contextlib.ExitStack() as stack:
            files: Dict[str, IO[str]] = {}

            def add(nbest: NBest) -> None:
                known.check(nbest)
                for rank, hyp in enumerate(nbest.hypotheses, 1):
                    for name, value in _columns(hyp).items():
                        if name not in files:
                            opened = open(temporary / name, "w", encoding="utf-8")  # noqa: SIM115
                            files[name] = stack.enter_context(opened)
                        counts[name] += 1
                        files[name].write(f"{key_of(nbest.utt, rank)} {value}".rstrip() + "\n")

            yield add
        for name, count in counts.items():
            if count != counts[WORDS]:
                raise ValueError(f"{count} of {counts[WORDS]} hypotheses have a cost {name}")


def _columns(hyp: Hypothesis) -> Dict[str, str]:
    """{file name: the hypothesis's entry there}."""
    assert hyp.am_score is not None  # `Writable` has seen to it
    values = {WORDS: words_line(hyp.words), ACOUSTIC: format_number(0.0 - hyp.am_score)}
    if hyp.graph_score is not None or hyp.lm_score is not None:
        graph_cost = 0.0 - (hyp.graph_score or 0.0)
        values[NOLM] = format_number(graph_cost)
        if hyp.lm_score is not None:
            values[WITHLM] = _sum_cost(values[NOLM], hyp.lm_score)
    return values


def _sum_cost(graph_cost: str, lm_score: float) -> str:
    """Graph + LM cost, in few digits where the difference still gives the LM cost back."""
    cost = _EXACT.subtract(Decimal(graph_cost), Decimal(repr(lm_score)))
    short = f"{float(cost):.12g}"
    return short if _difference(graph_cost, short) == lm_score else str(cost)

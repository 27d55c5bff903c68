"""Kaldi N-best archives: a folder of text files with the keys `<utt>-<n>`, n from 1, costs (-ln).

`words_text` holds the words, `acwt` the acoustic cost; `lmwt.nolm` and `lmwt.withlm`, where they
are there, the graph cost without and with the first-pass LM, whose cost is the difference. They
stand in the folder, or in its `archives.1` ... `archives.N`, and may be gzipped.
"""

from __future__ import annotations

import contextlib
import decimal
from decimal import Decimal
from pathlib import Path
from typing import IO, Dict, Iterator

from espnet_bayeslm.nbest.fields import (
    AddList,
    Writable,
    check_no_others,
    format_number,
    parse_number,
    words_line,
)
from espnet_bayeslm.nbest.kaldi_files import (
    ACOUSTIC,
    NOLM,
    PATTERN,
    WITHLM,
    WORDS,
    Row,
    find_columns,
    key_of,
    read_rows,
    side_by_side,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.files import PathLike, staged

__all__ = ["kaldi_writer", "key_of", "read_kaldi", "read_kaldi_once"]

# Enough for the exact difference of any two float64
_EXACT = decimal.Context(prec=1200)


def read_kaldi(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a folder, in the order of their first lines in `words_text`.

    Raises:
        InputError: A line, a key or a score that cannot be used (file, line, remedy).
    """
    for utt, rows in read_rows(find_columns(Path(path))):
        yield NBest(utt, tuple(_hypothesis(row) for row in rows))


def read_kaldi_once(path: PathLike) -> Iterator[NBest]:
    """Yield the lists of a folder whose files have the same keys in the same order.

    Raises:
        OutOfStep: They have not; what was yielded may then be incomplete.
        InputError: As `read_kaldi`.
    """
    for utt, rows in side_by_side(find_columns(Path(path))):
        yield NBest(utt, tuple(_hypothesis(row) for row in rows))


def _hypothesis(row: Row) -> Hypothesis:
    """Return the hypothesis of one key."""
    costs = {name: _cost(row, name) for name in row if name != WORDS}
    return Hypothesis(
        words=tuple(row[WORDS][2].split()),
        am_score=-costs[ACOUSTIC],
        lm_score=_difference(row[NOLM][2], row[WITHLM][2]) if WITHLM in row else None,
        graph_score=-costs[NOLM] if NOLM in row else None,
    )


def _cost(row: Row, name: str) -> float:
    """Return the cost that a line holds."""
    path, line, value = row[name]
    return parse_number(value, path=path, line=line, remedy="Lines are `utterance-n cost`.")


def _difference(first: str, second: str) -> float:
    """Return the difference of two numbers, rounded once: what is written comes back exactly."""
    try:
        return float(_EXACT.subtract(Decimal(first), Decimal(second)))
    except decimal.DecimalException:  # an exponent beyond decimal's own limits
        return float(first) - float(second)


@contextlib.contextmanager
def kaldi_writer(folder: Path) -> Iterator[AddList]:
    """Write archives, list by list; reading them gives the same lists.

    All hypotheses must have the same kinds of scores. A hypothesis with an LM score and no graph
    score is read with a graph score of 0.

    Args:
        folder: The folder (made where it is missing).

    Yields:
        What adds a list.

    Raises:
        ValueError: Some hypotheses have an LM or a graph score, and some have not; a list that
            the format cannot hold; or other archives stand there. Nothing is written then.
    """
    known = Writable("kaldi", holds=("lm_score", "graph_score"), needs=("am_score",))
    counts: Dict[str, int] = {}
    num_hypotheses = 0
    with staged(folder) as temporary:
        with contextlib.ExitStack() as stack:
            files: Dict[str, IO[str]] = {}

            def add(nbest: NBest) -> None:
                nonlocal num_hypotheses
                known.check(nbest)
                for rank, hyp in enumerate(nbest.hypotheses, 1):
                    num_hypotheses += 1
                    for name, value in _columns(hyp).items():
                        if name not in files:
                            opened = open(temporary / name, "w", encoding="utf-8")  # noqa: SIM115
                            files[name] = stack.enter_context(opened)
                        counts[name] = counts.get(name, 0) + 1
                        files[name].write(f"{key_of(nbest.utt, rank)} {value}".rstrip() + "\n")

            yield add
        known.finish()
        for name, count in counts.items():
            if count != num_hypotheses:
                raise ValueError(f"{count} of {num_hypotheses} hypotheses have a cost {name}")
        check_no_others(Path(folder), PATTERN, written=counts)


def _columns(hyp: Hypothesis) -> Dict[str, str]:
    """Return {file name: what stands there for the hypothesis}."""
    assert hyp.am_score is not None  # `Writable` has seen to it
    values = {WORDS: words_line(hyp.words), ACOUSTIC: format_number(0.0 - hyp.am_score)}
    if hyp.graph_score is not None or hyp.lm_score is not None:
        graph_cost = 0.0 - (hyp.graph_score or 0.0)
        values[NOLM] = format_number(graph_cost)
        if hyp.lm_score is not None:
            values[WITHLM] = _sum_cost(values[NOLM], hyp.lm_score)
    return values


def _sum_cost(graph_cost: str, lm_score: float) -> str:
    """Return graph + LM cost, in few digits where the difference still gives the LM cost back."""
    cost = _EXACT.subtract(Decimal(graph_cost), Decimal(repr(lm_score)))
    short = f"{float(cost):.12g}"
    return short if _difference(graph_cost, short) == lm_score else str(cost)

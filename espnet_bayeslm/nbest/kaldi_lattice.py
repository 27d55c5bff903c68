"""Kaldi's lattices as text, what `lattice-copy ark:- ark,t:-` writes (compact lattices).

    utt
    0 1 word 4.2,310.5,1_1_8
    1 0.5,20.25,9_9

An utterance id, then `state state word graph,acoustic,transition-ids` for each arc and `state
graph,acoustic,transition-ids` for each final state, costs (-ln), and an empty line. The first
line's state is the initial one. Words are symbols, or the ids of a `words.txt`. The graph cost has
LM, pronunciations and transitions in it: it becomes the `lm_score`, which a new LM replaces. Arcs
of infinite cost are on no path.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from espnet_bayeslm.nbest.fields import (
    UniqueUtterances,
    file_writer,
    files_matching,
    format_number,
    packed,
)
from espnet_bayeslm.nbest.lattice import NULL, TRANSITIONS, Arc, Lattice, kaldi_scales
from espnet_bayeslm.nbest.lattice_builder import MAX_ARCS, LatticeBuilder
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PACKED, PathLike, read_lines

PATTERN = rf"(?!words\.txt).*\.(lats?|txt|ark){PACKED}"
"""Names that are read in a folder."""

WORDS = "words.txt"
LMWT = 10.0
"""LM scale (LMWT) of the lattices: Kaldi's files hold no scales."""

EPSILON = "<eps>"
REMEDY = "Lines are `state state word graph,acoustic,ids`; see `lattice-copy ark:- ark,t:-`."
_STATE = re.compile("[0-9]{1,15}", re.ASCII)
_IDS = re.compile("(?:[0-9]+(?:_[0-9]+)*)?", re.ASCII)

Lines = Iterator[Tuple[int, str]]
Symbols = Dict[int, str]


def read_kaldi_lattices(
    path: PathLike, *, words: Optional[PathLike] = None, max_arcs: int = MAX_ARCS
) -> Iterator[Lattice]:
    """Yield the lattices of a file, or of a folder's files by natural order.

    Args:
        path: The folder or file.
        words: The symbols of the words' ids, Kaldi's `words.txt`; None: that beside the
            lattices, where there is one, else their words are symbols.
        max_arcs: The most arcs of a lattice.

    Raises:
        InputError: A line that cannot be used (file, line, remedy), or an id twice.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    beside = packed(folder / WORDS)
    table = words if words is not None else beside if beside.is_file() else None
    symbols = None if table is None else read_symbols(table)
    remedy = "They are called NAME.lats, .txt or .ark."
    utterances = UniqueUtterances(path)
    for file in files_matching(Path(path), PATTERN, problem="no lattices in it", remedy=remedy):
        for lattice, line in _read_file(file, symbols, max_arcs):
            utterances.add(lattice.utt, file, line)
            yield lattice
    utterances.check("no lattices", REMEDY)


def read_symbols(path: PathLike) -> Symbols:
    """Words of a `words.txt` by their ids."""
    symbols: Symbols = {}
    remedy = "Give Kaldi's words.txt of the graph that the lattices come from."
    for number, line in read_lines(path):
        fields = line.split()
        if len(fields) != 2 or not _STATE.fullmatch(fields[1]) or int(fields[1]) in symbols:
            problem = f"{line[:80]!r} is not `word id` with a new id"
            raise InputError(problem, path=path, line=number, remedy=remedy)
        symbols[int(fields[1])] = fields[0]
    return symbols


def _read_file(
    path: Path, symbols: Optional[Symbols], max_arcs: int
) -> Iterator[Tuple[Lattice, int]]:
    """Yield (lattice, line of its id)."""
    lines = read_lines(path)
    for number, line in lines:
        fields = line.split()
        if len(fields) > 1 or "\0" in line:
            found, remedy = repr(line[:80]), "An empty line ends a lattice, an id begins one."
            if "\0" in line:
                found, remedy = "a binary archive", "Write it as text: lattice-copy ark:- ark,t:-"
            problem = f"{found} where an utterance id alone was expected"
            raise InputError(problem, path=path, line=number, remedy=remedy)
        if fields:
            yield _Reader(fields[0], path, symbols, max_arcs).read(lines, number), number


class _Reader(LatticeBuilder):
    """Reads one lattice."""

    def __init__(self, utt: str, path: Path, symbols: Optional[Symbols], max_arcs: int):
        super().__init__(utt, path, max_arcs=max_arcs, remedy=REMEDY)
        self.symbols = symbols
        self.finals: Dict[int, Tuple[int, Arc]] = {}
        """Final state -> line, the arc to the end."""
        self.all_numbers = True

    def read(self, lines: Lines, first: int) -> Lattice:
        """Lattice of the lines up to an empty one, or to the end of the file."""
        self.line = first
        for self.line, line in lines:
            fields = line.split()
            if not fields:
                break
            if len(fields) > 4:
                problem = f"{line[:80]!r} has {len(fields)} fields, 1 to 4 were expected"
                raise self.error(problem, "Write compact lattices: lattice-copy ark:- ark,t:-")
            state = self._state(fields[0])
            if len(fields) > 2:
                target = self._state(fields[1])
                self.add(self._arc(state, target, self._label(fields[2]), fields[3:]))
            elif state in self.finals:
                number, _ = self.finals[state]
                raise self.error(f"the state {fields[0]} is final already in line {number}")
            else:
                self.finals[state] = self.line, self._arc(state, -1, NULL, fields[1:])
        if not self.nodes:
            raise self.error(f"the lattice of {self.utt[:80]!r} has no states", line=first)
        if not self.finals:
            problem = f"the lattice of {self.utt[:80]!r} has no final state"
            raise self.error(problem, "Copy it again: it may be cut.")
        if self.symbols is None and self.arcs and self.all_numbers:
            problem = "all words are numbers, and there is no words.txt"
            remedy = "Put words.txt beside the lattices, or give --words words.txt."
            raise self.error(problem, remedy, line=first)
        end = self.node(max(self.nodes) + 1)  # the last in the order of numbers
        for number, arc in self.finals.values():
            self.line = number
            self.add(arc._replace(target=end))
        return self.lattice(0, end, scales=kaldi_scales(LMWT))

    def _state(self, field: str) -> int:
        if not _STATE.fullmatch(field):
            raise self.error(f"{field[:80]!r} stands where a state's number was expected")
        return self.node(int(field))

    def _label(self, field: str) -> str:
        """Word of a symbol or an id."""
        is_number = bool(_STATE.fullmatch(field))
        self.all_numbers &= is_number
        if self.symbols is None:
            return NULL if field == EPSILON else field
        if not is_number or (int(field) and int(field) not in self.symbols):
            problem = f"{field[:80]!r} stands where an id of words.txt was expected"
            remedy = "Give their words.txt; lattices without one beside them have symbols as words."
            raise self.error(problem, remedy)
        word = self.symbols[int(field)] if int(field) else EPSILON
        return NULL if word == EPSILON else word

    def _arc(self, source: int, target: int, label: str, weight: List[str]) -> Arc:
        """Arc of the weight `graph,acoustic,ids`, of costs 0 where there is none."""
        field = weight[0] if weight else "0,0,"
        parts = field.split(",")
        if len(parts) != 3 or not _IDS.fullmatch(parts[2]):
            raise self.error(f"{field[:80]!r} stands where graph,acoustic,ids was expected")
        lm_score, am_score = (self.log(part, unit=-1.0) for part in parts[:2])
        details = ((TRANSITIONS, parts[2]),) if parts[2] else ()
        return Arc(source, target, label, am_score, lm_score, details=details)


@contextlib.contextmanager
def kaldi_lattice_writer(path: PathLike) -> Iterator[Callable[[Lattice], None]]:
    """Write lattices as text, words as symbols, all or nothing; reading gives the same.

    A graph score is written with the LM score: the graph cost is their sum. The file is `path`
    where this ends in .lat, .lats, .txt or .ark, perhaps with .gz (compressed), else
    `path`/lattices.lats.
    """
    with file_writer(path, PATTERN, "lattices.lats") as (known, write):

        def add(lattice: Lattice) -> None:
            known.add(lattice.utt)
            write("".join(_lines(lattice)).encode("utf-8"))

        yield add


def _lines(lattice: Lattice) -> Iterator[str]:
    """Yield the lines of a lattice and the empty one after it."""
    labels = [EPSILON if arc.word is None else arc.label for arc in lattice.arcs]
    if labels and all(map(_STATE.fullmatch, labels)):
        raise InputError(
            f"all words of the lattice of {lattice.utt!r} are numbers, which would be read as ids",
            remedy="Write HTK lattices.",
        )
    to_end = [arc for arc in lattice.arcs if arc.target == lattice.end]
    sources = {arc.source for arc in to_end}
    # arcs without a word to the end are final weights, of which a state has one
    folded = len(sources) == len(to_end) and all(arc.word is None for arc in to_end)
    yield f"{lattice.utt}\n"
    for arc, label in zip(lattice.arcs, labels, strict=True):
        if folded and arc.target == lattice.end:
            yield f"{arc.source}\t{_weight(arc)}\n"
        else:
            yield f"{arc.source}\t{arc.target}\t{label}\t{_weight(arc)}\n"
    yield "\n" if folded else f"{lattice.end}\n\n"


def _weight(arc: Arc) -> str:
    """Costs and transition ids of an arc."""
    costs = -(arc.lm_score + arc.graph_score), -arc.am_score
    ids = dict(arc.details).get(TRANSITIONS, "")
    return ",".join([*(format_number(cost + 0.0) for cost in costs), ids])

"""A lattice from the nodes and arcs of its file, checked and in topological order."""

from __future__ import annotations

import graphlib
import heapq
import math
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from espnet_bayeslm.nbest.fields import parse_number
from espnet_bayeslm.nbest.lattice import EQUAL, Arc, Lattice, pruned
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

MAX_ARCS = 1_000_000
"""The most arcs of a lattice that is read, about 500 bytes each in memory."""

LOG_ZERO = -0.5e10
"""Largest log, in nats, that HTK takes for the log of zero, which it writes as -1e10."""

_INFINITE = re.compile("[-+]?inf(inity)?", re.IGNORECASE | re.ASCII)


class LatticeBuilder:
    """Nodes and arcs of a file, with the lines where they stand, on their way to a `Lattice`."""

    def __init__(self, utt: str, path: PathLike, *, max_arcs: int, remedy: str):
        self.utt, self.path, self.max_arcs, self.remedy = utt, path, max_arcs, remedy
        self.line = 1
        self.nodes: Dict[int, int] = {}
        """Name of each node -> its index, in the order of their appearance."""
        self.node_lines: List[int] = []
        self.arcs: List[Arc] = []
        self.arc_lines: List[int] = []

    def error(self, problem: str, remedy: str = "", *, line: Optional[int] = None) -> InputError:
        """Error of a line; None: of the one that is read."""
        line = self.line if line is None else line
        return InputError(problem, path=self.path, line=line, remedy=remedy or self.remedy)

    def number(self, value: str) -> float:
        """Finite number of a field."""
        return parse_number(value, path=self.path, line=self.line, remedy=self.remedy)

    def log(self, value: str, *, unit: float) -> float:
        """Natural log of a field of a unit in nats (-1: costs), -inf for the log of zero."""
        if _INFINITE.fullmatch(value) and unit * float(value) < 0:
            return -math.inf
        log = unit * self.number(value)
        if log == math.inf:
            raise self.error(f"{value[:60]!r} is too large a number")
        return log if log > LOG_ZERO else -math.inf

    def node(self, name: int) -> int:
        """Index of the node of a name, a new one where there is none."""
        index = self.nodes.setdefault(name, len(self.nodes))
        if index == len(self.node_lines):
            self.node_lines.append(self.line)
        return index

    def add(self, arc: Arc) -> None:
        """Take one more arc, whose ends are indices."""
        if len(self.arcs) == self.max_arcs:
            raise self.error(
                f"the lattice of {self.utt[:80]!r} has too many arcs, at most {self.max_arcs} were"
                " expected",
                "Prune it where it comes from, or raise --max_arcs (500 bytes each).",
            )
        self.arcs.append(arc)
        self.arc_lines.append(self.line)

    def lattice(
        self, start: int, end: int, *, times: Sequence[Optional[float]] = (), **fields: Any
    ) -> Lattice:
        """Lattice of the arcs added so far, its nodes in topological order.

        Arcs of log zero are left out, with all arcs that are on no path without them.
        """
        following: List[List[int]] = [[] for _ in self.nodes]
        for number, arc in enumerate(self.arcs):
            following[arc.source].append(number)
        order = self._order(start, following)
        if following[end]:
            problem = f"an arc begins at the end node {list(self.nodes)[end]}, where paths must end"
            line = self.arc_lines[following[end][0]]
            raise self.error(problem, "Name another end node.", line=line)
        place = {index: number for number, index in enumerate(order)}
        if times:
            fields["times"] = tuple(times[index] for index in order)
        arcs = tuple(
            arc._replace(source=place[arc.source], target=place[arc.target])
            for index in order
            for arc in (self.arcs[number] for number in following[index])
        )
        lattice = Lattice(self.utt, len(order), place[end], arcs, **fields)
        if all(EQUAL.total(arc) > -math.inf for arc in arcs):
            return lattice
        kept = pruned(lattice, EQUAL, math.inf)
        if not kept.arcs:
            raise self.error(
                f"every path of the lattice of {self.utt[:80]!r} has a score that is the log of"
                " zero, and one path with finite scores was expected",
                "Leave the lattice out, or write it anew with finite scores.",
                line=self.arc_lines[0],
            )
        return kept

    def _order(self, start: int, following: Sequence[Sequence[int]]) -> List[int]:
        """Nodes in topological order; of several possible next nodes the one of the lowest name."""
        names = list(self.nodes)
        sorter = graphlib.TopologicalSorter(dict.fromkeys(range(len(names)), ()))
        for arc in self.arcs:
            sorter.add(arc.target, arc.source)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            before, node = error.args[1][:2]
            ends = [(arc.source, arc.target) for arc in self.arcs]
            raise self.error(
                f"the lattice of {self.utt[:80]!r} has a cycle through the node {names[node]}, and"
                " none was expected",
                "A word lattice has no cycles: was a node's number changed?",
                line=self.arc_lines[ends.index((before, node))],
            ) from error
        ready: List[Tuple[int, int]] = []
        order, reached = [], {start}
        while sorter.is_active():
            for index in sorter.get_ready():
                heapq.heappush(ready, (names[index], index))
            _, index = heapq.heappop(ready)
            order.append(index)
            sorter.done(index)
            if index in reached:
                reached.update(self.arcs[number].target for number in following[index])
        lost = [index for index in range(len(names)) if index not in reached]
        if lost:
            raise self.error(
                f"the node {names[lost[0]]} cannot be reached from the start node {names[start]};"
                f" {len(lost)} of {len(names)} nodes cannot",
                "All nodes must be connected: was a part of the lattice lost?",
                line=self.node_lines[lost[0]],
            )
        return order

"""A lattice from the nodes and arcs of its file: what they must be, and their order."""

from __future__ import annotations

import heapq
import math
import re
from typing import Any, Dict, List, Optional, Sequence

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
    """Nodes and arcs of a file, with the lines where they stand, on their way to a `Lattice`.

    Args:
        utt: Utterance id.
        path: The file, for errors.
        max_arcs: The most arcs that are taken.
        remedy: What errors say that the file should be.
    """

    def __init__(self, utt: str, path: PathLike, *, max_arcs: int, remedy: str):
        self.utt, self.path, self.max_arcs, self.remedy = utt, path, max_arcs, remedy
        self.nodes: Dict[int, int] = {}
        """Name of each node -> its index, in the order of their appearance."""
        self.node_lines: List[int] = []
        self.arcs: List[Arc] = []
        self.arc_lines: List[int] = []

    def error(self, problem: str, line: int, remedy: str = "") -> InputError:
        """Error of a line."""
        return InputError(problem, path=self.path, line=line, remedy=remedy or self.remedy)

    def number(self, value: str, line: int) -> float:
        """Finite number of a field."""
        return parse_number(value, path=self.path, line=line, remedy=self.remedy)

    def log(self, value: str, line: int, *, unit: float = 1.0) -> float:
        """Natural log of a field, -inf where it is the log of zero.

        Args:
            value: The field.
            line: Its line.
            unit: What the field counts, in nats; -1 for costs.

        Raises:
            InputError: It is no number, or too large.
        """
        if _INFINITE.fullmatch(value) and unit * float(value) < 0:
            return -math.inf
        log = unit * self.number(value, line)
        if log == math.inf:
            raise self.error(f"{value[:60]!r} is too large a number", line)
        return log if log > LOG_ZERO else -math.inf

    def node(self, name: int, line: int) -> int:
        """Index of the node of a name, a new one where there is none."""
        index = self.nodes.setdefault(name, len(self.nodes))
        if index == len(self.node_lines):
            self.node_lines.append(line)
        return index

    def add(self, arc: Arc, line: int) -> None:
        """Take one more arc, whose ends are indices."""
        self.arcs.append(arc)
        self.arc_lines.append(line)

    def check_size(self, size: int, line: int) -> None:
        """Check how many arcs the lattice has, before they are in memory.

        Raises:
            InputError: They are too many.
        """
        if size > self.max_arcs:
            raise self.error(
                f"the lattice of {self.utt[:80]!r} has {size} arcs, at most {self.max_arcs} were"
                " expected",
                line,
                "Prune it where it comes from, or raise --max_arcs (500 bytes each).",
            )

    def lattice(
        self, start: int, end: int, *, times: Sequence[Optional[float]] = (), **fields: Any
    ) -> Lattice:
        """Lattice of all that was taken, its nodes in topological order.

        Arcs of log zero go, with what only they lead to and what leads only to them.

        Args:
            start: Index of the node where all paths begin.
            end: Index of the node where they end.
            times: Seconds of each node, by index.
            **fields: The other attributes.

        Raises:
            InputError: A node that the start does not reach, a cycle, no path to the end, or none
                of finite scores.
        """
        following: List[List[int]] = [[] for _ in self.nodes]
        for number, arc in enumerate(self.arcs):
            following[arc.source].append(number)
        self._check_reached(start, following)
        order = self._order(start, following)
        if following[end]:
            raise self.error(
                f"an arc begins at the end node {self._name(end)}, where paths must end",
                self.arc_lines[following[end][0]],
                "Name another end node.",
            )
        place = {index: number for number, index in enumerate(order)}
        if times:
            fields["times"] = tuple(times[index] for index in order)
        arcs = tuple(
            arc._replace(source=place[arc.source], target=place[arc.target])
            for index in order
            for arc in (self.arcs[number] for number in following[index])
        )
        return self._possible(Lattice(self.utt, len(order), place[end], arcs, **fields))

    def _possible(self, lattice: Lattice) -> Lattice:
        """Lattice without arcs of log zero.

        Raises:
            InputError: No path is left.
        """
        if all(EQUAL.total(arc) > -math.inf for arc in lattice.arcs):
            return lattice
        kept = pruned(lattice, EQUAL, math.inf)
        if not kept.arcs:
            raise self.error(
                f"every path of the lattice of {self.utt[:80]!r} has a score that is the log of"
                " zero, and one path with finite scores was expected",
                self.arc_lines[0],
                "Leave the lattice out, or write it anew with finite scores.",
            )
        return kept

    def _check_reached(self, start: int, following: Sequence[Sequence[int]]) -> None:
        """Raise an InputError where the start does not reach a node."""
        seen = [False] * len(following)
        seen[start] = True
        stack = [start]
        while stack:
            for number in following[stack.pop()]:
                target = self.arcs[number].target
                if not seen[target]:
                    seen[target] = True
                    stack.append(target)
        if all(seen):
            return
        index = seen.index(False)
        raise self.error(
            f"the node {self._name(index)} cannot be reached from the start node"
            f" {self._name(start)}; {seen.count(False)} of {len(seen)} nodes cannot",
            self.node_lines[index],
            "All nodes must be connected: was a part of the lattice lost?",
        )

    def _order(self, start: int, following: Sequence[Sequence[int]]) -> List[int]:
        """Nodes in topological order; those whose names are in it stay as they are.

        Raises:
            InputError: There is a cycle.
        """
        waiting = [0] * len(following)
        for arc in self.arcs:
            waiting[arc.target] += 1
        names = list(self.nodes)
        ready, order = [] if waiting[start] else [(names[start], start)], []
        while ready:
            _, index = heapq.heappop(ready)
            order.append(index)
            for number in following[index]:
                target = self.arcs[number].target
                waiting[target] -= 1
                if waiting[target] == 0:
                    heapq.heappush(ready, (names[target], target))
        if len(order) < len(following):
            index = self._in_cycle(waiting)
            line = next(
                line
                for arc, line in zip(self.arcs, self.arc_lines, strict=True)
                if arc.target == index and waiting[arc.source]
            )
            raise self.error(
                f"the lattice of {self.utt[:80]!r} has a cycle through the node"
                f" {self._name(index)}, and none was expected",
                line,
                "A word lattice has no cycles: was a node's number changed?",
            )
        return order

    def _in_cycle(self, waiting: Sequence[int]) -> int:
        """Index of a node of a cycle: of those left, walk backwards until one comes again."""
        before = {a.target: a.source for a in self.arcs if waiting[a.source] and waiting[a.target]}
        index = next(iter(before))
        seen = set()
        while index not in seen:
            seen.add(index)
            index = before[index]
        return index

    def _name(self, index: int) -> int:
        return next(name for name, place in self.nodes.items() if place == index)

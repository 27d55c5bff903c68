"""Word lattices: arcs with words and separate scores; their best paths and their oracle.

All scores are natural logs, higher is better. The nodes of a `Lattice` are numbered in topological
order, so that one pass over its arcs is a dynamic programme.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.normalization import Normalization, Words
from espnet_bayeslm.nbest.types import Hypothesis, NBest

NULL = ""
SILENT = frozenset(
    (NULL, "!NULL", "!SENT_START", "!SENT_END", "!ENTER", "!EXIT", "<eps>", "<s>", "</s>", "-pau-")
)
"""Labels of arcs that are no words: what separates or ends sentences, as HTK, Kaldi and SRILM
write it."""
SAME_TOTAL = 1e-9
"""Paths whose totals differ by less than this part of the best path's largest sum are equal."""

BIAS = "bias"
"""Name of the weight of the phrases of a bias list, among a lattice's scores and in lists."""

TRANSITIONS = "ids"
"""Name of the transition ids of Kaldi's arcs among their details."""

LABEL = "label as it came"
"""Name of the original label among the details of an arc of a normalised lattice."""


class Arc(NamedTuple):
    """An arc of a lattice.

    Attributes:
        source: The node where it begins.
        target: The node where it ends, of a higher number.
        label: Word of the arc, or one of `SILENT`.
        am_score: Acoustic log-likelihood, unscaled, in nats.
        lm_score: First-pass LM log-probability, in nats; 0 where the lattice has none.
        graph_score: Log-probability of the rest of the graph, in nats; 0 where it has none.
        details: Other fields of its format, kept as they came.
        bias: What its word adds to the weights of the bias list's phrases on its path.
    """

    source: int
    target: int
    label: str
    am_score: float = 0.0
    lm_score: float = 0.0
    graph_score: float = 0.0
    details: Tuple[Tuple[str, str], ...] = ()
    bias: float = 0.0

    @property
    def word(self) -> Optional[str]:
        """Word of the arc, None where it has none."""
        return None if self.label in SILENT else self.label


class PathScales(NamedTuple):
    """Weights of a path's scores; the best path has the highest weighted sum.

    Attributes:
        am: Weight of the acoustic score.
        lm: Weight of the LM score.
        graph: Weight of the graph score.
        word: Score of each word, in nats: minus the word penalty.
        bias: Weight of the phrases of a bias list, in nats.
    """

    am: float = 1.0
    lm: float = 1.0
    graph: float = 1.0
    word: float = 0.0
    bias: float = 0.0

    def total(self, arc: Arc) -> float:
        """Weighted score of an arc, in nats."""
        total = self.am * arc.am_score + self.lm * arc.lm_score + self.graph * arc.graph_score
        total += self.bias * arc.bias
        return total if arc.label in SILENT else total + self.word


EQUAL = PathScales()


def kaldi_scales(lmwt: float, word_penalty: float = 0.0) -> PathScales:
    """Scales of Kaldi's LMWT and word insertion penalty (nats per word)."""
    return PathScales(am=1.0 / lmwt, word=-word_penalty)


@dataclasses.dataclass(frozen=True)
class Lattice:
    """A word lattice: the paths from node 0 to the end node.

    Attributes:
        utt: Utterance id.
        num_nodes: Number of nodes; they are 0 ... num_nodes - 1, in topological order. All are
            reached from node 0, and some may not lead to the end.
        end: The node where all paths end.
        arcs: All arcs, sorted by source; arcs of one source in their order in the file.
        scores: Names of the scores in the lattice: some of "am_score", "lm_score",
            "graph_score" and "bias".
        scales: The weights that come with it.
        times: Seconds of each node, None where it has none; () where no node has.
        header: Other fields of its format, kept as they came.
    """

    utt: str
    num_nodes: int
    end: int
    arcs: Tuple[Arc, ...]
    scores: Tuple[str, ...] = ("am_score", "lm_score")
    scales: PathScales = EQUAL
    times: Tuple[Optional[float], ...] = ()
    header: Tuple[Tuple[str, str], ...] = ()

    def outgoing(self) -> List[List[Arc]]:
        """Arcs of each node, in their order."""
        arcs: List[List[Arc]] = [[] for _ in range(self.num_nodes)]
        for arc in self.arcs:
            arcs[arc.source].append(arc)
        return arcs


class Path(NamedTuple):
    """A path from the start of a lattice to its end."""

    words: Words
    am_score: float
    lm_score: float
    graph_score: float
    total: float
    bias: float = 0.0


def best_rest(lattice: Lattice, scales: PathScales) -> np.ndarray:
    """Best weighted score from each node to the end, (num_nodes,); -inf: it does not get there."""
    rest = [-math.inf] * lattice.num_nodes
    rest[lattice.end] = 0.0
    for arc in reversed(lattice.arcs):
        rest[arc.source] = max(rest[arc.source], scales.total(arc) + rest[arc.target])
    return np.array(rest)


# Sums of a path up to a node: the weighted one, and of its am, lm and graph scores and bias
_Sums = Tuple[float, float, float, float, float]
# Node -> sums of the best path to it
_Nodes = Dict[int, _Sums]
# The arcs of each node with their weighted scores
_Outgoing = Sequence[Sequence[Tuple[Arc, float]]]


def best_paths(lattice: Lattice, scales: PathScales, size: int) -> List[Path]:
    """Best path of each of the `size` best distinct word sequences, the best first; exact.

    A* search over the prefixes of the word sequences: an item is a prefix with the best path to
    each node that the prefix reaches (a determinization as far as it is needed). The best score
    from each node to the end is known exactly. So the search expands only prefixes of results.
    Of equal totals the longest prefix is first: if all totals are equal, the shortest first
    would expand everything.
    """
    rest = best_rest(lattice, scales).tolist()
    arcs = [
        [(arc, scales.total(arc)) for arc in outgoing if rest[arc.target] > -math.inf]
        for outgoing in lattice.outgoing()
    ]
    # of the best path alone: others may have arcs of -1e10, HTK's log of zero
    same = SAME_TOTAL * _largest_sum(arcs, rest, lattice.end) or SAME_TOTAL

    def below(total: float) -> float:
        """Distance of a total from the best, in whole units: sums differ in the last digits."""
        units = (rest[0] - total) / same
        return round(units) if math.isfinite(units) else units

    # (units below the best total, the longest first, the first made first, words, nodes reached);
    # a whole path has its sums in place of the nodes
    heap: List[Tuple[float, float, int, Words, Any]]
    heap, count = [(0, 0, 0, (), {0: (0.0,) * 5})], itertools.count(1)
    paths: List[Path] = []
    while heap and len(paths) < size:
        _, length, _, words, reached = heapq.heappop(heap)
        if length == -math.inf:
            total, am, lm, graph, bias = reached
            paths.append(Path(words, am, lm, graph, total, bias))
            continue
        nodes, following = _expanded(reached, arcs)
        if lattice.end in nodes:
            sums = nodes[lattice.end]
            heapq.heappush(heap, (below(sums[0]), -math.inf, next(count), words, sums))
        for word, after in following.items():
            best = max(sums[0] + rest[node] for node, sums in after.items())
            item = (below(best), -len(words) - 1, next(count), (*words, word), after)
            heapq.heappush(heap, item)
    return paths


def _largest_sum(arcs: _Outgoing, rest: Sequence[float], end: int) -> float:
    """Largest size of a score, or of a remaining sum, along the best path."""
    node, largest = 0, 0.0
    while node != end:
        arc, total = max(arcs[node], key=lambda pair: pair[1] + rest[pair[0].target])
        largest = max(largest, *(abs(value) for value in (total, rest[node]) if value > -math.inf))
        node = arc.target
    return largest


def _expanded(nodes: _Nodes, arcs: _Outgoing) -> Tuple[_Nodes, Dict[str, _Nodes]]:
    """Nodes with those that arcs without words lead to, and the nodes that each word leads to."""
    nodes = dict(nodes)
    following: Dict[str, _Nodes] = {}
    queue = sorted(nodes)
    while queue:
        node = heapq.heappop(queue)  # in topological order: its sums are final
        before, am, lm, graph, bias = nodes[node]
        for arc, total in arcs[node]:
            silent = arc.label in SILENT
            reached = nodes if silent else following.setdefault(arc.label, {})
            if arc.target in reached and reached[arc.target][0] >= before + total:
                continue
            if silent and arc.target not in reached:
                heapq.heappush(queue, arc.target)
            scores = am + arc.am_score, lm + arc.lm_score, graph + arc.graph_score
            reached[arc.target] = (before + total, *scores, bias + arc.bias)
    return nodes, following


def nbest_list(lattice: Lattice, size: int, scales: Optional[PathScales] = None) -> NBest:
    """N best distinct hypotheses of a lattice, with the scores that the lattice holds."""
    held = [name for name in ("lm_score", "graph_score") if name in lattice.scores]
    has_bias = BIAS in lattice.scores
    hyps = (
        Hypothesis(
            path.words,
            path.am_score,
            **{name: getattr(path, name) for name in held},
            extra={BIAS: path.bias} if has_bias else {},
        )
        for path in best_paths(lattice, scales or lattice.scales, size)
    )
    return NBest(lattice.utt, tuple(hyps), acoustic=True)


def acoustic_score(lattice: Lattice, words: Sequence[str]) -> float:
    """Acoustic log-likelihood of the best path of some words, in nats; -inf: there is none."""
    # node -> {number of words up to the node: score of the best path up to it}
    best: Dict[int, Dict[int, float]] = {0: {0: 0.0}}
    for arc in lattice.arcs:
        for position, score in best.get(arc.source, {}).items():
            if arc.label in SILENT:
                after = position
            elif position < len(words) and words[position] == arc.label:
                after = position + 1
            else:
                continue
            reached = best.setdefault(arc.target, {})
            reached[after] = max(reached.get(after, -math.inf), score + arc.am_score)
    return best.get(lattice.end, {}).get(len(words), -math.inf)


def oracle_words(lattice: Lattice, ref: Sequence[str]) -> Words:
    """Words of a path with the fewest errors (unit costs) against a reference."""
    columns = np.arange(len(ref) + 1)
    differs = {word: np.array([word != other for other in ref], dtype=int) for word in {*ref, ""}}

    def after(arc: Arc, before: np.ndarray) -> np.ndarray:
        """Fewest errors against the first j words of the reference, with one more arc."""
        if arc.word is None:
            return before
        row = before + 1  # an insertion
        np.minimum(row[1:], before[:-1] + differs.get(arc.word, differs[""]), out=row[1:])
        return np.minimum.accumulate(row - columns) + columns  # deletions

    costs = {0: columns}
    incoming: Dict[int, List[Arc]] = {}
    for arc in lattice.arcs:
        row = after(arc, costs[arc.source])
        costs[arc.target] = np.minimum(row, costs.get(arc.target, row))
        incoming.setdefault(arc.target, []).append(arc)
    words: List[str] = []
    node, j = lattice.end, len(ref)
    while node or j:
        cost = costs[node][j]
        if j and cost == costs[node][j - 1] + 1:
            j -= 1  # a deletion
            continue
        arc = next(a for a in incoming[node] if after(a, costs[a.source])[j] == cost)
        node = arc.source
        if arc.word is not None:
            words.append(arc.word)
            j -= cost != costs[node][j] + 1  # the same word, or a substitution
    return tuple(words[::-1])


def pruned(lattice: Lattice, scales: PathScales, beam: float) -> Lattice:
    """Lattice of the arcs that are on a path at most `beam` nats worse than the best.

    Args:
        lattice: The lattice.
        scales: Weights of the scores.
        beam: In nats; infinite: arcs that are on no path of a finite score go, nothing else.
    """
    rest = best_rest(lattice, scales).tolist()
    forward = [-math.inf] * lattice.num_nodes
    forward[0] = 0.0
    for arc in lattice.arcs:
        forward[arc.target] = max(forward[arc.target], forward[arc.source] + scales.total(arc))
    least = rest[0] - beam - 1e-9 * abs(rest[0])  # sums in another order differ in the last digits
    totals = [forward[a.source] + scales.total(a) + rest[a.target] for a in lattice.arcs]
    pairs = zip(lattice.arcs, totals, strict=True)
    kept = [arc for arc, total in pairs if total >= least and total > -math.inf]
    nodes = sorted({0, lattice.end, *(a.source for a in kept), *(a.target for a in kept)})
    place = {node: number for number, node in enumerate(nodes)}
    return dataclasses.replace(
        lattice,
        num_nodes=len(nodes),
        end=place[lattice.end],
        arcs=tuple(a._replace(source=place[a.source], target=place[a.target]) for a in kept),
        times=tuple(lattice.times[node] for node in nodes) if lattice.times else (),
    )


def normalized_lattice(lattice: Lattice, normalization: Normalization) -> Lattice:
    """Lattice with the normalised words of its arcs; `restored_lattice` gives their labels back.

    A word that becomes several is an arc for each, in a chain whose first arc has all scores. A
    word that becomes none is an arc without a word.
    """
    if not normalization.steps:
        return lattice

    def labels_of(arc: Arc) -> Words:
        if arc.word is None:
            return (arc.label,)
        return normalization.words((arc.word,)) or (NULL,)

    outgoing = [[(arc, labels_of(arc)) for arc in arcs] for arcs in lattice.outgoing()]
    sizes = (1 + sum(len(labels) - 1 for _, labels in pairs) for pairs in outgoing)
    *place, count = itertools.accumulate(sizes, initial=0)
    arcs: List[Arc] = []
    for node, pairs in enumerate(outgoing):
        inner = place[node]
        for arc, labels in pairs:
            nodes = [place[node], *range(inner + 1, inner + len(labels)), place[arc.target]]
            inner += len(labels) - 1
            # the first arc of a chain has the scores
            first = arc._replace(details=(*arc.details, (LABEL, arc.label)))
            chain = [first, *[Arc(0, 0, NULL, details=((LABEL, NULL),))] * (len(labels) - 1)]
            for link, label, ends in zip(chain, labels, itertools.pairwise(nodes), strict=True):
                arcs.append(link._replace(source=ends[0], target=ends[1], label=label))
    times = dict(zip(place, lattice.times, strict=False))
    return dataclasses.replace(
        lattice,
        num_nodes=count,
        end=place[lattice.end],
        arcs=tuple(sorted(arcs, key=lambda arc: arc.source)),
        times=tuple(times.get(node) for node in range(count)) if times else (),
    )


def restored_lattice(lattice: Lattice) -> Lattice:
    """Lattice with the labels that its arcs had before any normalisation."""
    arcs = []
    for arc in lattice.arcs:
        label = dict(arc.details).get(LABEL, arc.label)
        kept = tuple(pair for pair in arc.details if pair[0] != LABEL)
        arcs.append(arc._replace(label=label, details=kept))
    return dataclasses.replace(lattice, arcs=tuple(arcs))

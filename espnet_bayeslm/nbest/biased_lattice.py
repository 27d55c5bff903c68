"""Bias lists in word lattices: each arc has what its word adds to the weight of a path's phrases.

A phrase counts once on a path, and may have several words. So a lattice's node is divided by the
states of the bias list in which its paths arrive. The sum over a path's arcs is `BiasList.total` of
its words, and everything that adds up scores of arcs finds the best path under the whole total.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from typing import Callable, Dict, FrozenSet, List, Sequence, Tuple

from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasState, spelled_words
from espnet_bayeslm.nbest.lattice import BIAS, SILENT, Arc, Lattice, PathScales

START = BiasState()
# A node, and the state of the bias list there
Place = Tuple[int, BiasState]


def biased_lattice(
    lattice: Lattice, own: BiasList, weight: float, scales: PathScales, *, max_states: int = 0
) -> Lattice:
    """Lattice whose arcs have their bias, with scales that weigh it.

    A phrase is forgotten where it cannot come again, so nodes are divided no further than needed.

    Args:
        lattice: The lattice.
        own: Its bias list.
        weight: Weight of a phrase, in nats of the LM.
        scales: Weights of the other scores.
        max_states: The most states of the bias list that a node is divided by: those of the best
            paths, as the other scores and the bias have it. 0: there is no limit.
    """
    scales = scales._replace(bias=weight * (abs(scales.lm) or 1.0))
    later = _later_words(lattice, own)
    result = dataclasses.replace(lattice, scales=scales, scores=(*lattice.scores, BIAS))
    if not later[0]:  # no path holds a word of the list
        return result
    step, outgoing = _stepper(lattice, own, later), lattice.outgoing()
    outgoing[lattice.end] = []
    # per node: state -> the best total of a path there
    reached: List[Dict[BiasState, float]] = [{} for _ in range(lattice.num_nodes)]
    reached[0][START] = 0.0
    places: Dict[Place, int] = {}
    steps: List[Tuple[int, Place, Arc]] = []
    for node, states in enumerate(reached):
        for state in heapq.nlargest(max_states or len(states), states, key=states.__getitem__):
            source = places[node, state] = len(places)
            for arc in outgoing[node]:
                after, gain = step(state, arc.label, arc.target)
                taken = arc._replace(source=source, bias=gain)
                steps.append((source, (arc.target, after), taken))
                total, there = states[state] + scales.total(taken), reached[arc.target]
                there[after] = max(there.get(after, -math.inf), total)
    return dataclasses.replace(
        result,
        num_nodes=len(places),
        end=places[lattice.end, START],
        arcs=tuple(arc._replace(target=places[to]) for _, to, arc in steps if to in places),
        times=tuple(lattice.times[node] for node, _ in places) if lattice.times else (),
    )


def _later_words(lattice: Lattice, own: BiasList) -> List[FrozenSet[str]]:
    """Words of the bias list on the arcs that follow each node, of paths to the end or not."""
    words = own.words

    @functools.cache
    def biased(label: str) -> FrozenSet[str]:
        return frozenset(word for word in spelled_words(label) if word in words)

    later: List[FrozenSet[str]] = [frozenset()] * lattice.num_nodes
    for arc in reversed(lattice.arcs):
        new = later[arc.target] if arc.word is None else later[arc.target] | biased(arc.label)
        if not new <= later[arc.source]:
            later[arc.source] |= new
    return later


def _stepper(
    lattice: Lattice, own: BiasList, later: Sequence[FrozenSet[str]]
) -> Callable[[BiasState, str, int], Tuple[BiasState, float]]:
    """Function of a state, a label and the node that it leads to: the state there, and the gain."""

    @functools.cache
    def moved(state: BiasState, label: str) -> Tuple[BiasState, float]:
        after = own.after(state, label)
        return after, own.total_at(after) - own.total_at(state)

    @functools.cache
    def kept(state: BiasState, node: int) -> BiasState:
        """State without the phrases that cannot come again."""
        words = later[node].union(state.begun)
        held = (phrase for phrase in state.held if words.issuperset(phrase.split()))
        return state._replace(held=frozenset(held))

    def step(state: BiasState, label: str, node: int) -> Tuple[BiasState, float]:
        after, gain = (state, 0.0) if label in SILENT else moved(state, label)
        return START if node == lattice.end else kept(after, node), gain

    return step

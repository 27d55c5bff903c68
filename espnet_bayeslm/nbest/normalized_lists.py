"""Lists and lattices with normalised words, which remember how they came.

Scores and counts are of the normalised text; a written list has its own words.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from typing import Iterable, Iterator, List

from espnet_bayeslm.evaluation.normalization import Normalization, Words
from espnet_bayeslm.nbest.lattice import NULL, Arc, Lattice
from espnet_bayeslm.nbest.types import NBest

LABEL = "label as it came"
"""Name of the original label among the details of an arc of a normalised lattice."""


def restored(nbest: NBest) -> NBest:
    """A list as it came, before any normalisation."""
    return nbest if nbest.source is None else nbest.source


def normalized(
    lists: Iterable[NBest], normalization: Normalization, *, report: bool = True
) -> Iterator[NBest]:
    """Yield lists with normalised words, which remember how they came."""
    num_changed = num_hyps = 0
    emptied: List[str] = []
    for nbest in lists:
        hypotheses = []
        for hyp in nbest.hypotheses:
            words = normalization.words(hyp.words)
            num_hyps += 1
            num_changed += words != hyp.words
            if hyp.words and not words:
                emptied.append(f"{' '.join(hyp.words)[:40]!r} of {nbest.utt}")
            hypotheses.append(dataclasses.replace(hyp, words=words))
        ref = None if nbest.ref is None else normalization.words(nbest.ref)
        source = restored(nbest)
        yield dataclasses.replace(nbest, hypotheses=tuple(hypotheses), ref=ref, source=source)
    if not report:
        return
    steps = ",".join(normalization.steps)
    logging.info("--normalize %s changes %d of %d hypotheses", steps, num_changed, num_hyps)
    if emptied:
        logging.warning(
            "--normalize %s leaves no word of %d hypotheses, the first %s: they count as empty",
            *(steps, len(emptied), emptied[0]),
        )


def normalized_lattice(lattice: Lattice, normalization: Normalization) -> Lattice:
    """Lattice with the normalised words of its arcs; `restored_lattice` gives their labels back.

    A word that becomes several is an arc for each, in a chain whose first arc has all scores. A
    word that becomes none is an arc without a word.
    """
    if not normalization:
        return lattice

    def labels_of(arc: Arc) -> Words:
        if arc.word is None:
            return (arc.label,)
        return normalization.words((arc.word,)) or (NULL,)

    outgoing = [[(arc, labels_of(arc)) for arc in arcs] for arcs in lattice.outgoing()]
    place, count = [], 0
    for pairs in outgoing:
        place.append(count)
        count += 1 + sum(len(labels) - 1 for _, labels in pairs)
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

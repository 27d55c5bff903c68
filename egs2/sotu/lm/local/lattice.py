"""Acoustic scores of hypotheses from an HTK lattice, as PocketSphinx writes it.

A node is a word that begins at a time; the link from it to the next word carries the word's
acoustic log-likelihood (`a=`) over the time between. The recogniser's penalties for silence are
in it; its LM is not.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines

SILENT = ("!NULL", "!SENT_START", "!SENT_END")  # fillers, <s>, </s>: no words


@dataclasses.dataclass(frozen=True)
class Lattice:
    """A word lattice.

    Attributes:
        words: {node: its word, None for silence and for the ends of the sentence}.
        links: {node: (next node, acoustic score of this node's word in nats)}.
        start: The node where all paths begin.
        end: The node where they end.
    """

    words: Dict[int, Optional[str]]
    links: Dict[int, List[Tuple[int, float]]]
    start: int
    end: int


def read_htk(path: PathLike) -> Lattice:
    """Return the lattice of an HTK file (SLF): lines of `KEY=value` fields.

    Raises:
        InputError: A field is missing, or a link leads to a node that is not there.
    """
    lines = (line for _, line in read_lines(path) if not line.startswith("#"))
    entries = (dict(f.split("=", 1) for f in line.split() if "=" in f) for line in lines)
    return _lattice_of(entries, path)


def _lattice_of(entries: Iterable[Dict[str, str]], path: PathLike) -> Lattice:
    """Return the lattice that the fields of an HTK file's lines describe.

    Raises:
        InputError: As `read_htk`.
    """
    header: Dict[str, str] = {}
    words: Dict[int, Optional[str]] = {}
    scores: List[Tuple[int, int, float]] = []
    try:
        for fields in entries:
            if "I" in fields:
                words[int(fields["I"])] = None if fields["W"] in SILENT else fields["W"]
            elif "J" in fields:
                scores.append((int(fields["S"]), int(fields["E"]), float(fields["a"])))
            else:
                header.update(fields)
        start, end = int(header["start"]), int(header["end"])
    except KeyError as error:
        raise InputError(f"not an HTK lattice: the field {error} is missing", path=path) from error
    unknown = {start, end, *(node for link in scores for node in link[:2])} - set(words)
    if unknown:
        raise InputError(f"links to nodes that are not there: {sorted(unknown)[:5]}", path=path)
    # logarithms to this base (of the format SLF); PocketSphinx writes natural ones and no base
    to_nats = math.log(float(header.get("base", math.e)))
    links: Dict[int, List[Tuple[int, float]]] = {node: [] for node in words}
    for source, target, score in scores:
        links[source].append((target, score * to_nats))
    return Lattice(words, links, start, end)


def topological_order(lattice: Lattice) -> List[int]:
    """Return the nodes that the start reaches, each before those that its links lead to."""
    order: List[int] = []
    seen = {lattice.start}
    stack = [(lattice.start, iter(lattice.links[lattice.start]))]
    while stack:
        node, following = stack[-1]
        target = next((t for t, _ in following if t not in seen), None)
        if target is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(target)
            stack.append((target, iter(lattice.links[target])))
    return order[::-1]


def acoustic_scores(lattice: Lattice, hypotheses: Iterable[Sequence[str]]) -> List[float]:
    """Return each hypothesis' acoustic score: that of its best path from start to end.

    Paths differ in times, pronunciations and silences only, so the LM gives them all the same.

    Args:
        lattice: The lattice.
        hypotheses: Words, without silences.

    Returns:
        Acoustic log-likelihoods in nats; -inf where the lattice has no such path.
    """
    order = topological_order(lattice)
    return [_best_path(lattice, order, tuple(words)) for words in hypotheses]


def _best_path(lattice: Lattice, order: Sequence[int], words: Tuple[str, ...]) -> float:
    """Return the best score of the paths whose words are `words` (Viterbi)."""
    # best[node] = {number of words before and at the node: score of the best path up to it}
    best: Dict[int, Dict[int, float]] = {lattice.start: {0: 0.0}}
    for node in order:
        for position, score in best.get(node, {}).items():
            for target, link_score in lattice.links[node]:
                word = lattice.words[target]
                if word is None:
                    after = position
                elif position < len(words) and words[position] == word:
                    after = position + 1
                else:
                    continue
                reached = best.setdefault(target, {})
                reached[after] = max(reached.get(after, -math.inf), score + link_score)
    return best.get(lattice.end, {}).get(len(words), -math.inf)

"""Rescoring of word lattices: each distinct prefix of their paths goes through the LMs once.

At a node, hypotheses that share their last words are merged: the best of them goes on (Liu et al.
2014). Two cases are exact: an order as long as the paths, where only equal words are merged, and
n - 1 words for an n-gram of order n. Nodes of a level, in many lattices, are scored together.

Hypotheses are dropped by estimates of whole paths. An estimate is the score so far, plus the LM
scores that came with the rest of the lattice. Where none came, it takes the best score that the LMs
give each word after any one word that may stand before it.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.nbest.lattice import NULL, Arc, Lattice, PathScales, best_rest, pruned
from espnet_bayeslm.scoring.word_scores import END, WordScorer


class WordPrefix:
    """First words of a sentence, or some words in it; prefixes are a tree.

    Attributes:
        state: State of the scorer after the words.
        parent: The prefix without the last word; None for no words.
        word: The last word.
        depth: Number of words.
        log_probs: Score of the next words that were asked for.
    """

    __slots__ = ("children", "depth", "key", "log_probs", "parent", "state", "word")

    def __init__(self, state: Any, parent: Optional[WordPrefix] = None, word: str = ""):
        self.state, self.parent, self.word = state, parent, word
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: Dict[str, WordPrefix] = {}
        self.key: Optional[Tuple[int, Tuple[str, ...]]] = None
        self.log_probs: Dict[str, float] = {}

    def after(self, word: str, scorer: WordScorer) -> WordPrefix:
        """Prefix with one more word."""
        if word not in self.children:
            self.children[word] = WordPrefix(scorer.after(self.state, word), self, word)
        return self.children[word]

    def words(self) -> List[str]:
        """All its words."""
        return [] if self.parent is None else [*self.parent.words(), self.word]

    def last(self, order: int) -> Tuple[int, Tuple[str, ...]]:
        """Key shared by prefixes whose last `order` words are the same.

        A prefix of fewer words shares with itself only: it knows where the sentence began. A tree
        of prefixes is asked for one order.
        """
        if self.key is None:
            self.key = int(self.depth > order), tuple(self.words()[-order:])
        return self.key


Request = Tuple[WordPrefix, Sequence[str]]


class MergeOptions(NamedTuple):
    """Limits of the hypotheses of a lattice that are kept apart.

    Attributes:
        order: Hypotheses at a node are merged that share this number of last words.
        beam: Hypotheses are dropped that are worse than the best by more nats of the LM's scale, as
            whole paths are estimated.
        prune: Arcs are dropped before the search if their best path is estimated worse than the
            best by more nats.
        max_hyps: The most hypotheses of a node; 0: there is no limit.
    """

    order: int
    beam: float
    prune: float
    max_hyps: int


def rescore_lattices(
    lattices: Sequence[Lattice],
    scorer: WordScorer,
    *,
    scales: Optional[PathScales] = None,
    options: MergeOptions,
) -> List[Lattice]:
    """Lattices with new LM scores, expanded as far as hypotheses were kept apart.

    The lattices are scored together. The score of `</s>` is on an arc of its own to the end.

    Args:
        lattices: The lattices.
        scorer: The LMs.
        scales: Weights of the scores; None: the scales of each lattice. A result carries its
            scales.
        options: Limits of merging and pruning.
    """
    of_each = [[arc.label for arc in item.arcs if arc.word is not None] for item in lattices]
    words = dict.fromkeys(itertools.chain.from_iterable(of_each))
    scorer.check_plain(of_each)
    root = WordPrefix(scorer.begin(vocabulary=words))
    anywhere = WordPrefix(scorer.begin(vocabulary=words, anywhere=True))
    estimates = _estimates(lattices, root, anywhere, scorer, options)
    searches = [_Search(item, root, scorer, scales or item.scales, options) for item in estimates]
    waiting = list(searches)
    while waiting:
        _score([request for search in waiting for request in search.requests()], scorer)
        for search in waiting:
            search.advance()
        waiting = [search for search in waiting if search.level < len(search.levels)]
    return [search.lattice() for search in searches]


def _estimates(
    lattices: Sequence[Lattice],
    root: WordPrefix,
    anywhere: WordPrefix,
    scorer: WordScorer,
    options: MergeOptions,
) -> List[Lattice]:
    """Lattices with LM scores to estimate whole paths by.

    Lattices with LM scores keep them. In any other lattice a word has the best score that the LMs
    give it after any one word that may stand before it. The score of `</s>` is in the arcs to the
    end.
    """
    without = [item for item in lattices if "lm_score" not in item.scores]
    if not without or (math.isinf(options.beam) and math.isinf(options.prune)):
        return list(lattices)
    contexts = [_contexts(item, root, anywhere, scorer) for item in without]
    requests: List[Request] = []
    for item, before in zip(without, contexts, strict=True):
        for prefixes, arcs in zip(before, item.outgoing(), strict=True):
            words = list(dict.fromkeys(arc.label for arc in arcs if arc.word is not None))
            requests += [(prefix, words) for prefix in prefixes if words]
        requests += [(prefix, [END]) for prefix in before[item.end]]
    _score(requests, scorer)
    estimated = map(_estimated, without, contexts)
    return [item if "lm_score" in item.scores else next(estimated) for item in lattices]


def _contexts(
    lattice: Lattice, root: WordPrefix, anywhere: WordPrefix, scorer: WordScorer
) -> List[Dict[WordPrefix, None]]:
    """Last words of the paths to each node, as prefixes of one word; at the start the root."""
    contexts: List[Dict[WordPrefix, None]] = [{} for _ in range(lattice.num_nodes)]
    contexts[0][root] = None
    for arc in lattice.arcs:
        if arc.word is None:
            contexts[arc.target].update(contexts[arc.source])
        else:
            contexts[arc.target][anywhere.after(arc.label, scorer)] = None
    return contexts


def _estimated(lattice: Lattice, contexts: Sequence[Dict[WordPrefix, None]]) -> Lattice:
    """Lattice with the best score of each word after its contexts."""

    @functools.cache
    def best(node: int, word: str) -> float:
        return max((prefix.log_probs[word] for prefix in contexts[node]), default=0.0)

    ends, arcs = best(lattice.end, END), []
    for arc in lattice.arcs:
        score = 0.0 if arc.word is None else best(arc.source, arc.label)
        arcs.append(arc._replace(lm_score=score + ends * (arc.target == lattice.end)))
    return dataclasses.replace(lattice, arcs=tuple(arcs))


def _score(requests: Sequence[Request], scorer: WordScorer) -> None:
    """Give prefixes the scores that they are asked for."""
    wanted: Dict[WordPrefix, Dict[str, None]] = {}
    for prefix, words in requests:
        if unknown := [word for word in words if word not in prefix.log_probs]:
            wanted.setdefault(prefix, {}).update(dict.fromkeys(unknown))
    pairs = [(prefix, word) for prefix, words in wanted.items() for word in words]
    if not pairs:
        return
    found = scorer.next_words([prefix.state for prefix, _ in pairs], [word for _, word in pairs])
    for (prefix, word), score in zip(pairs, found.tolist(), strict=True):
        prefix.log_probs[word] = score


class _Search:
    """Dynamic programme over one lattice, level by level."""

    def __init__(
        self,
        estimate: Lattice,
        root: WordPrefix,
        scorer: WordScorer,
        scales: PathScales,
        options: MergeOptions,
    ):
        self.scorer = scorer
        unit = abs(scales.lm) or 1.0
        # arcs that do not lead to the end, or are unlikely to, are not scored
        estimate = pruned(estimate, scales, options.prune * unit)
        self.source, self.scales, self.options = estimate, scales, options
        self.rest = best_rest(estimate, scales).tolist()
        self.beam = options.beam * unit
        static = scales._replace(lm=0.0)
        # per node: number of an arc, its target, its word, its scores without the LM's
        self.outgoing: List[List[Tuple[int, int, Optional[str], float]]] = [
            [] for _ in range(estimate.num_nodes)
        ]
        for number, arc in enumerate(estimate.arcs):
            step = number, arc.target, arc.word, static.total(arc)
            self.outgoing[arc.source].append(step)
        self.levels = _levels(estimate)
        # per node and last words: the score of the best path there, and its words
        self.hypotheses: Dict[int, Dict[Tuple, Tuple[float, WordPrefix]]] = {
            0: {root.last(options.order): (0.0, root)}
        }
        # arcs of the rescored lattice: from a numbered node to (node, last words), by a numbered
        # arc, with the LM's score
        self.steps: List[Tuple[int, int, Tuple, int, float]] = []
        self.places: Dict[Tuple, int] = {}
        self.nodes: List[int] = []
        self.level = 0

    def _prune(self) -> None:
        """Drop hypotheses outside the beam at the nodes of the level, and all beyond `max_hyps`."""
        # a total at the end, the last level, is still without `</s>`, which other totals estimate
        early = {self.source.end} if len(self.hypotheses) > 1 else set()
        best = max(
            total + self.rest[node]
            for node, found in self.hypotheses.items()
            if node not in early
            for total, _ in found.values()
        )
        for node in self.levels[self.level]:
            # sums in another order differ in the last digits
            least = best - self.beam - 1e-9 * abs(best) - self.rest[node]
            found = self.hypotheses.get(node, {})
            kept = [item for item in found.items() if item[1][0] >= least]
            if 0 < self.options.max_hyps < len(kept):
                kept = heapq.nlargest(self.options.max_hyps, kept, key=lambda item: item[1][0])
            self.hypotheses[node] = dict(kept)

    def requests(self) -> Iterator[Request]:
        """Yield the words to score before the next level, after the level is pruned."""
        self._prune()
        for node in self.levels[self.level]:
            words = list(dict.fromkeys(word for _, _, word, _ in self.outgoing[node] if word))
            words += [END] if node == self.source.end else []
            for _, prefix in self.hypotheses[node].values():
                yield prefix, words

    def advance(self) -> None:
        """Follow the arcs of the level's nodes."""
        for node in self.levels[self.level]:
            for key, hypothesis in self.hypotheses.pop(node).items():
                self._follow(node, key, *hypothesis)
        self.level += 1

    def _follow(self, node: int, last: Tuple, total: float, prefix: WordPrefix) -> None:
        """Number a hypothesis of a node, and take the node's arcs from there."""
        source = self.places[node, last] = len(self.nodes)
        self.nodes.append(node)
        for number, target, word, static in self.outgoing[node]:
            score, after = 0.0, prefix
            if word is not None:
                score, after = prefix.log_probs[word], prefix.after(word, self.scorer)
            key = after.last(self.options.order)
            self.steps.append((source, target, key, number, score))
            new = total + static + self.scales.lm * score
            there = self.hypotheses.setdefault(target, {})
            if key not in there or there[key][0] < new:
                there[key] = new, after
        if node == self.source.end:
            self.steps.append((source, -1, (), -1, prefix.log_probs[END]))

    def lattice(self) -> Lattice:
        """Rescored lattice, of the arcs that were not outside the beam."""
        times, arcs = self.source.times, []
        for source, target, key, number, score in self.steps:
            place = len(self.nodes) if target < 0 else self.places.get((target, key))
            if place is not None:
                arc = Arc(-1, -1, NULL) if target < 0 else self.source.arcs[number]
                arcs.append(arc._replace(source=source, target=place, lm_score=score))
        result = dataclasses.replace(
            self.source,
            num_nodes=len(self.nodes) + 1,
            end=len(self.nodes),
            arcs=tuple(arcs),
            scores=tuple(dict.fromkeys((*self.source.scores, "lm_score"))),
            scales=self.scales,
            times=(*(times[node] for node in self.nodes), times[self.source.end]) if times else (),
        )
        return pruned(result, self.scales, math.inf)


def _levels(lattice: Lattice) -> List[List[int]]:
    """Nodes by the longest way to them: no arc leads from one of a level to another of it."""
    depth = [0] * lattice.num_nodes
    for arc in lattice.arcs:
        depth[arc.target] = max(depth[arc.target], depth[arc.source] + 1)
    levels: List[List[int]] = [[] for _ in range(max(depth) + 1)]
    for node, level in enumerate(depth):
        levels[level].append(node)
    return levels

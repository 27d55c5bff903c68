"""Rescoring of word lattices: each distinct prefix of their paths goes through the LMs once.

At a node, hypotheses that share their last words are merged: the best of them goes on (Liu et al.
2014). With an order as long as the paths nothing is merged but equal words, which is exact, as is
an n-gram of order n for n - 1 words. Nodes of a level, in many lattices, are scored together.

What is dropped is dropped by estimates of whole paths: their scores so far, and ahead the LM scores
that came with the lattice or, where none did, the best that the LMs give each word after any one
word that may stand before it.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

import numpy as np
import torch

from espnet_bayeslm.lm.draws import SampledLM
from espnet_bayeslm.lm.scoring import IncrementalLM
from espnet_bayeslm.nbest.lattice import NULL, Arc, Lattice, PathScales, best_rest, pruned
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.scoring.limits import BEAM, MAX_HYPS, MERGE_ORDER, PRUNE
from espnet_bayeslm.scoring.neural import NeuralScorer
from espnet_bayeslm.scoring.sequences import check_finite, evaluating, num_draws, vocab_size
from espnet_bayeslm.utils.errors import InputError

BLOCK = 32
"""Lattices that are scored together."""

END = "</s>"


class Prefix:
    """First words of a sentence.

    Args:
        parent: The words before the last; None: there are none.
        word: The last word.

    Attributes:
        depth: The number of words.
        key: What it shares with those it is merged with; None: not asked for yet.
        states: What each scorer has after them.
        log_probs: ln p of words after them, as far as it was asked for.
    """

    __slots__ = ("children", "depth", "key", "log_probs", "parent", "states", "word")

    def __init__(self, parent: Optional[Prefix] = None, word: str = ""):
        self.parent, self.word = parent, word
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.key: Optional[Tuple[int, Tuple[str, ...]]] = None
        self.children: Dict[str, Prefix] = {}
        self.states: Dict[int, Any] = {}
        self.log_probs: Dict[str, float] = {}

    def after(self, word: str) -> Prefix:
        """Prefix with one more word."""
        if word not in self.children:
            self.children[word] = Prefix(self, word)
        return self.children[word]

    def last(self, order: int) -> Tuple[int, Tuple[str, ...]]:
        """Key shared by prefixes whose last `order` words are the same.

        A prefix of fewer words shares with itself only: it knows where the sentence began. A tree
        of prefixes is asked for one order.
        """
        if self.key is not None:
            return self.key
        words: List[str] = []
        prefix = self
        while prefix.parent is not None and len(words) < order:
            words.append(prefix.word)
            prefix = prefix.parent
        self.key = int(self.depth > order), tuple(words)
        return self.key

    def last_after(self, word: str, order: int) -> Tuple[int, Tuple[str, ...]]:
        """Key `last` after one more word, before there is such a prefix."""
        return int(self.depth >= order), (word, *self.last(order)[1][: order - 1])


Request = Tuple[Prefix, Sequence[str]]


class PrefixScorer(Protocol):
    """Scorer of words after prefixes, which remembers its states in them."""

    def next_log_probs(self, requests: Sequence[Request]) -> List[np.ndarray]:
        """Ln p of the words of each request after its prefix, `</s>` among them."""
        ...

    def begin_anywhere(self, prefix: Prefix) -> None:
        """Take an empty prefix for one that may be in the midst of a sentence."""
        ...


class NgramPrefixes:
    """An n-gram as a `PrefixScorer`.

    Args:
        scorer: The n-gram.
        index: Its place in `Prefix.states`.
    """

    def __init__(self, scorer: NgramScorer, index: int):
        self.scorer, self.index = scorer, index

    def next_log_probs(self, requests: Sequence[Request]) -> List[np.ndarray]:
        """See `PrefixScorer.next_log_probs`."""
        return [
            self.scorer.next_log_probs(self._state(prefix), words) for prefix, words in requests
        ]

    def begin_anywhere(self, prefix: Prefix) -> None:
        """See `PrefixScorer.begin_anywhere`."""
        prefix.states[self.index] = self.scorer.null_state()

    def _state(self, prefix: Prefix) -> Any:
        """State after a prefix; that of its parent is there already, or is made too."""
        missing = []
        node: Optional[Prefix] = prefix
        while node is not None and self.index not in node.states:
            missing.append(node)
            node = node.parent
        for node in reversed(missing):
            if node.parent is None:
                node.states[self.index] = self.scorer.start_state()
            else:
                before = node.parent.states[self.index]
                node.states[self.index] = self.scorer.next_state(before, node.word)
        return prefix.states[self.index]


class _Token:
    """A prefix in tokens: with the LM's state after it, and ln p of the next tokens, once known."""

    __slots__ = ("children", "depth", "log_probs", "parent", "state", "token")

    def __init__(self, parent: Optional[_Token], token: int):
        self.parent, self.token = parent, token
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: Dict[int, _Token] = {}
        self.state: Any = None
        self.log_probs: Optional[np.ndarray] = None

    def after(self, token: int) -> _Token:
        if token not in self.children:
            self.children[token] = _Token(self, token)
        return self.children[token]

    def ids(self) -> List[int]:
        """All its tokens, `<sos/eos>` first."""
        before = [] if self.parent is None else self.parent.ids()
        return [*before, self.token]


class NeuralPrefixes:
    """A neural LM as a `PrefixScorer`: a tree of tokens, each node computed once.

    Args:
        scorer: The LM and its tokenizer; its weight draws are averaged.
        index: Its place in `Prefix.states`.
        vocabulary: All words that will be asked for.
        batch_size: The most prefixes of a batch.

    Raises:
        InputError: The LM has no weights to draw, or cannot be scored token by token.
    """

    def __init__(
        self, scorer: NeuralScorer, index: int, vocabulary: Iterable[str], *, batch_size: int = 512
    ):
        self.lm: Any = scorer.trained.lm
        self.index, self.batch_size = index, batch_size
        self.draws = num_draws(self.lm, scorer.num_samples)
        if self.draws and not isinstance(self.lm, SampledLM):
            raise InputError(
                f"{scorer.name}: lattices are not rescored by weight draws of {type(self.lm)}",
                remedy="Use --num_samples 0, or N-best lists.",
            )
        self.eos = vocab_size(self.lm) - 1
        # word -> its tokens as the first word of a sentence, and as another
        self.tokens = {word: scorer.word_tokens(word) for word in dict.fromkeys(vocabulary)}
        known = {t for pair in self.tokens.values() for ids in pair for t in ids} | {self.eos}
        self.kept = torch.tensor(sorted(known))
        self.column = {token: n for n, token in enumerate(sorted(known))}
        # column of a word's first token, where it is the first word, and where not
        self.first = [
            {END: self.column[self.eos]}
            | {word: self.column[pair[later][0]] for word, pair in self.tokens.items()}
            for later in (False, True)
        ]
        self.pieces = any(len(ids) > 1 for pair in self.tokens.values() for ids in pair)

    def next_log_probs(self, requests: Sequence[Request]) -> List[np.ndarray]:
        """See `PrefixScorer.next_log_probs`."""
        rows = [self._columns(prefix, words) for prefix, words in requests]
        paths = [
            {n: path for n, word in enumerate(words) if len(path := self._path(prefix, word)) > 1}
            if self.pieces
            else {}
            for prefix, words in requests
        ]
        inner = (node for found in paths for path in found.values() for node, _ in path[1:])
        self._compute([*(node for node, _ in rows), *inner])
        log_probs = [node.log_probs[columns] for node, columns in rows]  # type: ignore[index]
        for row, found in zip(log_probs, paths, strict=True):
            for n, path in found.items():
                row[n] = self._sum(path)
        return log_probs

    def begin_anywhere(self, prefix: Prefix) -> None:
        """See `PrefixScorer.begin_anywhere`: a neural LM knows beginnings only."""

    def _columns(self, prefix: Prefix, words: Sequence[str]) -> Tuple[_Token, List[int]]:
        """Tokens of a prefix, and where ln p of the first token of each word stands."""
        first = self.first[prefix.depth > 0]
        return self._node(prefix), [first[word] for word in words]

    def _node(self, prefix: Prefix) -> _Token:
        """Tokens of a prefix."""
        if self.index not in prefix.states:
            if prefix.parent is None:
                prefix.states[self.index] = _Token(None, self.eos)
            else:
                node = self._node(prefix.parent)
                for token in self.tokens[prefix.word][prefix.depth > 1]:
                    node = node.after(token)
                prefix.states[self.index] = node
        return prefix.states[self.index]

    def _path(self, prefix: Prefix, word: str) -> List[Tuple[_Token, int]]:
        """Tokens of a word, each with the node before it."""
        node, path = self._node(prefix), []
        for token in (self.eos,) if word == END else self.tokens[word][prefix.depth > 0]:
            path.append((node, token))
            node = node.after(token)
        return path

    def _sum(self, path: Sequence[Tuple[_Token, int]]) -> float:
        return float(sum(node.log_probs[self.column[token]] for node, token in path))  # type: ignore

    def _compute(self, nodes: Iterable[_Token]) -> None:
        """Compute the nodes that are not known, and those before them, the short ones first."""
        missing: Dict[_Token, None] = {}
        for start in nodes:
            node: Optional[_Token] = start
            while node is not None and node.log_probs is None and node not in missing:
                missing[node] = None
                node = node.parent
        by_depth = sorted(missing, key=lambda node: node.depth)
        with evaluating(self.lm):
            before = getattr(self.lm, "num_samples", 0)
            if self.draws:
                self.lm.num_samples = self.draws
            try:
                for _, group in itertools.groupby(by_depth, key=lambda node: node.depth):
                    while batch := list(itertools.islice(group, self.batch_size)):
                        self._step(batch)
            finally:
                if self.draws:
                    self.lm.num_samples = before

    def _step(self, nodes: Sequence[_Token]) -> None:
        """Let the LM read the last token of each node; all have the same depth."""
        # our LMs read the last token only; others want all of them
        ours = isinstance(self.lm, IncrementalLM)
        rows = [[node.token] if ours else node.ids() for node in nodes]
        ys = torch.tensor(rows, device=next(self.lm.parameters()).device)
        states = [None if node.parent is None else node.parent.state for node in nodes]
        log_probs, after = self.lm.batch_score(ys, states, ys)
        found = log_probs[:, self.kept.to(log_probs.device)].double().cpu().numpy()
        check_finite(found)
        for node, row, state in zip(nodes, found, after, strict=True):
            node.log_probs, node.state = row, state


class Mixture(Protocol):
    """How the scores of components become one."""

    def __call__(self, log_probs: np.ndarray) -> np.ndarray:
        """Score of each word, (n,), from ln p under each component, (K, n)."""
        ...


class MergeOptions(NamedTuple):
    """How far hypotheses of a lattice are kept apart.

    Attributes:
        order: Hypotheses at a node are merged that share so many last words.
        beam: Those worse than the best of all, as whole paths are estimated, by more nats of the
            LM's scale are dropped.
        prune: So are arcs, before, whose best path is estimated to be worse than the best.
        max_hyps: The most hypotheses of a node; 0: there is no limit.
    """

    order: int = MERGE_ORDER
    beam: float = BEAM
    prune: float = PRUNE
    max_hyps: int = MAX_HYPS


MERGING = MergeOptions()


class _Hypothesis(NamedTuple):
    """The best path to a node with some last words; the word comes after the prefix, if any."""

    total: float
    prefix: Prefix
    word: Optional[str] = None

    def closed(self) -> _Hypothesis:
        """The same with the word in the prefix: most hypotheses are dropped before that."""
        return self if self.word is None else _Hypothesis(self.total, self.prefix.after(self.word))


class _Step(NamedTuple):
    """An arc of the rescored lattice: from a numbered node, by an arc, to (node, last words)."""

    source: int
    target: int
    key: Tuple
    number: int
    score: float


def check_merging(options: MergeOptions) -> None:
    """Raise an InputError where an option is out of its range."""
    if options.order < 1:
        raise InputError(f"--merge_order {options.order}: 1 or more words were expected")
    for name in ("beam", "prune"):
        if not (value := getattr(options, name)) >= 0:
            raise InputError(f"--{name} {value}: a number from 0 was expected")
    if options.max_hyps < 0:
        raise InputError(f"--max_hyps_per_node {options.max_hyps}: 0 or more were expected")


def rescore_lattices(
    lattices: Iterable[Lattice],
    scorers: Sequence[Any],
    mix: Mixture,
    *,
    scales: Optional[PathScales] = None,
    options: MergeOptions = MERGING,
) -> Iterator[Lattice]:
    """Yield the lattices with new LM scores, expanded as far as hypotheses were kept apart.

    The score of `</s>` is on an arc of its own to the end.

    Args:
        lattices: The lattices; `BLOCK` of them are in memory.
        scorers: The K components: `NgramScorer` or `NeuralScorer`.
        mix: What makes one score of theirs.
        scales: Weights of the scores; None: those of each lattice. A result carries them.
        options: What is merged.

    Raises:
        InputError: An option, or an LM, cannot be used.
    """
    check_merging(options)
    remaining = iter(lattices)
    while block := list(itertools.islice(remaining, BLOCK)):
        words = {arc.label: None for item in block for arc in item.arcs if arc.word is not None}
        parts = [prefix_scorer(scorer, n, words) for n, scorer in enumerate(scorers)]
        root = Prefix()
        estimates = _estimates(block, root, parts, mix, options)
        searches = [_Search(item, root, scales or item.scales, options) for item in estimates]
        waiting = list(searches)
        while waiting:
            _score([request for search in waiting for request in search.requests()], parts, mix)
            for search in waiting:
                search.advance()
            waiting = [search for search in waiting if not search.done]
        yield from (search.lattice() for search in searches)


def _estimates(
    lattices: Sequence[Lattice],
    root: Prefix,
    parts: Sequence[PrefixScorer],
    mix: Mixture,
    options: MergeOptions,
) -> List[Lattice]:
    """Lattices with LM scores to estimate whole paths by.

    They are the scores that came. Where there are none, they are the best that the LMs give a word
    after any one word that may stand before it; that of `</s>` is in the arcs to the end.
    """
    without = [item for item in lattices if "lm_score" not in item.scores]
    if not without or (math.isinf(options.beam) and math.isinf(options.prune)):
        return list(lattices)
    anywhere = Prefix()
    for part in parts:
        part.begin_anywhere(anywhere)
    contexts = [_contexts(item, root, anywhere) for item in without]
    requests: List[Request] = []
    for item, before in zip(without, contexts, strict=True):
        for prefixes, arcs in zip(before, item.outgoing(), strict=True):
            words = list(dict.fromkeys(arc.label for arc in arcs if arc.word is not None))
            requests += [(prefix, words) for prefix in prefixes if words]
        requests += [(prefix, [END]) for prefix in before[item.end]]
    _score(requests, parts, mix)
    estimated = iter([_estimated(*pair) for pair in zip(without, contexts, strict=True)])
    return [item if "lm_score" in item.scores else next(estimated) for item in lattices]


def _contexts(lattice: Lattice, root: Prefix, anywhere: Prefix) -> List[Dict[Prefix, None]]:
    """Last words of the paths to each node, as prefixes of one word; at the start that of none."""
    contexts: List[Dict[Prefix, None]] = [{} for _ in range(lattice.num_nodes)]
    contexts[0][root] = None
    for arc in lattice.arcs:
        if arc.word is None:
            contexts[arc.target].update(contexts[arc.source])
        else:
            contexts[arc.target][anywhere.after(arc.label)] = None
    return contexts


def _estimated(lattice: Lattice, contexts: Sequence[Dict[Prefix, None]]) -> Lattice:
    """Lattice with the best score of each word after its contexts."""
    ends = max((prefix.log_probs[END] for prefix in contexts[lattice.end]), default=0.0)
    best: Dict[Tuple[int, str], float] = {}
    arcs = []
    for arc in lattice.arcs:
        score = 0.0
        if arc.word is not None:
            place = arc.source, arc.label
            if place not in best:
                best[place] = max(prefix.log_probs[arc.label] for prefix in contexts[arc.source])
            score = best[place]
        arcs.append(arc._replace(lm_score=score + ends * (arc.target == lattice.end)))
    return dataclasses.replace(lattice, arcs=tuple(arcs))


def prefix_scorer(scorer: Any, index: int, vocabulary: Iterable[str]) -> PrefixScorer:
    """`PrefixScorer` of a component."""
    if isinstance(scorer, NgramScorer):
        return NgramPrefixes(scorer, index)
    if isinstance(scorer, NeuralScorer):
        return NeuralPrefixes(scorer, index, vocabulary)
    raise InputError(f"lattices cannot be rescored by a {type(scorer).__name__}")


def _score(requests: Iterable[Request], parts: Sequence[PrefixScorer], mix: Mixture) -> None:
    """Give prefixes the scores that they are asked for."""
    wanted: Dict[Prefix, Dict[str, None]] = {}
    for prefix, words in requests:
        if unknown := [word for word in words if word not in prefix.log_probs]:
            wanted.setdefault(prefix, {}).update(dict.fromkeys(unknown))
    missing = [(prefix, list(words)) for prefix, words in wanted.items()]
    if not missing:
        return
    found = np.stack([np.concatenate(part.next_log_probs(missing)) for part in parts])
    scores = iter(mix(found).tolist())
    for prefix, words in missing:
        prefix.log_probs.update(zip(words, itertools.islice(scores, len(words)), strict=True))


class _Search:
    """Dynamic programme over one lattice, level by level.

    Args:
        estimate: The lattice, with LM scores to estimate whole paths by.
        root: The empty prefix.
        scales: Weights of the scores.
        options: What is merged, and what is dropped.
    """

    def __init__(self, estimate: Lattice, root: Prefix, scales: PathScales, options: MergeOptions):
        unit = abs(scales.lm) or 1.0
        # what does not lead to the end is not scored, and what is not likely to
        estimate = pruned(estimate, scales, options.prune * unit)
        self.source, self.scales, self.options = estimate, scales, options
        self.rest = best_rest(estimate, scales).tolist()
        self.beam = options.beam * unit
        static = scales._replace(lm=0.0)
        # per node: number of an arc, its target, its word, its scores but that of the LM
        self.outgoing: List[List[Tuple[int, int, Optional[str], float]]] = [
            [] for _ in range(estimate.num_nodes)
        ]
        for number, arc in enumerate(estimate.arcs):
            step = number, arc.target, arc.word, static.total(arc)
            self.outgoing[arc.source].append(step)
        self.levels = _levels(estimate)
        self.hypotheses: Dict[int, Dict[Tuple, _Hypothesis]] = {
            0: {root.last(options.order): _Hypothesis(0.0, root)}
        }
        self.steps: List[_Step] = []
        self.places: Dict[Tuple, int] = {}
        self.nodes: List[int] = []
        self.level = 0

    @property
    def done(self) -> bool:
        """Whether all levels are behind."""
        return self.level == len(self.levels)

    def _prune(self) -> None:
        """Drop what is outside the beam at the nodes of the level, and what are too many."""
        # a total at the end, the last level, is still without `</s>`, which the others estimate
        early = {self.source.end} if len(self.hypotheses) > 1 else set()
        best = max(
            item.total + self.rest[node]
            for node, found in self.hypotheses.items()
            if node not in early
            for item in found.values()
        )
        for node in self.levels[self.level]:
            # sums in another order differ in the last digits
            least = best - self.beam - 1e-9 * abs(best) - self.rest[node]
            found = self.hypotheses.get(node, {})
            kept = [item for item in found.items() if item[1].total >= least]
            if 0 < self.options.max_hyps < len(kept):
                kept = heapq.nlargest(self.options.max_hyps, kept, key=lambda item: item[1].total)
            self.hypotheses[node] = {key: item.closed() for key, item in kept}

    def requests(self) -> Iterator[Request]:
        """Yield what has to be known before the next level, after what is outside is dropped."""
        self._prune()
        for node in self.levels[self.level]:
            words = list(dict.fromkeys(word for _, _, word, _ in self.outgoing[node] if word))
            words += [END] if node == self.source.end else []
            for hypothesis in self.hypotheses[node].values():
                yield hypothesis.prefix, words

    def advance(self) -> None:
        """Follow the arcs of the level's nodes."""
        for node in self.levels[self.level]:
            for key, hypothesis in self.hypotheses.pop(node).items():
                source = len(self.nodes)
                self.places[node, key] = source
                self.nodes.append(node)
                self._follow(source, hypothesis, node)
        self.level += 1

    def _follow(self, source: int, hypothesis: _Hypothesis, node: int) -> None:
        """Take the arcs of a node from a hypothesis."""
        total, prefix, _ = hypothesis
        order, last = self.options.order, prefix.last(self.options.order)
        for number, target, word, static in self.outgoing[node]:
            score = 0.0 if word is None else prefix.log_probs[word]
            key = last if word is None else prefix.last_after(word, order)
            self.steps.append(_Step(source, target, key, number, score))
            new = total + static + self.scales.lm * score
            there = self.hypotheses.setdefault(target, {})
            if key not in there or there[key].total < new:
                there[key] = _Hypothesis(new, prefix, word)
        if node == self.source.end:
            self.steps.append(_Step(source, -1, (), -1, prefix.log_probs[END]))

    def _arcs(self) -> Iterator[Arc]:
        """Yield the arcs that were not outside the beam."""
        for source, target, key, number, score in self.steps:
            place = len(self.nodes) if target < 0 else self.places.get((target, key))
            if place is not None:
                arc = Arc(-1, -1, NULL) if target < 0 else self.source.arcs[number]
                yield arc._replace(source=source, target=place, lm_score=score)

    def lattice(self) -> Lattice:
        """Rescored lattice."""
        times = self.source.times
        result = dataclasses.replace(
            self.source,
            num_nodes=len(self.nodes) + 1,
            end=len(self.nodes),
            arcs=tuple(self._arcs()),
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

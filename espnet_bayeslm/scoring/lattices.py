"""Rescoring of word lattices: each distinct prefix of their paths goes through the LMs once.

At a node, hypotheses that share their last words are merged: the best of them goes on (Liu et al.
2014). With an order as long as the paths nothing is merged but equal words, which is exact, as is
an n-gram of order n for n - 1 words. Nodes of a level, in many lattices, are scored together.
"""

from __future__ import annotations

import dataclasses
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

from espnet_bayeslm.lm.scoring import IncrementalLM
from espnet_bayeslm.nbest.lattice import NULL, Arc, Lattice, PathScales, pruned
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.scoring.neural import NeuralScorer
from espnet_bayeslm.scoring.sequences import check_finite, evaluating, num_draws, vocab_size
from espnet_bayeslm.utils.errors import InputError

MERGE_ORDER = 4
BEAM = 20.0
"""In nats, of the LM's scale."""

BLOCK = 16
"""Lattices that are scored together."""

END = "</s>"


class Prefix:
    """First words of a sentence.

    Args:
        parent: The words before the last; None: there are none.
        word: The last word.

    Attributes:
        depth: The number of words.
        states: What each scorer has after them.
        log_probs: ln p of words after them, as far as it was asked for.
    """

    __slots__ = ("children", "depth", "log_probs", "parent", "states", "word")

    def __init__(self, parent: Optional[Prefix] = None, word: str = ""):
        self.parent, self.word = parent, word
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: Dict[str, Prefix] = {}
        self.states: Dict[int, Any] = {}
        self.log_probs: Dict[str, float] = {}

    def after(self, word: str) -> Prefix:
        """Prefix with one more word."""
        if word not in self.children:
            self.children[word] = Prefix(self, word)
        return self.children[word]

    def last(self, order: int) -> Tuple[int, Tuple[str, ...]]:
        """What two prefixes share whose last `order` words are the same.

        A prefix of fewer words shares with itself only: it knows where the sentence began.
        """
        words: List[str] = []
        prefix = self
        while prefix.parent is not None and len(words) < order:
            words.append(prefix.word)
            prefix = prefix.parent
        return int(self.depth > order), tuple(words)


Request = Tuple[Prefix, Sequence[str]]


class PrefixScorer(Protocol):
    """What scores words after prefixes, and remembers its states in them."""

    def next_log_probs(self, requests: Sequence[Request]) -> List[np.ndarray]:
        """Return ln p of the words of each request after its prefix, `</s>` among them."""
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
        if self.draws and not hasattr(self.lm, "num_samples"):
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

    def next_log_probs(self, requests: Sequence[Request]) -> List[np.ndarray]:
        """See `PrefixScorer.next_log_probs`."""
        paths = [[self._path(prefix, word) for word in words] for prefix, words in requests]
        self._compute([node for of_words in paths for path in of_words for node, _ in path])
        return [np.array([self._sum(path) for path in of_words]) for of_words in paths]

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
        """Return the score of each word, (n,), from ln p under each component, (K, n)."""
        ...


class MergeOptions(NamedTuple):
    """How far hypotheses of a lattice are kept apart.

    Attributes:
        order: Hypotheses at a node are merged that share so many last words.
        beam: Those worse than the best at their node by more nats, of the LM's scale, are dropped.
    """

    order: int = MERGE_ORDER
    beam: float = BEAM


MERGING = MergeOptions()


class _Hypothesis(NamedTuple):
    """The best path to a node with some last words."""

    total: float
    prefix: Prefix


@dataclasses.dataclass
class _Expanded:
    """Arcs of the rescored lattice, and its nodes as they are numbered."""

    arcs: List[Tuple[int, Tuple, Arc]]
    places: Dict[Tuple, int]
    nodes: List[int]


def check_merging(options: MergeOptions) -> None:
    """Raise an InputError where an option is out of its range."""
    if options.order < 1:
        raise InputError(f"--merge_order {options.order}: 1 or more words were expected")
    if not options.beam >= 0:
        raise InputError(f"--beam {options.beam}: a number from 0 was expected")


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
        searches = [_Search(item, root, scales or item.scales, options) for item in block]
        waiting = list(searches)
        while waiting:
            _score([request for search in waiting for request in search.requests()], parts, mix)
            for search in waiting:
                search.advance()
            waiting = [search for search in waiting if not search.done]
        yield from (search.lattice() for search in searches)


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
        for word in words:
            if word not in prefix.log_probs:
                wanted.setdefault(prefix, {})[word] = None
    missing = [(prefix, list(words)) for prefix, words in wanted.items()]
    if not missing:
        return
    found = [part.next_log_probs(missing) for part in parts]
    for (prefix, words), *rows in zip(missing, *found, strict=True):
        prefix.log_probs.update(zip(words, mix(np.stack(rows)).tolist(), strict=True))


class _Search:
    """Dynamic programme over one lattice, level by level.

    Args:
        lattice: The lattice.
        root: The empty prefix.
        scales: Weights of the scores.
        options: What is merged.
    """

    def __init__(self, lattice: Lattice, root: Prefix, scales: PathScales, options: MergeOptions):
        # what does not lead to the end is not scored
        self.source = pruned(lattice, scales, math.inf)
        self.scales, self.options = scales, options
        self.outgoing = self.source.outgoing()
        self.levels = _levels(self.source)
        self.hypotheses: List[Dict[Tuple, _Hypothesis]] = [{} for _ in self.outgoing]
        self.hypotheses[0][root.last(options.order)] = _Hypothesis(0.0, root)
        self.expanded = _Expanded([], {}, [])
        self.level = 0
        self._prune()

    @property
    def done(self) -> bool:
        """Whether all levels are behind."""
        return self.level == len(self.levels)

    def _prune(self) -> None:
        """Drop what is outside the beam at the nodes of the level."""
        for node in self.levels[self.level]:
            found = self.hypotheses[node]
            if found:
                best = max(item.total for item in found.values())
                least = best - self.options.beam * abs(self.scales.lm)
                self.hypotheses[node] = {k: v for k, v in found.items() if v.total >= least}

    def requests(self) -> Iterator[Request]:
        """Yield what has to be known before the next level."""
        for node in self.levels[self.level]:
            words = list(dict.fromkeys(a.label for a in self.outgoing[node] if a.word is not None))
            words += [END] if node == self.source.end else []
            for hypothesis in self.hypotheses[node].values():
                yield hypothesis.prefix, words

    def advance(self) -> None:
        """Follow the arcs of the level's nodes."""
        for node in self.levels[self.level]:
            for key, hypothesis in self.hypotheses[node].items():
                number = len(self.expanded.nodes)
                self.expanded.places[node, key] = number
                self.expanded.nodes.append(node)
                for arc in self.outgoing[node]:
                    self._follow(number, hypothesis, arc)
                if node == self.source.end:
                    score = hypothesis.prefix.log_probs[END]
                    self.expanded.arcs.append((number, (-1,), Arc(-1, -1, NULL, lm_score=score)))
            self.hypotheses[node] = {}
        self.level += 1
        if not self.done:
            self._prune()

    def _follow(self, number: int, hypothesis: _Hypothesis, arc: Arc) -> None:
        """Take one arc from a hypothesis."""
        prefix = hypothesis.prefix
        score = 0.0 if arc.word is None else prefix.log_probs[arc.label]
        after = prefix if arc.word is None else prefix.after(arc.label)
        new = arc._replace(lm_score=score)
        total = hypothesis.total + self.scales.total(new)
        key = after.last(self.options.order)
        self.expanded.arcs.append((number, (arc.target, key), new))
        known = self.hypotheses[arc.target].get(key)
        if known is None or known.total < total:
            self.hypotheses[arc.target][key] = _Hypothesis(total, after)

    def lattice(self) -> Lattice:
        """Rescored lattice."""
        nodes, places = self.expanded.nodes, self.expanded.places
        places[(-1,)] = len(nodes)
        arcs = tuple(
            arc._replace(source=source, target=places[target])
            for source, target, arc in self.expanded.arcs
            if target in places  # else it was outside the beam
        )
        times = self.source.times
        result = dataclasses.replace(
            self.source,
            num_nodes=len(nodes) + 1,
            end=len(nodes),
            arcs=arcs,
            scores=tuple(dict.fromkeys((*self.source.scores, "lm_score"))),
            scales=self.scales,
            times=(*(times[node] for node in nodes), times[self.source.end]) if times else (),
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

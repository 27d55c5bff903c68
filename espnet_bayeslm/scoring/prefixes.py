"""ln p of words after prefixes of a sentence, by any LM: each distinct prefix is computed once."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.lm.scoring import IncrementalLM
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.scorer import LMScorer
from espnet_bayeslm.scoring.tree_lm import ESPnetTreeLM, check_log_probs
from espnet_bayeslm.scoring.word_scores import WordScorer
from espnet_bayeslm.utils.errors import InputError

END = "</s>"
BATCH_SIZE = 512
"""The most prefixes that an LM scores at once."""


class _Node:
    """A node of a tree: the labels on the way to it are a prefix."""

    __slots__ = ("children", "depth", "label", "parent")

    def __init__(self, parent: Any = None, label: Any = None):
        self.parent, self.label = parent, label
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: Dict[Any, Any] = {}

    def after(self, label: Any) -> Any:
        """Prefix with one more label."""
        if label not in self.children:
            self.children[label] = type(self)(self, label)
        return self.children[label]

    def labels(self) -> List[Any]:
        """Labels from the root to the node."""
        return [] if self.parent is None else [*self.parent.labels(), self.label]


class WordPrefix(_Node):
    """First words of a sentence; the root may be `anywhere` in a sentence.

    A neural LM, which knows beginnings only, takes such a root for a beginning.

    Attributes:
        key: Key that prefixes share which are merged; None: not asked for yet.
        states: Scorer's index -> its state after the words.
        log_probs: ln p of the next words that were asked for.
    """

    __slots__ = ("anywhere", "key", "log_probs", "states")

    def __init__(
        self, parent: Optional[WordPrefix] = None, label: str = "", *, anywhere: bool = False
    ):
        super().__init__(parent, label)
        self.anywhere = anywhere
        self.key: Optional[Tuple[int, Tuple[str, ...]]] = None
        self.states: Dict[int, Any] = {}
        self.log_probs: Dict[str, float] = {}

    def last(self, order: int) -> Tuple[int, Tuple[str, ...]]:
        """Key shared by prefixes whose last `order` words are the same.

        A prefix of fewer words shares with itself only: it knows where the sentence began. A tree
        of prefixes is asked for one order.
        """
        if self.key is None:
            self.key = int(self.depth > order), tuple(self.labels()[-order:])
        return self.key


Request = Tuple[WordPrefix, Sequence[str]]


NextLogProbs = Callable[[Sequence[Request]], List[np.ndarray]]
"""Ln p of the words of each request after its prefix, `</s>` among them, by one component."""


def _ngram_prefixes(scorer: NgramScorer, index: int) -> NextLogProbs:
    """Function that scores words by an n-gram, whose states after prefixes are kept in them."""

    def state(prefix: WordPrefix) -> Any:
        if index not in prefix.states:
            if prefix.parent is not None:
                found = scorer.next_state(state(prefix.parent), prefix.label)
            else:
                found = scorer.first_state(anywhere=prefix.anywhere)
            prefix.states[index] = found
        return prefix.states[index]

    return lambda requests: [scorer.next_log_probs(state(p), words) for p, words in requests]


class _Token(_Node):
    """A prefix in tokens: with the LM's state after it, and ln p of the next tokens, once known."""

    __slots__ = ("log_probs", "opening", "state")

    def __init__(self, parent: Optional[_Token], token: int):
        super().__init__(parent, token)
        self.state: Any = None
        # None: not computed yet
        self.log_probs: Any = None
        # ln of the probability that a word has ended here
        self.opening = 0.0


class NeuralPrefixes:
    """A neural LM: a tree of tokens, each node computed once."""

    def __init__(self, scorer: LMScorer, index: int, vocabulary: Iterable[str]):
        self.tree_lm, reader = scorer.tree_lm, scorer.reader
        self.lm: Any = self.tree_lm.model
        self.index = index
        self.draws = self.tree_lm.num_draws(scorer.num_samples)
        if self.draws and not isinstance(self.lm, UncertainLM):
            raise InputError(
                f"{scorer.name}: {type(self.lm).__name__} cannot rescore lattices with samples",
                remedy="Use --num_samples 0, or N-best lists.",
            )
        # of a mixture its components
        self.uncertain = [lm for lm in self.lm.modules() if isinstance(lm, UncertainLM)]
        self.eos = reader.start[0]
        # word -> its tokens as the first word of a sentence, and as another
        self.tokens = {}
        for word in dict.fromkeys(vocabulary):
            ids, (_, second, end) = reader.encode([word, word])
            self.tokens[word] = ids[:second], ids[second:end]
        known = {t for pair in self.tokens.values() for ids in pair for t in ids} | {self.eos}
        self.kept = torch.tensor(sorted(known))
        self.column = {token: n for n, token in enumerate(sorted(known))}
        # it is 0 where tokens are not words
        self.log_unk_size = scorer.log_unk_size
        self.unknown = {word for word, (_, ids) in self.tokens.items() if reader.unk in ids}
        self.openings = reader.openings

    def next_log_probs(self, requests: Sequence[Request]) -> List[np.ndarray]:
        """Ln p of the requested words, as `words.word_log_probs` has it, averaged over samples."""
        # of each word the node before it, then the nodes of its tokens
        paths = [[self._path(prefix, word) for word in words] for prefix, words in requests]
        needed = []
        for path in itertools.chain(*paths):
            # the LM reads a word's last token only to know whether the word ends there
            ends = self.openings is not None and path[-1].label != self.eos
            needed += path if ends or len(path) == 1 else path[:-1]
        self._compute(needed)

        def log_prob(path: Sequence[_Token], word: str) -> float:
            pairs = itertools.pairwise(path)
            total = sum(before.log_probs[self.column[node.label]] for before, node in pairs)
            # nothing comes after `</s>`, whose node is not read
            total += path[-1].opening - path[0].opening
            return total - self.log_unk_size * (word in self.unknown)

        return [
            np.array([log_prob(*pair) for pair in zip(of_prefix, words, strict=True)])
            for of_prefix, (_, words) in zip(paths, requests, strict=True)
        ]

    def _node(self, prefix: WordPrefix) -> _Token:
        """Tokens of a prefix."""
        if self.index not in prefix.states:
            parent, name = prefix.parent, prefix.label
            node = _Token(None, self.eos) if parent is None else self._path(parent, name)[-1]
            prefix.states[self.index] = node
        return prefix.states[self.index]

    def _path(self, prefix: WordPrefix, word: str) -> List[_Token]:
        """Node before a word, then the nodes of its tokens."""
        path = [self._node(prefix)]
        for token in (self.eos,) if word == END else self.tokens[word][prefix.depth > 0]:
            path.append(path[-1].after(token))
        return path

    def _compute(self, nodes: Iterable[_Token]) -> None:
        """Compute unknown nodes and their unknown ancestors, the short ones first."""
        missing: Dict[_Token, None] = {}
        for start in nodes:
            node: Optional[_Token] = start
            while node is not None and node.log_probs is None and node not in missing:
                missing[node] = None
                node = node.parent
        by_depth = sorted(missing, key=lambda node: node.depth)
        # a beam search may have another number
        before = [lm.num_samples for lm in self.uncertain]
        for lm in self.uncertain:
            lm.num_samples = self.draws
        try:
            with self.tree_lm.evaluating():
                for _, group in itertools.groupby(by_depth, key=lambda node: node.depth):
                    while batch := list(itertools.islice(group, BATCH_SIZE)):
                        self._step(batch)
        finally:
            for lm, number in zip(self.uncertain, before, strict=True):
                lm.num_samples = number

    def _step(self, nodes: Sequence[_Token]) -> None:
        """Let the LM read the last token of each node; all have the same depth."""
        # our LMs read the last token only; others want all of them
        ours = isinstance(self.lm, IncrementalLM)
        rows = [[node.label] if ours else [self.eos, *node.labels()] for node in nodes]
        ys = torch.tensor(rows, device=next(self.lm.parameters()).device)
        states = [None if node.parent is None else node.parent.state for node in nodes]
        log_probs, after = self.lm.batch_score(ys, states, ys)
        found = log_probs[:, self.kept.to(log_probs.device)].double().cpu().numpy()
        check_log_probs(found)
        if self.openings is not None and nodes[0].depth:
            masses = log_probs[:, self.openings.to(log_probs.device)].logsumexp(1).tolist()
            for node, mass in zip(nodes, masses, strict=True):
                node.opening = mass
        for node, row, state in zip(nodes, found, after, strict=True):
            node.log_probs, node.state = row, state


def _read_again(scorer: WordScorer, requests: Sequence[Request]) -> List[np.ndarray]:
    """Ln p of the requested words by any scorer of sentences, which reads each prefix again."""
    sentences, places = [], []
    for prefix, words in requests:
        before = tuple(prefix.labels())
        sentences += [before if word == END else (*before, word) for word in words]
        places += [len(before)] * len(words)
    scores = scorer.word_scores(sentences)
    found = [score.log_probs[n] for score, n in zip(scores, places, strict=True)]
    ends = np.cumsum([len(words) for _, words in requests])
    return np.split(np.array(found), ends[:-1])


def prefix_scorer(scorer: Any, index: int, vocabulary: Iterable[str]) -> NextLogProbs:
    """Function that scores words after prefixes by a component; its states have the index."""
    if isinstance(scorer, NgramScorer):
        return _ngram_prefixes(scorer, index)
    if isinstance(scorer, LMScorer) and isinstance(scorer.tree_lm, ESPnetTreeLM):
        return NeuralPrefixes(scorer, index, vocabulary).next_log_probs
    return functools.partial(_read_again, scorer)

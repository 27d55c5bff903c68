"""ln p of words after prefixes of a sentence, by an LM: each distinct prefix is computed once.

The prefixes of a search are a tree of tokens. A node is read when a score needs it, many nodes at
once, from the states that the LM has kept at their parents. Scores of a sentence's words and of its
end sum to its ln P.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.scoring.log_probs import diverged_error
from espnet_bayeslm.scoring.reader import WordReader
from espnet_bayeslm.scoring.tree_lm import TreeLM
from espnet_bayeslm.scoring.word_scores import END

BATCH_SIZE = 512
"""The most prefixes that an LM scores at once."""


class PrefixSearch:
    """One search over prefixes.

    Attributes:
        columns: {token: its place among the log-probabilities that are kept}.
        memory: Whatever the LM keeps for the search, by its own names.
    """

    def __init__(self, columns: Dict[int, int]):
        self.columns, self.memory = columns, {}  # type: Dict[int, int], Dict[str, Any]


class TokenPrefix:
    """First tokens of a sentence, its start among them.

    Attributes:
        search: The search that it belongs to.
        parent: The prefix without the last token; None for the first token.
        token: The last token.
        depth: Number of tokens before the last.
        state: State of the LM after it.
        log_probs: Ln p of the next tokens, (kept tokens,); None: not computed yet.
        opening: Ln of the probability that a word has ended here; 0 at the start.
    """

    __slots__ = (
        *("children", "depth", "log_probs", "opening", "parent", "search", "state", "token"),
    )

    def __init__(self, search: PrefixSearch, parent: Optional[TokenPrefix], token: int):
        self.search, self.parent, self.token = search, parent, token
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: Dict[int, TokenPrefix] = {}
        self.state: Any = None
        self.log_probs: Any = None
        self.opening = 0.0

    def after(self, token: int) -> TokenPrefix:
        """Prefix with one more token."""
        if token not in self.children:
            self.children[token] = TokenPrefix(self.search, self, token)
        return self.children[token]

    def tokens(self) -> Tuple[int, ...]:
        """All its tokens."""
        before = () if self.parent is None else self.parent.tokens()
        return (*before, self.token)


class WordState(NamedTuple):
    """Words of a sentence so far, as an LM knows them.

    Attributes:
        prefix: Their tokens.
        word: The last word; None before the first.
    """

    prefix: TokenPrefix
    word: Optional[str] = None


class PrefixScorer:
    """Scores words after prefixes by an LM.

    Args:
        reader: Cuts words into the LM's tokens.
        tree_lm: The LM.
        num_samples: Number of weight samples whose probabilities are averaged; 0: the posterior
            mean.
        log_unk_size: Cost of each word with `<unk>`, in nats.

    Attributes:
        how: All of these.
    """

    def __init__(self, reader: WordReader, tree_lm: TreeLM, num_samples: int, log_unk_size: float):
        self.how = (reader, tree_lm, num_samples, log_unk_size)
        self._reader, self._lm = reader, tree_lm
        self._num_samples, self._log_unk_size = num_samples, log_unk_size
        # word -> its tokens as the first word of a sentence, as another, and an end's after it
        self._tokens: Dict[str, Tuple[List[int], List[int], List[int]]] = {}
        self._start_end = reader.encode([]).ids

    def begin(
        self, vocabulary: Optional[Iterable[str]] = None, *, same_weights: bool = False
    ) -> WordState:
        """State before the first word.

        Args:
            vocabulary: The words that may be asked for, which saves memory; None: any.
            same_weights: True if the weights are those of the search before.
        """
        columns = self._every_column
        if vocabulary is not None:
            parts = [self._start_end, *(ids for w in vocabulary for ids in self._tokens_of(w))]
            tokens = sorted({token for ids in parts for token in ids} | {*self._reader.start})
            columns = {token: n for n, token in enumerate(tokens)}
        if not same_weights:
            self._lm.begin()
        search = PrefixSearch(columns)
        first, *others = self._reader.start
        prefix = TokenPrefix(search, None, first)
        for token in others:
            prefix = prefix.after(token)
        return WordState(prefix)

    @functools.cached_property
    def _every_column(self) -> Dict[int, int]:
        """Columns of all tokens: a large vocabulary takes milliseconds."""
        return {token: token for token in range(self._lm.vocab_size)}

    def after(self, state: WordState, word: str) -> WordState:
        """State after one more word; nothing is computed yet."""
        return WordState(self._path(state, word)[-1], word)

    def next_words(self, states: Sequence[WordState], words: Sequence[str]) -> np.ndarray:
        """Ln p of a word, or of `END`, after each state, (N,), averaged over samples."""
        has_openings = self._reader.openings is not None
        paths = [self._path(state, word) for state, word in zip(states, words, strict=True)]
        needed: List[TokenPrefix] = []
        for path, word in zip(paths, words, strict=True):
            # the LM reads a word's last token only to know whether the word ends there
            reads_last = has_openings and word != END
            needed += path if reads_last or len(path) == 1 else path[:-1]
        self._compute(needed)
        found = np.zeros(len(paths))
        for n, (path, word) in enumerate(zip(paths, words, strict=True)):
            columns = path[0].search.columns
            pairs = itertools.pairwise(path)
            found[n] = sum(before.log_probs[columns[node.token]] for before, node in pairs)
            found[n] -= path[0].opening
            if word != END:
                unknown = self._reader.unk in self._tokens_of(word)[0]
                found[n] += path[-1].opening - self._log_unk_size * unknown
        return found

    def _tokens_of(self, word: str) -> Tuple[List[int], List[int], List[int]]:
        """Tokens of a word as the first of a sentence, as a later one, and of the end after it."""
        if word not in self._tokens:
            ids, (_, second, end) = self._reader.encode([word, word])
            alone = self._reader.encode([word])
            self._tokens[word] = ids[:second], ids[second:end], alone.ids[alone.starts[-1] :]
        return self._tokens[word]

    def _path(self, state: WordState, word: str) -> List[TokenPrefix]:
        """Prefix of a state, then a node for each token of the word or end after it."""
        if word == END:
            tokens = self._start_end if state.word is None else self._tokens_of(state.word)[2]
        else:
            tokens = self._tokens_of(word)[state.word is not None]
        path = [state.prefix]
        for token in tokens:
            path.append(path[-1].after(token))
        return path

    def _compute(self, nodes: Iterable[TokenPrefix]) -> None:
        """Compute unknown nodes and their unknown ancestors, the short ones first."""
        missing: Dict[TokenPrefix, None] = {}
        for start in nodes:
            node: Optional[TokenPrefix] = start
            while node is not None and node.log_probs is None and node not in missing:
                missing[node] = None
                node = node.parent
        size = min(BATCH_SIZE, self._lm.max_nodes)

        def alike(node: TokenPrefix) -> Tuple[int, int]:
            """Key of the prefixes that the LM reads at once."""
            return id(node.search), node.depth if self._lm.steps_by_length else 0

        ordered = sorted(missing, key=lambda node: (id(node.search), node.depth))
        with self._lm.stepping(self._num_samples):
            for _, group in itertools.groupby(ordered, key=alike):
                while batch := list(itertools.islice(group, size)):
                    self._step(batch)

    def _step(self, nodes: Sequence[TokenPrefix]) -> None:
        """Let the LM read the last token of each node; all are of one search."""
        log_probs, states = self._lm.step(nodes, self._num_samples)
        openings = self._reader.openings
        if openings is not None:
            places = openings.nonzero().squeeze(1).to(log_probs.device)
            masses = log_probs[:, places].logsumexp(1).tolist()
            for node, mass in zip(nodes, masses, strict=True):
                node.opening = mass if node.depth >= len(self._reader.start) else 0.0
        columns = nodes[0].search.columns
        if len(columns) < log_probs.size(1):
            kept = torch.tensor([*columns], device=log_probs.device)
            log_probs = log_probs[:, kept]
        rows = log_probs.cpu().numpy()
        if not np.isfinite(rows).all():
            raise diverged_error()
        for node, row, state in zip(nodes, rows, states, strict=True):
            node.log_probs, node.state = row, state

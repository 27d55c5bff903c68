"""Ln p of the tokens of many sentences by a causal LM: one forward pass over their prefix tree.

The distinct prefixes are one sequence of nodes. A node's position is its depth, and a 4-D mask lets
it see its ancestors and itself. A model that cannot take such a mask is found by a probe, and reads
padded batches.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.lm.tree import TokenTree, build_tree
from espnet_bayeslm.utils.errors import InputError

Ids = Tuple[int, ...]
# A sequence, and how many of its first tokens are read and not scored
Item = Tuple[Ids, int]
MAX_NODES = 512
# Rows of logits that become float32 log-probabilities at a time
ROWS = 128
# Largest difference in nats between a tree and a single sequence, by rounding alone
TOLERANCE = 1e-2


class TreeScorer:
    """Scores sequences of tokens by a causal LM.

    Args:
        model: A causal LM of `transformers`, in evaluation mode.
        openings: (V,) bool, True for tokens that end the word before them.
        max_nodes: The most nodes of a forward pass.

    Attributes:
        takes_trees: True if the model can read a prefix tree; False: padded batches.

    Raises:
        InputError: The model is not causal.
    """

    def __init__(self, model: Any, openings: torch.Tensor, *, max_nodes: int = MAX_NODES):
        self.model, self.max_nodes = model, max_nodes
        self.device = next(model.parameters()).device
        self.openings = openings.nonzero().squeeze(1).to(self.device)
        self.takes_trees = self._probe(len(openings))

    def log_probs(self, sequences: Sequence[Ids], scored: Sequence[int]) -> List[np.ndarray]:
        """Ln p of the last tokens of sequences, given all tokens before.

        Args:
            sequences: Tokens; the first is never scored.
            scored: How many of the last tokens are scored, for each sequence.

        Returns:
            (2, scored) float64 for each: ln p of each token; ln P(the next token opens a word or
            ends the sentence) in its context.
        """
        found: Dict[Ids, np.ndarray] = {}
        for batch in self.batches(sequences):
            logits, paths = self.predictions(batch)
            found.update(zip(batch, self.of_paths(logits, batch, paths), strict=True))
        rows = zip(sequences, scored, strict=True)
        return [found[ids][:, found[ids].shape[1] - count :] for ids, count in rows]

    @torch.no_grad()
    def predictions(self, batch: Sequence[Ids]) -> Tuple[torch.Tensor, List[np.ndarray]]:
        """Logits (T, V) after all prefixes, and the prefixes of each sequence, (n - 1,) rows."""
        return self._tree(batch) if self.takes_trees else self._padded(batch)

    def batches(self, sequences: Sequence[Ids]) -> Iterator[List[Ids]]:
        """Yield runs of distinct sequences, in lexical order, whose tree has few nodes."""
        ordered = sorted(set(sequences))
        batch: List[Ids] = []
        size, longest = 0, 0
        for ids in ordered:
            shared = _shared(batch[-1], ids) if batch and self.takes_trees else 0
            more = len(ids) - shared
            if not self.takes_trees:
                longest = max(longest, len(ids))
                more = longest * (len(batch) + 1) - size
            if batch and (size + more > self.max_nodes or ids[0] != batch[0][0]):
                yield batch
                batch, size, longest = [], 0, len(ids)
                more = len(ids)
            batch.append(ids)
            size += more
        if batch:
            yield batch

    def _tree(self, batch: Sequence[Ids]) -> Tuple[torch.Tensor, List[np.ndarray]]:
        """Predictions by one pass over the prefix tree of a batch."""
        tree, paths = build_tree([[ids[1:-1] for ids in batch]], batch[0][0])
        return self._tree_logits(tree), paths

    def _tree_logits(self, tree: TokenTree) -> torch.Tensor:
        """Logits of the token after each node, (T, V)."""
        mask = torch.full((1, 1, len(tree), len(tree)), torch.finfo(self.model.dtype).min)
        mask[0, 0][ancestors(tree)] = 0.0
        return self.model(
            input_ids=tree.tokens.unsqueeze(0).to(self.device),
            attention_mask=mask.to(self.device, self.model.dtype),
            position_ids=tree.depths.unsqueeze(0).to(self.device),
            use_cache=False,
        ).logits[0]

    def _padded(self, batch: Sequence[Ids]) -> Tuple[torch.Tensor, List[np.ndarray]]:
        """Predictions by one pass over a padded batch."""
        lengths = [len(ids) - 1 for ids in batch]
        size = (len(batch), max(lengths))
        table = torch.zeros(size, dtype=torch.long)
        for row, ids in zip(table, batch, strict=True):
            row[: len(ids) - 1] = torch.tensor(ids[:-1])
        mask = torch.arange(size[1]) < torch.tensor(lengths).unsqueeze(1)
        logits = self.model(
            input_ids=table.to(self.device),
            attention_mask=mask.long().to(self.device),
            use_cache=False,
        ).logits
        paths = [n * size[1] + np.arange(length) for n, length in enumerate(lengths)]
        return logits.flatten(0, 1), paths

    def of_paths(
        self, logits: torch.Tensor, batch: Sequence[Ids], paths: Sequence[np.ndarray]
    ) -> List[np.ndarray]:
        """Scores of all tokens but the first, (2, n - 1), from the logits at their nodes.

        Args:
            logits: (T, V).
            batch: The sequences.
            paths: Nodes whose next tokens are ids[1:], (n - 1,) for each sequence.
        """
        contexts = torch.from_numpy(np.concatenate(paths)).to(self.device)
        targets = torch.tensor([token for ids in batch for token in ids[1:]], device=self.device)
        normalizers, masses = [], []
        for rows in logits.split(ROWS):
            rows = rows.float()
            normalizers.append(rows.logsumexp(1))
            masses.append(rows[:, self.openings].logsumexp(1))
        normalizer = torch.cat(normalizers)
        tokens = logits[contexts, targets].float() - normalizer[contexts]
        opens = (torch.cat(masses) - normalizer)[contexts]
        both = torch.stack([tokens, opens]).double().cpu().numpy()
        ends = np.cumsum([len(path) for path in paths])
        return np.split(both, ends[:-1], axis=1)

    def _scored(self, read: Callable[..., Any], batch: Sequence[Ids]) -> List[np.ndarray]:
        """Scores of a batch that is read in one of the two ways."""
        logits, paths = read(batch)
        return self.of_paths(logits, batch, paths)

    @torch.no_grad()
    def _probe(self, vocab_size: int) -> bool:
        """True if the model reads a prefix tree as it reads single sequences.

        Raises:
            InputError: A token changes the prediction of the tokens before it.
        """
        ids = [n % vocab_size for n in (5, 9, 7, 11, 13)]
        rows = [tuple(ids), (*ids[:2], ids[4], ids[3], ids[2]), (*ids[:3], ids[0])]
        alone = [self._scored(self._padded, [row])[0] for row in rows]
        shorter = self._scored(self._padded, [rows[0][:3]])[0]
        if not np.allclose(alone[0][:, :2], shorter, atol=TOLERANCE):
            raise InputError(
                "the model is not causal: later words change the probabilities of earlier ones",
                remedy="Give a causal LM (a decoder), and not an encoder.",
            )
        try:
            tree = self._scored(self._tree, sorted(rows))
        except (RuntimeError, ValueError, TypeError, IndexError):
            return False
        pairs = zip(tree, (alone[rows.index(row)] for row in sorted(rows)), strict=True)
        return all(np.allclose(a, b, atol=TOLERANCE) for a, b in pairs)


def ancestors(tree: TokenTree) -> torch.Tensor:
    """(T, T) bool, True where a row's node has a column's node before it, or is it."""
    seen = torch.eye(len(tree), dtype=torch.bool)
    levels = tree.levels()
    for level in levels[1:]:
        seen[level] |= seen[tree.parents[level]]
    return seen


def _shared(one: Ids, other: Ids) -> int:
    """Length of the common prefix of two sequences."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

"""Log-probabilities over prefix trees: each distinct prefix goes through the LM once."""

from __future__ import annotations

import itertools
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.lm.tree import TokenTree, build_tree
from espnet_bayeslm.scoring.lms import Ids
from espnet_bayeslm.scoring.output_layer import log_probs_of_outputs

Group = Sequence[Ids]


def shared_prefix(a: Ids, b: Ids) -> int:
    """Return how many tokens two sequences begin with in common."""
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))


def tree_batches(sequences: Sequence[Ids], *, max_tokens: int) -> Iterator[Group]:
    """Yield runs of sequences whose prefix tree has at most so many nodes.

    Args:
        sequences: In lexical order, each once.
        max_tokens: The most nodes; a longer sequence is a batch by itself.
    """
    start, size = 0, 0
    for end, ids in enumerate(sequences):
        common = shared_prefix(sequences[end - 1], ids) if end > start else -1
        if end > start and size + len(ids) - common > max_tokens:
            yield sequences[start:end]
            start, size, common = end, 0, -1
        size += len(ids) - common
    if start < len(sequences):
        yield sequences[start:]


def tree_size(sequences: Sequence[Ids]) -> int:
    """Return how many nodes the prefix tree of sequences in lexical order has."""
    shared = sum(1 + shared_prefix(a, b) for a, b in itertools.pairwise(sequences))
    return sum(len(ids) + 1 for ids in sequences) - shared


def tree_log_probs(
    lm: Any,
    tree: TokenTree,
    paths: Sequence[np.ndarray],
    *,
    starts: Optional[Sequence[int]] = None,
    states: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    log_z: Optional[float] = None,
) -> Iterator[np.ndarray]:
    """Yield ln p of the tokens and `</s>` of each sequence of one or more trees, (n + 1,).

    Args:
        lm: One of our LMs, in evaluation mode, told its weights by `before_scoring`.
        tree: The trees.
        paths: Each sequence's nodes.
        starts: Where on its path each sequence begins: after that node. What is before needs no
            softmax. None: after the root.
        states: Of a recurrent LM h and c before the roots; None: those of a text's beginning.
        log_z: What is taken for every context's ln Z; None: it is computed.
    """
    contexts, targets = targets_of(tree, paths, lm.vocab_size - 1)
    outputs = lm.tree_outputs(tree) if states is None else lm.tree_outputs(tree, states)
    weight, bias = lm.decoder.weight, lm.decoder.bias
    if starts is None:
        starts = [0] * len(paths)
        values, _ = log_probs_of_outputs(outputs, contexts, targets, weight, bias, log_z=log_z)
    else:
        wanted = _wanted(tree, paths, starts)
        rows, which = contexts[wanted].unique(return_inverse=True)
        found, _ = log_probs_of_outputs(
            outputs[rows], which, targets[wanted], weight, bias, log_z=log_z
        )
        values = found.new_zeros(len(contexts)).index_put_((wanted,), found)
    every = along_paths(values.to("cpu", torch.float64).numpy(), tree, paths)
    for start, log_probs in zip(starts, every, strict=True):
        yield log_probs[start:]


def _wanted(tree: TokenTree, paths: Sequence[np.ndarray], starts: Sequence[int]) -> torch.Tensor:
    """Which of the targets of `targets_of` are a sequence's own, and not before it; indices."""
    num_roots = tree.level_sizes[0]
    own = np.zeros(len(tree) + len(paths), dtype=bool)
    own[len(tree) :] = True
    for path, start in zip(paths, starts, strict=True):
        own[path[start + 1 :]] = True
    return torch.from_numpy(np.flatnonzero(own[num_roots:])).to(tree.tokens.device)


def batch_tree(lm: Any, group: Group) -> Tuple[TokenTree, List[np.ndarray]]:
    """Return the tree of a batch, on the LM's device, and each sequence's nodes."""
    tree, paths = build_tree([group], lm.vocab_size - 1)
    return tree.to(lm.decoder.weight.device), paths


def along_paths(
    found: np.ndarray, tree: TokenTree, paths: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield (..., n + 1) values of the tokens and `</s>` of each sequence.

    Args:
        found: Values in the order of `targets_of`, (..., N).
        tree: The trees.
        paths: Each sequence's nodes.
    """
    num_roots, num_nodes = tree.level_sizes[0], len(tree) - tree.level_sizes[0]
    for number, path in enumerate(paths):
        yield found[..., np.append(path[1:] - num_roots, num_nodes + number)]


def targets_of(
    tree: TokenTree, paths: Sequence[np.ndarray], eos: int
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the context and the target of each node but the roots, then of each `</s>`."""
    first = tree.level_sizes[0]
    ends = torch.tensor([int(path[-1]) for path in paths], device=tree.tokens.device)
    contexts = torch.cat([tree.parents[first:], ends])
    return contexts, torch.cat([tree.tokens[first:], torch.full_like(ends, eos)])

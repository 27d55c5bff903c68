"""Scores that depend on the earlier sentences of a recording.

An LM reads a recording as one text, `<sos/eos> w1 .. wn <sos/eos> v1 ..`: a sentence's end is the
next one's beginning. A recurrent LM continues from its state after the last word; a Transformer
reads the last tokens again, the first of them at position 0. An LM that was trained on single
sentences has never seen a `<sos/eos>` in the middle: try on dev whether context helps.
"""

from __future__ import annotations

from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.lm.protocols import RecurrentTreeLM, TreeLM, has_tree_states
from espnet_bayeslm.lm.tree import build_tree
from espnet_bayeslm.scoring.limits import MAX_CONTEXT, MAX_TOKENS
from espnet_bayeslm.scoring.log_probs import tree_batches, tree_log_probs, tree_size
from espnet_bayeslm.scoring.sequences import (
    Ids,
    Normalizer,
    check_tokens,
    mean_log_probs,
    over_draws,
    require_tree,
    vocab_size,
)

State = Tuple[torch.Tensor, torch.Tensor]


class History(NamedTuple):
    """State of an LM after the recording so far; None stands for a recording's beginning.

    Attributes:
        tokens: The last tokens, with a `<sos/eos>` before each sentence; of a recurrent LM none.
        states: h and c of a recurrent LM after the recording so far, (nlayers, unit), for each
            sample.
    """

    tokens: Ids = ()
    states: Tuple[State, ...] = ()


Histories = Sequence[Optional[History]]


class _Piece(NamedTuple):
    """Hypotheses of one group, or some of them, that are scored in one tree.

    Attributes:
        number: Number of the group.
        history: History of the group.
        prefix: First tokens of the tree, the root first: `<sos/eos>`, or more tokens before it.
        sequences: The hypotheses, in lexical order.
    """

    number: int
    history: Optional[History]
    prefix: Ids
    sequences: Sequence[Ids]

    def in_full(self) -> List[Ids]:
        """Sequences with the prefix before them, but the root."""
        return [(*self.prefix[1:], *ids) for ids in self.sequences]


def score_in_context(
    lm: Any,
    groups: Sequence[Sequence[Sequence[int]]],
    histories: Histories,
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
    normalizer: Optional[Normalizer] = None,
    openings: Optional[torch.Tensor] = None,
) -> List[List[np.ndarray]]:
    """(n + 1,) ln p of the tokens and `</s>` of hypotheses, given the recording before.

    Args:
        lm: One of our LMs.
        groups: Token ids, without `<sos/eos>`, of the hypotheses of an utterance, for each of
            some recordings.
        histories: History of each of these recordings; None at its beginning.
        max_tokens: The most distinct prefixes of a batch; a Transformer's context counts.
        num_samples: Number of weight samples, the same as for `extend`; 0: the posterior mean.
        normalizer: Its mean is taken for the ln Z of every context.
        openings: (V,) bool, True for the tokens that end the word before them: the result then is
            (2, n + 1).
    """
    require_tree(lm, "context")
    for group in groups:
        check_tokens(group, vocab_size(lm))
    log_z = None if normalizer is None else normalizer.mean
    if openings is not None:
        openings = openings.to(next(lm.parameters()).device)
    pieces = list(_pieces(lm, groups, histories, max_tokens))

    def score(index: int) -> Iterator[Tuple[Tuple[int, Ids], np.ndarray]]:
        for batch in _batches(pieces, max_tokens):
            yield from _scores(lm, batch, index, log_z=log_z, openings=openings)

    found = mean_log_probs(lm, num_samples, score)
    return [[found[n, tuple(ids)] for ids in group] for n, group in enumerate(groups)]


def extend(
    lm: Any,
    histories: Histories,
    chosen: Sequence[Sequence[int]],
    *,
    num_samples: int = 0,
    max_context: int = MAX_CONTEXT,
) -> List[History]:
    """Histories after one more utterance of each recording.

    Args:
        lm: One of our LMs.
        histories: Histories before the utterance; None at a recording's beginning.
        chosen: Token ids of each utterance.
        num_samples: Number of weight samples, the same as for `score_in_context`.
        max_context: The most tokens that a Transformer reads again.
    """
    require_tree(lm, "context")
    check_tokens(chosen, vocab_size(lm))
    sos = vocab_size(lm) - 1
    if not has_tree_states(lm):
        before = [() if history is None else history.tokens for history in histories]
        texts = [(*old, sos, *ids) for old, ids in zip(before, chosen, strict=True)]
        return [History(tokens=text[max(0, len(text) - max_context) :]) for text in texts]
    if not chosen:
        return []
    tree, paths = build_tree([[tuple(ids)] for ids in chosen], sos)
    tree = tree.to(lm.decoder.weight.device)
    ends = [int(path[-1]) for path in paths]

    def read(index: int) -> List[State]:
        h, c = lm.tree_states(tree, _stacked(lm, histories, index))
        return lm.split_state((h[:, ends], c[:, ends]))

    states = over_draws(lm, num_samples, read)
    return [History(states=of_draws) for of_draws in zip(*states, strict=True)]


def _pieces(
    lm: Any,
    groups: Sequence[Sequence[Sequence[int]]],
    histories: Histories,
    max_tokens: int,
) -> Iterator[_Piece]:
    """Yield the groups, in pieces whose trees have at most `max_tokens` nodes."""
    sos = vocab_size(lm) - 1
    for number, (group, history) in enumerate(zip(groups, histories, strict=True)):
        prefix = (*(() if history is None else history.tokens), sos)
        whole = _Piece(number, history, prefix, sorted({tuple(ids) for ids in group}))
        start = 0
        for sequences in tree_batches(whole.in_full(), max_tokens=max_tokens):
            end = start + len(sequences)
            yield whole._replace(sequences=whole.sequences[start:end])
            start = end


def _batches(pieces: Sequence[_Piece], max_tokens: int) -> Iterator[List[_Piece]]:
    """Yield runs of pieces whose trees have at most `max_tokens` nodes together."""
    batch: List[_Piece] = []
    room = max_tokens
    for piece in pieces:
        size = tree_size(piece.in_full())
        if batch and size > room:
            yield batch
            batch, room = [], max_tokens
        batch.append(piece)
        room -= size
    if batch:
        yield batch


def _scores(
    lm: TreeLM, batch: Sequence[_Piece], index: int, **options: Any
) -> Iterator[Tuple[Tuple[int, Ids], np.ndarray]]:
    """Yield ((number of the group, hypothesis), its ln p) of a batch; options of the tree's."""
    tree, paths = build_tree([piece.in_full() for piece in batch], lm.vocab_size - 1)
    # the roots are the first nodes
    tree.tokens[: len(batch)] = torch.tensor([piece.prefix[0] for piece in batch])
    tree = tree.to(lm.decoder.weight.device)
    rows = [(piece, ids) for piece in batch for ids in piece.sequences]
    starts = [len(piece.prefix) - 1 for piece, _ in rows]
    states = None
    if has_tree_states(lm):
        states = _stacked(lm, [piece.history for piece in batch], index)
    found = tree_log_probs(lm, tree, paths, starts=starts, states=states, **options)
    for (piece, ids), log_probs in zip(rows, found, strict=True):
        yield (piece.number, ids), log_probs


def _stacked(lm: RecurrentTreeLM, histories: Histories, index: int) -> State:
    """States h and c of a sample before the roots, (nlayers, G, unit) each."""
    states = [lm.zero_state() if h is None else h.states[index] for h in histories]
    return lm.stack_states(states)

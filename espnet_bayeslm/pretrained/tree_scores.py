"""Ln p of the tokens of many sentences by a causal LM: one forward pass over their prefix tree.

The distinct prefixes are one sequence of nodes. A node's position is its depth, and a 4-D mask lets
it see its ancestors and itself. A model that cannot take such a mask is found by a probe, and reads
padded batches.
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from espnet_bayeslm.lm.tree import build_tree
from espnet_bayeslm.pretrained.loaded_weights import check_finite
from espnet_bayeslm.scoring.log_probs import (
    Ids,
    log_probs_of_outputs,
    padded_batches,
    tree_batches,
)
from espnet_bayeslm.utils.errors import InputError

# More nodes make products of matrices no faster, and attention slower
MAX_NODES = 256
# Hidden states that are projected at once, so that the output layer's weights are packed seldom
PROJECTED = 4096
# From so many hidden states on packing costs less than it gains
PACKED = 192
# Rows of logits that become float32 log-probabilities at a time
ROWS = 128
# Largest difference in nats between a tree and a single sequence, by rounding alone
TOLERANCE = 1e-2
# The same of logits, relative to their spread
LOGIT_TOLERANCE = 1e-3


WINDOWS = {
    **{"sliding_window": 1, "window_size": 1, "attention_chunk_size": 1, "local_attention": 2},
    # some models have a mask of so many places
    "max_position_embeddings": 1,
}
"""Names that configurations give an attention's reach, and what they are divided by."""


def attention_window(causal: Any) -> int:
    """Number of tokens that every layer reads, the token itself among them."""
    config = causal.config.get_text_config()
    found = ((getattr(config, name, None) or 0) // part for name, part in WINDOWS.items())
    return min((size for size in found if size > 0), default=sys.maxsize)


class TreeScorer:
    """Scores sequences of tokens by a causal LM.

    Args:
        model: A causal LM of `transformers`, in evaluation mode.

    Attributes:
        takes_trees: True if the model can read a prefix tree; False: padded batches. Sequences
            longer than its attention reaches are read padded too.

    Raises:
        InputError: The model is not causal.
    """

    def __init__(self, model: Any):
        self.model, self._window = model, attention_window(model)
        # some models count the window in places, not by the mask
        self._max_nodes = min(MAX_NODES, self._window)
        self.device = next(model.parameters()).device
        # peft's model has the one of transformers inside
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._decoder: Optional[nn.Linear] = None
        if projects_linearly(causal):
            self._body, self._decoder = causal.base_model, causal.get_output_embeddings()
        self._vocab_size = len(model.get_output_embeddings().weight)
        self.takes_trees = self._probe()

    @torch.no_grad()
    def log_probs(
        self, sequences: Sequence[Ids], scored: Sequence[int], openings: torch.Tensor
    ) -> List[np.ndarray]:
        """Ln p of the last tokens of sequences, given all tokens before.

        Args:
            sequences: Tokens; the first is never scored.
            scored: How many of the last tokens are scored, for each sequence.
            openings: (size of the tokenizer,) bool, True for tokens that end the word before them.

        Returns:
            (2, scored) float64 for each: ln p of each token; ln P(the next token opens a word or
            ends the sentence) in its context.
        """
        counts: Dict[Ids, int] = {}
        for ids, count in zip(sequences, scored, strict=True):
            counts[ids] = max(count, counts.get(ids, 0))
        found: Dict[Ids, np.ndarray] = {}
        batches = self.batches(counts)
        # states of a run of batches are kept until they are projected together
        at_once = 1 if self._decoder is None else math.ceil(PROJECTED / self._max_nodes)
        while run := list(itertools.islice(batches, at_once)):
            states, contexts, size = [], [], 0
            for batch in run:
                rows, paths = self.states(batch)
                last = [
                    path[len(path) - counts[ids] :] for ids, path in zip(batch, paths, strict=True)
                ]
                # only states after which a token is scored are projected
                used, places = np.unique(np.concatenate(last), return_inverse=True)
                states.append(rows[torch.from_numpy(used).to(self.device)])
                contexts.append(places + size)
                size += len(used)
            done = [ids for batch in run for ids in batch]
            targets = [ids[len(ids) - counts[ids] :] for ids in done]
            scores = self.scores(torch.cat(states), np.concatenate(contexts), targets, openings)
            found.update(zip(done, scores, strict=True))
        pairs = zip(sequences, scored, strict=True)
        return [found[ids][:, found[ids].shape[1] - count :] for ids, count in pairs]

    @torch.no_grad()
    def states(self, batch: Sequence[Ids]) -> Tuple[torch.Tensor, List[np.ndarray]]:
        """States (T, M) after all prefixes, and the prefixes of each sequence, (n - 1,) rows.

        States are inputs of the output projection, or logits where there is more than that.
        """
        in_reach = max(map(len, batch)) - 1 <= self._window
        return self._tree(batch) if self.takes_trees and in_reach else self._padded(batch)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits (T, V) of states."""
        return states if self._decoder is None else self._decoder(states)

    def scores(
        self,
        states: torch.Tensor,
        contexts: np.ndarray,
        targets: Sequence[Sequence[int]],
        openings: torch.Tensor,
    ) -> List[np.ndarray]:
        """Scores as of `log_probs` of the tokens of each sequence, (2, n).

        Args:
            states: (T, M).
            contexts: (N,) row of `states` before each token, sequence after sequence.
            targets: n tokens of each sequence, N in all.
            openings: As of `log_probs`.
        """
        # a tokenizer may have fewer or more tokens than its model
        opens = nn.functional.pad(openings, (0, self._vocab_size - len(openings))).to(self.device)
        rows = torch.from_numpy(contexts).to(self.device)
        tokens = torch.tensor([token for ids in targets for token in ids], device=self.device)
        if self._decoder is None or len(states) < PACKED:
            both = _log_probs_of_logits(self.logits(states), rows, tokens, opens)
        else:
            weight, bias = self._decoder.weight, self._decoder.bias
            bias = weight.new_zeros(len(weight)) if bias is None else bias
            both = log_probs_of_outputs(states, rows, tokens, weight, bias, openings=opens)
        ends = np.cumsum([len(ids) for ids in targets])
        return np.split(both.double().cpu().numpy(), ends[:-1], axis=1)

    def batches(self, sequences: Iterable[Ids]) -> Iterator[Sequence[Ids]]:
        """Runs of distinct sequences for a forward pass each."""
        sequences = set(sequences)
        last = max(map(max, sequences), default=0)
        if last >= self._vocab_size:
            raise InputError(
                f"the text has token {last}, and the LM's embedding {self._vocab_size} rows",
                remedy="Take words that are marks of the LM's tokenizer out of the text.",
            )
        if self.takes_trees:
            return tree_batches(sorted(sequences), max_tokens=self._max_nodes)
        return padded_batches(sorted(sequences, key=len), max_tokens=self._max_nodes)

    def _tree(self, batch: Sequence[Ids]) -> Tuple[torch.Tensor, List[np.ndarray]]:
        """States of one pass over the prefix tree of a batch."""
        tree, paths = build_tree([[ids[1:-1] for ids in batch]], batch[0][0])
        # each node sees its ancestors and itself
        seen = torch.eye(len(tree), dtype=torch.bool)
        for level in tree.levels()[1:]:
            seen[level] |= seen[tree.parents[level]]
        mask = torch.full((1, 1, len(tree), len(tree)), torch.finfo(self.model.dtype).min)
        mask[0, 0][seen] = 0.0
        states = self._read(
            input_ids=tree.tokens.unsqueeze(0),
            attention_mask=mask.to(self.model.dtype),
            position_ids=tree.depths.unsqueeze(0),
        )
        return states[0], paths

    def _padded(self, batch: Sequence[Ids]) -> Tuple[torch.Tensor, List[np.ndarray]]:
        """States of one pass over a padded batch."""
        lengths = [len(ids) - 1 for ids in batch]
        rows = [torch.tensor(ids[:-1]) for ids in batch]
        table = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.arange(table.size(1)) < torch.tensor(lengths).unsqueeze(1)
        states = self._read(input_ids=table, attention_mask=mask.long())
        paths = [n * table.size(1) + np.arange(length) for n, length in enumerate(lengths)]
        return states.flatten(0, 1), paths

    def _read(self, **inputs: torch.Tensor) -> torch.Tensor:
        """States (B, L, M) of the model's inputs."""
        placed = {name: value.to(self.device) for name, value in inputs.items()}
        if self._decoder is None:
            return self.model(**placed, use_cache=False).logits
        return self._body(**placed, use_cache=False).last_hidden_state

    def _scored(self, read: Callable[..., Any], batch: Sequence[Ids]) -> List[np.ndarray]:
        """Scores of a batch that is read in one of the two ways."""
        states, paths = read(batch)
        openings = torch.arange(self._vocab_size) % 2 == 0
        return self.scores(states, np.concatenate(paths), [ids[1:] for ids in batch], openings)

    @torch.no_grad()
    def _probe(self) -> bool:
        """True if the model reads a prefix tree as it reads a padded batch; it must be causal."""
        ids = [n % self._vocab_size for n in (5, 9, 7, 11, 13)]
        rows = [tuple(ids), (*ids[:2], ids[4], ids[3], ids[2]), (*ids[:3], ids[0])]
        *alone, shorter = self._scored(self._padded, [*rows, rows[0][:3]])
        if any(np.isnan(scores).any() for scores in alone):
            check_finite(self.model, "the LM")
            raise InputError(
                "the LM's logits are not finite, though its weights are",
                remedy="Give --precision float32, or another LM.",
            )
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


@torch.no_grad()
def projects_linearly(causal: Any) -> bool:
    """True if the logits are the output projection of the last hidden state, and no more."""
    decoder = causal.get_output_embeddings()
    if not isinstance(decoder, nn.Linear):
        return False
    ids = torch.tensor([[1, 2, 3]], device=decoder.weight.device)
    hidden = getattr(causal.base_model(input_ids=ids, use_cache=False), "last_hidden_state", None)
    if hidden is None or hidden.size(-1) != decoder.in_features:
        return False
    expected = causal(input_ids=ids, use_cache=False).logits.float()
    found = decoder(hidden).float()
    return bool((found - expected).abs().max() <= LOGIT_TOLERANCE * expected.std())


def _log_probs_of_logits(
    logits: torch.Tensor, contexts: torch.Tensor, targets: torch.Tensor, openings: torch.Tensor
) -> torch.Tensor:
    """Ln p of a token after each context, a row of logits, and ln P(one of `openings`) there."""
    places = openings.nonzero().squeeze(1)
    sums = []
    for rows in logits.split(ROWS):
        rows = rows.float()
        sums.append(torch.stack([rows.logsumexp(1), rows[:, places].logsumexp(1)]))
    normalizers, masses = torch.cat(sums, 1)[:, contexts]
    return torch.stack([logits[contexts, targets].float(), masses]) - normalizers

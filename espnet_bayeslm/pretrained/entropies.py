"""Uncertainty of a pretrained LM with a random adapter about each token."""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Dict, List, Sequence

import numpy as np
import torch

from espnet_bayeslm.pretrained.tree_scores import Ids, TreeScorer
from espnet_bayeslm.scoring.uncertainty import Uncertainty


@torch.no_grad()
def token_entropies(
    scorer: TreeScorer,
    sequences: Sequence[Ids],
    scored: Sequence[int],
    contexts: Sequence[Callable[[], ContextManager[Any]]],
) -> List[Uncertainty]:
    """Uncertainty of the last tokens of sequences (Depeweg et al. 2018).

    Args:
        scorer: Reads the sequences.
        sequences: Tokens; the first is never scored.
        scored: How many of the last tokens are scored, for each sequence.
        contexts: Each holds one sample of the weights.
    """
    found: Dict[Ids, np.ndarray] = {}
    for batch in scorer.batches(sequences):
        rows: List[List[np.ndarray]] = []
        paths: List[np.ndarray] = []
        mean: Any = 0
        of_samples: Any = 0
        for context in contexts:
            with context():
                states, paths = scorer.states(batch)
                log_p = scorer.logits(states).float().log_softmax(1)
            targets = [ids[1:] for ids in batch]
            rows.append(scorer.scores(states, np.concatenate(paths), targets))
            p = log_p.exp()
            mean = mean + p
            of_samples = of_samples - (p * log_p).sum(1).double()
        mean = mean / len(contexts)
        entropy = -torch.xlogy(mean, mean).sum(1).double()
        information = (entropy - of_samples / len(contexts)).clamp(min=0)
        both = torch.stack([entropy, information]).cpu().numpy()
        for ids, path, *scores in zip(batch, paths, *rows, strict=True):
            # (K, 2, n - 1) scores, then (2, n - 1) entropies
            found[ids] = np.concatenate([np.array(scores).reshape(-1, len(path)), both[:, path]])
    return [_cut(found[ids], count) for ids, count in zip(sequences, scored, strict=True)]


def _cut(values: np.ndarray, count: int) -> Uncertainty:
    """Uncertainty of the last `count` tokens."""
    last = values[:, values.shape[1] - count :]
    draws, openings = last[:-2:2], last[1:-2:2]
    size = np.log(len(draws))
    log_probs = np.logaddexp.reduce(draws) - size
    opens = np.concatenate([openings, [np.logaddexp.reduce(openings) - size]])
    return Uncertainty(draws, log_probs, last[-2], last[-1], opens)

"""Self-normalised scoring (Chen et al. 2016): one number in place of every context's ln Z.

An LM whose training held the spread of ln Z down (`self_normalization` of `bayes_lm`) needs no
softmax: its logits minus the mean ln Z are nearly log-probabilities.
"""

from __future__ import annotations

import logging
from typing import Any, List, Sequence

import numpy as np
import torch

from espnet_bayeslm.scoring.log_probs import batch_tree, log_normalizers, tree_batches
from espnet_bayeslm.scoring.sequences import (
    Ids,
    Normalizer,
    check_finite,
    check_tokens,
    over_draws,
    require_tree,
    vocab_size,
)

NUM_CONTEXTS = 512
# Standard deviation of ln Z, in nats, above which scores without it are far from exact
LARGE_STD = 1.0


def measure_normalizer(
    lm: Any,
    sequences: Sequence[Sequence[int]],
    *,
    num_contexts: int = NUM_CONTEXTS,
    num_samples: int = 0,
) -> Normalizer:
    """Mean and standard deviation of ln Z over a subset of the distinct contexts.

    The subset is the same whatever the order of the sequences. Jobs that share their work should
    share one result too: another constant shifts the score of every word.

    Args:
        lm: One of our LMs.
        sequences: Token ids without `<sos/eos>`.
        num_contexts: Approximate number of contexts; whole sequences are taken.
        num_samples: Number of weight samples; 0: the posterior mean.
    """
    require_tree(lm, "self-normalised scoring")
    texts = sorted({tuple(ids) for ids in sequences})
    chosen: List[Ids] = []
    for index in np.random.default_rng(0).permutation(len(texts)):
        if sum(len(ids) + 1 for ids in chosen) >= num_contexts:
            break
        chosen.append(texts[index])
    chosen = sorted(chosen) or [()]
    check_tokens(chosen, vocab_size(lm))

    def measure(_: int) -> np.ndarray:
        """Ln Z of the distinct contexts of each batch."""
        groups = tree_batches(chosen, max_tokens=num_contexts)
        outputs = (lm.tree_outputs(batch_tree(lm, group)[0]) for group in groups)
        found = [log_normalizers(y, lm.decoder.weight, lm.decoder.bias) for y in outputs]
        return torch.cat(found).to("cpu", torch.float64).numpy()

    every = np.concatenate(over_draws(lm, num_samples, measure))
    check_finite(every)
    normalizer = Normalizer(float(every.mean()), float(every.std()))
    logging.info("ln Z is %.3f +- %.3f over %d contexts", *normalizer, len(every))
    if normalizer.std > LARGE_STD:
        logging.warning(
            "ln Z has a standard deviation of %.2f nats: train the LM with self_normalization"
            " before scoring without the softmax",
            normalizer.std,
        )
    return normalizer

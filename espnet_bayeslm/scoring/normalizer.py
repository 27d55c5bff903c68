"""One number in place of every context's ln Z: self-normalised scoring (Chen et al. 2016).

An LM whose training held the spread of ln Z down (`self_normalization` of `bayes_lm`) needs no
softmax: its logits minus the mean ln Z are nearly log-probabilities.
"""

from __future__ import annotations

from typing import List, NamedTuple, Sequence

import numpy as np
import torch

from espnet_bayeslm.scoring.log_probs import diverged_error, log_normalizers
from espnet_bayeslm.scoring.tree_lm import Passage, TreeLM
from espnet_bayeslm.utils.log import LOG

NUM_CONTEXTS = 512
# Standard deviation of ln Z, in nats, above which scores without it are far from exact
LARGE_STD = 1.0


class Normalizer(NamedTuple):
    """Distribution of ln Z, the log of the softmax's sum, over contexts, in nats."""

    mean: float
    std: float


def measure_normalizer(
    tree_lm: TreeLM,
    passages: Sequence[Passage],
    *,
    num_contexts: int = NUM_CONTEXTS,
    num_samples: int = 0,
) -> Normalizer:
    """Mean and standard deviation of ln Z over a subset of the distinct contexts.

    The subset is the same whatever the order of the passages. Workers that share their work should
    share one result too: another constant shifts the score of every word.

    Args:
        tree_lm: One of our LMs.
        passages: Whole sentences.
        num_contexts: Approximate number of contexts; whole passages are taken.
        num_samples: Number of weight samples; 0: the posterior mean.
    """
    tree_lm.require("self-normalised scoring")
    texts = sorted(set(passages))
    chosen: List[Passage] = []
    for index in np.random.default_rng(0).permutation(len(texts)):
        if sum(passage.scored for passage in chosen) >= num_contexts:
            break
        chosen.append(texts[index])
    found, decoder = [], tree_lm.decoder
    assert decoder is not None  # of an LM with prefix trees
    for sample in tree_lm.samples(num_samples):
        with sample:
            for batch in tree_lm.batches(chosen, num_contexts):
                outputs, _ = tree_lm.read(batch)
                found.append(log_normalizers(outputs, decoder.weight, decoder.bias))
    every = torch.cat(found).to("cpu", torch.float64).numpy()
    if not np.isfinite(every).all():
        raise diverged_error()
    normalizer = Normalizer(float(every.mean()), float(every.std()))
    LOG.info("ln Z is %.3f +- %.3f over %d contexts", *normalizer, len(every))
    if normalizer.std > LARGE_STD:
        LOG.warning(
            "ln Z has a standard deviation of %.2f nats: train the LM with self_normalization"
            " before scoring without the softmax",
            normalizer.std,
        )
    return normalizer

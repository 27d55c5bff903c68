"""Mixtures of scorers that tests make, and facts of mixtures without LMs."""

import numpy as np

from espnet_bayeslm.mixture.facts import ComponentFacts, MixtureFacts
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.word_scores import Component


def mixture_of(*scorers, weights=None):
    """Mixture of scorers, with equal weights unless some are given."""
    rows = [
        Component(f"x{n}", "ngram" if isinstance(scorer, NgramScorer) else "lm", scorer)
        for n, scorer in enumerate(scorers)
    ]
    return Mixture(rows, np.full(len(rows), 1 / len(rows)) if weights is None else weights)


def facts_of(*names, subtracted=(), **facts):
    """Facts of LMs with equal weights, and of subtracted LMs."""
    own = [ComponentFacts(name, 1 / len(names), **facts) for name in names]
    return MixtureFacts(own, [ComponentFacts(name, 0.0) for name in subtracted])

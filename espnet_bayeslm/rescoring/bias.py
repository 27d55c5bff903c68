"""Bias lists in a rescoring: the feature `bias`, decoys, and the guard of all other words.

A list that does not hold what was said does harm. So a tuning weighs each list twice: with its bias
list, and with a decoy, the list without the phrases of the reference.
"""

from __future__ import annotations

import fractions
import math
from pathlib import Path
from typing import Any, Collection, Dict, Mapping, NamedTuple, Sequence, Union

import numpy as np

from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists, read_bias
from espnet_bayeslm.evaluation.biased_words import part_errors_of_list
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.feature_tuning import AS_IT_CAME, TunedWeights, Validated
from espnet_bayeslm.rescoring.features import BIAS, EDITS, Features, totals
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG

Given = Union[PathLike, BiasLists, BiasList, Sequence[str], None]
"""A file of bias lists, or lists that are loaded."""
# One-sided 5 % of a normal distribution
SURELY_WORSE = 1.645
HALVINGS = 6
"""Times that the guard halves a weight, before it takes the list away."""


def bias_lists(given: Given, normalization: Normalization, utts: Collection[str]) -> BiasLists:
    """Bias lists of the utterances, read and normalised."""
    if isinstance(given, BiasLists):
        return given
    if isinstance(given, BiasList):
        return BiasLists(shared=given)
    if isinstance(given, (str, Path)):
        return read_bias(given, normalization, utts=utts)
    if not isinstance(given, (list, tuple, set, frozenset)):
        problem = f"bias is a {type(given).__name__}: a file, phrases or BiasLists were expected"
        raise InputError(problem)
    phrases = (" ".join(normalization.words(phrase.split())) for phrase in given)
    return BiasLists(shared=BiasList((phrase, None) for phrase in phrases))


def bias_features(bias: BiasLists, nbest: NBest, said: Sequence[str] = ()) -> Features:
    """Weight of the phrases that each hypothesis holds, (N,), by the feature's name.

    Phrases that were said are no part of the list: it is a decoy.
    """
    own = bias.of(nbest.utt)
    if said:
        left_out = {*own.held(said)}
        own = BiasList(row for row in own.weights.items() if row[0] not in left_out)
    return {BIAS: np.array([own.total(hyp.words) for hyp in nbest.hypotheses])}


def decoys_of(
    features: Sequence[Features],
    nbests: Sequence[NBest],
    refs: Mapping[str, Sequence[str]],
    bias: BiasLists,
    presence: float,
) -> Dict[str, Any]:
    """Arguments of `validate`: features with decoys, and whole weights of lists and of decoys.

    `presence` is the share of lists that hold a phrase of what was said.
    """
    share = fractions.Fraction(presence).limit_denominator(20)
    weights = share.numerator, share.denominator - share.numerator
    pairs = zip(features, nbests, strict=True)
    decoys = [{**own, **bias_features(bias, item, refs[item.utt])} for own, item in pairs]
    return dict(decoys=decoys if weights[1] else (), shares=weights)


class Guarded(NamedTuple):
    """Weights with a bias list, and what it costs.

    Attributes:
        chosen: The weights, with which other words are not surely worse.
        unbiased: Weights without a bias list.
        decoys: Word errors of the lists without one, with it, and with decoys.
    """

    chosen: TunedWeights
    unbiased: TunedWeights
    decoys: Mapping[str, int]


def guarded(
    chosen: TunedWeights,
    every: Validated,
    nbests: Sequence[NBest],
    refs: Mapping[str, Sequence[str]],
    bias: BiasLists,
) -> Guarded:
    """Weights of which that of the bias list is so small that nothing else is surely worse.

    Neither words outside of it are, nor lists whose bias list does not hold what was said.
    """
    names = [n for n, own in every.sets.items() if not {BIAS, EDITS} & {c[0] for c in own}]
    unbiased = every.tuned(every.choice([AS_IT_CAME, *names]))
    outside = [_unbiased_errors(item, refs[item.utt], bias.of(item.utt)) for item in nbests]
    guards = [(every.lists, outside), (every.decoys or every.lists, every.errors)]
    before = [_errors(every.lists, errors, dict(unbiased.weights)) for _, errors in guards]

    def harms(weights: Mapping[str, float]) -> bool:
        losses = (_errors(*own, weights) - old for own, old in zip(guards, before, strict=True))
        return any(map(_is_worse, losses))

    for halved in range(HALVINGS + 1):
        weights = dict(chosen.weights)
        if not weights.get(BIAS) or not harms(weights):
            break
        LOG.info(
            "words outside of bias lists, or decoys, lose: weight %.3g is halved", weights[BIAS]
        )
        weights[BIAS] /= 2
        chosen = unbiased if halved == HALVINGS else every.weighed(chosen, weights)
    with_it = dict(chosen.weights)
    counts = {
        "without a bias list": _errors(every.lists, every.errors, dict(unbiased.weights)),
        "with it": _errors(every.lists, every.errors, with_it),
    }
    if every.decoys:
        counts["with decoys"] = _errors(every.decoys, every.errors, with_it)
    return Guarded(chosen, unbiased, {name: int(own.sum()) for name, own in counts.items()})


def _unbiased_errors(nbest: NBest, ref: Sequence[str], own: BiasList) -> np.ndarray:
    """Errors of the words outside of a bias list in each hypothesis, (N,)."""
    parts = part_errors_of_list(ref, [hyp.words for hyp in nbest.hypotheses], own.words)
    return np.array([part.unbiased.errors for part in parts])


def _errors(
    lists: Sequence[Features], errors: Sequence[np.ndarray], weights: Mapping[str, float]
) -> np.ndarray:
    """Errors of the best hypothesis of each list, (L,)."""
    pairs = zip(lists, errors, strict=True)
    return np.array([counts[totals(own, weights).best()] for own, counts in pairs])


def _is_worse(losses: np.ndarray) -> bool:
    """True if the sum of independent losses is surely above zero."""
    error = math.sqrt(len(losses)) * float(losses.std(ddof=1)) if len(losses) > 1 else 0.0
    return bool(losses.sum() > SURELY_WORSE * error)

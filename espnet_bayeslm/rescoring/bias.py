"""Bias lists in a rescoring: the feature `bias`, decoys, and the guard of all other words.

A list that does not hold what was said does harm. So a tuning weighs each list twice: with its bias
list, and with a decoy, the list without the phrases of the reference.
"""

from __future__ import annotations

import fractions
import math
import os
import unicodedata
from typing import (
    Any,
    Collection,
    Dict,
    FrozenSet,
    Iterable,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists, read_bias
from espnet_bayeslm.evaluation.biased_words import part_errors_of_list
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import Counting
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.feature_tuning import (
    AS_IT_CAME,
    TunedWeights,
    Validated,
    chosen_errors,
)
from espnet_bayeslm.rescoring.features import BIAS, Features
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

# One-sided 5 % of a normal distribution
SURELY_WORSE = 1.645
HALVINGS = 6
"""Times that the guard halves a weight, before it takes the list away."""


def bias_lists(given: Any, normalization: Normalization, utts: Collection[str]) -> BiasLists:
    """Bias lists of the utterances, read and normalised.

    Args:
        given: A file; `BiasLists`, or one `BiasList` of all utterances; or phrases, in a mapping or
            in pairs with weights of their own.
        normalization: Steps that each phrase goes through.
        utts: Utterances of the N-best lists, as far as they are known.
    """
    if isinstance(given, (str, os.PathLike)):
        return read_bias(given, normalization, utts=utts)

    def spelled(rows: Iterable[Tuple[str, Optional[float]]]) -> BiasList:
        return BiasList((" ".join(normalization.words(p.split())), weight) for p, weight in rows)

    if isinstance(given, BiasLists):
        lists = {utt: spelled(own.weights.items()) for utt, own in given.lists.items()}
        return BiasLists(lists, spelled(given.shared.weights.items()))
    if isinstance(given, BiasList):
        given = given.weights
    try:
        rows = given.items() if isinstance(given, Mapping) else given
        pairs = [(row, None) if isinstance(row, str) else row for row in rows]
        return BiasLists(shared=spelled(pairs))
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"bias is a {type(given).__name__} of something else than phrases ({error})",
            remedy="Give a file, phrases, {phrase: weight}, or BiasLists.",
        ) from error


def bias_features(bias: BiasLists, nbest: NBest, said: Sequence[str] = ()) -> Features:
    """Weight of the phrases that each hypothesis holds, (N,), by the feature's name.

    Phrases that were said, in whatever reading, are no part of the list: it is a decoy.
    """
    own = decoy_of(bias.of(nbest.utt), said)
    return {BIAS: np.array([own.total(hyp.words) for hyp in nbest.hypotheses])}


def decoy_of(bias: BiasList, said: Sequence[str]) -> BiasList:
    """Bias list without the phrases that were said, in whatever reading."""
    text = unicodedata.normalize("NFC", " ".join(said)).split()
    if not text:
        return bias
    sizes = range(1, 1 + max((phrase.count(" ") + 1 for phrase in bias.weights), default=0))
    heard = {" ".join(text[n : n + size]) for size in sizes for n in range(len(text))}
    return BiasList(row for row in bias.weights.items() if row[0] not in heard)


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
    if 0 < presence < 1:  # neither goes
        share = min(max(share, fractions.Fraction(1, 20)), fractions.Fraction(19, 20))
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
    ignored: FrozenSet[str],
) -> Guarded:
    """Weights of which that of the bias list is so small that nothing else is surely worse.

    Neither words outside of it are, nor lists whose bias list does not hold what was said.
    """
    names = [n for n, own in every.sets.items() if (BIAS,) not in own]
    unbiased = every.tuned(every.choice([AS_IT_CAME, *names]))
    outside = [_unbiased_errors(x, refs[x.utt], bias.of(x.utt), ignored) for x in nbests]
    guards = [(every.lists, outside), (every.decoys or every.lists, every.errors)]
    before = [chosen_errors(every.lists, errors, dict(unbiased.weights)) for _, errors in guards]

    def harms(weights: Mapping[str, float]) -> bool:
        losses = (
            chosen_errors(*own, weights) - old for own, old in zip(guards, before, strict=True)
        )
        return any(map(is_surely_worse, losses))

    for halved in range(HALVINGS + 1):
        weights = dict(chosen.weights)
        if not weights.get(BIAS) or not harms(weights):
            break
        LOG.info(
            "words outside of bias lists, or decoys, lose: weight %.3g is halved", weights[BIAS]
        )
        weights[BIAS] /= 2
        chosen = unbiased if halved == HALVINGS else every.weighed(chosen, weights)
    if chosen.errors["tuned"] > unbiased.errors["tuned"]:
        chosen = unbiased
    with_it = dict(chosen.weights)
    counts = {
        "without a bias list": chosen_errors(every.lists, every.errors, dict(unbiased.weights)),
        "with it": chosen_errors(every.lists, every.errors, with_it),
    }
    if every.decoys:
        counts["with decoys"] = chosen_errors(every.decoys, every.errors, with_it)
    return Guarded(chosen, unbiased, {name: int(own.sum()) for name, own in counts.items()})


def _unbiased_errors(
    nbest: NBest, ref: Sequence[str], own: BiasList, ignored: FrozenSet[str]
) -> np.ndarray:
    """Errors of the words outside of a bias list in each hypothesis, (N,)."""
    units = Counting("word", ignored).units
    hyps = [units(hyp.words) for hyp in nbest.hypotheses]
    parts = part_errors_of_list(units(ref), hyps, own.words)
    return np.array([part.unbiased.errors for part in parts])


def is_surely_worse(losses: np.ndarray) -> bool:
    """True if the sum of independent losses is surely above zero."""
    error = math.sqrt(len(losses)) * float(losses.std(ddof=1)) if len(losses) > 1 else 0.0
    return bool(losses.sum() > SURELY_WORSE * error)

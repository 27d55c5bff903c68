"""Bias lists in a rescoring: the feature `bias`, decoys, and the guard of all other words.

A list that does not hold what was said does harm. So a tuning weighs each list twice: with its bias
list, and with a decoy, the list without the phrases of the reference.
"""

from __future__ import annotations

import fractions
import math
import os
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
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.feature_tuning import (
    AS_IT_CAME,
    TunedWeights,
    Validated,
    chosen_errors,
)
from espnet_bayeslm.rescoring.features import BIAS, NEAR, Features
from espnet_bayeslm.rescoring.near_odds import LEAST
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

# One-sided 5 % of a normal distribution
SURELY_WORSE = 1.645
TOLERATED = {False: 0.001, True: 0.0025}
"""Errors that decoys may add, as a share of the words: by listed words alone, and by near ones."""
MOST_LEAST = 4.0
"""Ln odds of near words that the guard asks for, at most."""
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


def bias_features(own: BiasList, nbest: NBest) -> Features:
    """Weights of the listed phrases that each hypothesis holds, and ln odds of near words, (N,)."""
    hyps = nbest.hypotheses
    held = [own.total(hyp.words) for hyp in hyps if hyp.rewriting is None]
    origins = [hyp.rewriting.origin if hyp.rewriting else n for n, hyp in enumerate(hyps)]
    odds = [hyp.rewriting.ln_odds if hyp.rewriting else 0.0 for hyp in hyps]
    return {BIAS: np.array(held)[origins], NEAR: np.array(odds)}


def decoys_of(
    features: Sequence[Features],
    errors: Sequence[np.ndarray],
    nbests: Sequence[NBest],
    refs: Mapping[str, Sequence[str]],
    bias: BiasLists,
    presence: float,
) -> Dict[str, Any]:
    """Arguments of `validate`: features and errors of decoys, and weights of lists and of decoys.

    A decoy is a bias list without the phrases that were said, in whatever reading. Hypotheses that
    were made of them are none of its. `presence` is the share of lists that hold such a phrase.
    """
    share = fractions.Fraction(presence).limit_denominator(20)
    if 0 < presence < 1:  # neither goes
        share = min(max(share, fractions.Fraction(1, 20)), fractions.Fraction(19, 20))
    weights = share.numerator, share.denominator - share.numerator
    if not weights[1]:
        return dict(shares=weights)
    decoys, decoy_errors = [], []
    for own, counts, item in zip(features, errors, nbests, strict=True):
        of_utt = bias.of(item.utt)
        said = of_utt.said(refs[item.utt])
        kept = np.array([not _is_made_of(hyp, said, of_utt) for hyp in item.hypotheses])
        decoy = {**own, **bias_features(of_utt.without(said), item)}
        decoys.append({name: values[kept] for name, values in decoy.items()})
        decoy_errors.append(counts[kept])
    return dict(decoys=decoys, decoy_errors=decoy_errors, shares=weights)


def _is_made_of(hyp: Hypothesis, said: FrozenSet[str], own: BiasList) -> bool:
    """True if a phrase that was said has been put into a hypothesis, here or by its recogniser."""
    if hyp.rewriting is not None:
        return not said.isdisjoint(hyp.rewriting.phrases)
    return NEAR in hyp.extra and not said.isdisjoint(own.held(hyp.words))


class Guarded(NamedTuple):
    """Weights with a bias list, and what it costs.

    Attributes:
        chosen: The weights, with which other words are not surely worse.
        unbiased: Weights without a bias list.
        decoys: Word errors of the lists without one, with it, and with decoys.
        every: The tuning lists, in which near words of low odds are barred.
        least: The least ln odds of near words.
    """

    chosen: TunedWeights
    unbiased: TunedWeights
    decoys: Mapping[str, int]
    every: Validated
    least: float


def guarded(
    chosen: TunedWeights,
    every: Validated,
    nbests: Sequence[NBest],
    refs: Mapping[str, Sequence[str]],
    bias: BiasLists,
    ignored: FrozenSet[str],
) -> Guarded:
    """Weights of which that of the bias list is so small that nothing else is surely worse.

    Neither words outside of it are, nor lists whose bias list does not hold what was said. First
    near words of low odds go, then all, then the weight is halved.
    """
    names = [n for n, own in every.sets.items() if {(BIAS,), (NEAR,)}.isdisjoint(own)]
    unbiased = every.tuned(every.choice([AS_IT_CAME, *names]))
    outside = [_unbiased_errors(x, refs[x.utt], bias.of(x.utt), ignored) for x in nbests]
    before = [
        chosen_errors(every.lists, errors, dict(unbiased.weights))
        for errors in (outside, every.errors)
    ]
    num_words = sum(len(refs[x.utt]) for x in nbests)

    def harms(tuned: TunedWeights, found: Validated) -> bool:
        weights = dict(tuned.weights)
        if not (weights.get(BIAS) or weights.get(NEAR)):
            return False
        other = found.decoys or found.lists, found.decoy_errors or found.errors
        guards = [(found.lists, outside), other]
        losses = (chosen_errors(*o, weights) - old for o, old in zip(guards, before, strict=True))
        tolerated = (0.0, num_words * TOLERATED[bool(weights.get(NEAR))])
        return any(map(is_surely_worse, losses, tolerated))

    found, least = every, LEAST
    while dict(chosen.weights).get(NEAR) and harms(chosen, found):
        least += 0.5
        found = every.with_near_words(least)
        if least > MOST_LEAST:
            LOG.info("words outside of bias lists, or decoys, lose: there are no near words")
            near = [n for n, own in every.sets.items() if (NEAR,) in own]
            chosen = every.tuned(every.choice(every.held_out.keys() - near))
    if found is not every and dict(chosen.weights).get(NEAR):
        LOG.info("near words of ln odds below %g are left out, by which decoys lose", least)
        chosen = found.weighed(chosen, dict(chosen.weights))
    for halved in range(HALVINGS + 1):
        weights = dict(chosen.weights)
        if not harms(chosen, found):
            break
        LOG.info(
            "words outside of bias lists, or decoys, lose: weight %.3g is halved", weights[BIAS]
        )
        weights[BIAS] /= 2
        chosen = unbiased if halved == HALVINGS else found.weighed(chosen, weights)
    if chosen.errors["tuned"] > unbiased.errors["tuned"]:
        chosen = unbiased
    with_it = dict(chosen.weights)
    counts = {
        "without a bias list": chosen_errors(every.lists, every.errors, dict(unbiased.weights)),
        "with it": chosen_errors(found.lists, found.errors, with_it),
    }
    if every.decoys:
        counts["with decoys"] = chosen_errors(found.decoys, found.decoy_errors, with_it)
    errors = {name: int(own.sum()) for name, own in counts.items()}
    return Guarded(chosen, unbiased, errors, found, least)


def _unbiased_errors(
    nbest: NBest, ref: Sequence[str], own: BiasList, ignored: FrozenSet[str]
) -> np.ndarray:
    """Errors of the words outside of a bias list in each hypothesis, (N,)."""
    units = Counting("word", ignored).units
    hyps = [units(hyp.words) for hyp in nbest.hypotheses]
    parts = part_errors_of_list(units(ref), hyps, own.words)
    return np.array([part.unbiased.errors for part in parts])


def is_surely_worse(losses: np.ndarray, tolerated: float = 0.0) -> bool:
    """True if the sum of independent losses is surely above zero, and above what is tolerated."""
    error = math.sqrt(len(losses)) * float(losses.std(ddof=1)) if len(losses) > 1 else 0.0
    return bool(losses.sum() > max(tolerated, SURELY_WORSE * error))

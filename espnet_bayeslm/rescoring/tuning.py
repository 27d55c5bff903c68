"""Scales with the fewest word errors, and the errors of a rescoring."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.wer import (
    ALL_WORDS,
    FIRST_PASS,
    Counting,
    check_same_utterances,
    closest_reading,
)
from espnet_bayeslm.mixture.facts import MixtureFacts
from espnet_bayeslm.nbest.types import NBest, whole_units
from espnet_bayeslm.rescoring.bayes_risk import tuned_posterior
from espnet_bayeslm.rescoring.bias import decoys_of, guarded
from espnet_bayeslm.rescoring.bias_sweep import BiasSweep, bias_sweep
from espnet_bayeslm.rescoring.decision import NO_LM, ScoredList
from espnet_bayeslm.rescoring.feature_tuning import (
    AS_IT_CAME,
    LISTS_PER_WEIGHT,
    Column,
    TunedWeights,
    folds,
    validate,
    with_control,
)
from espnet_bayeslm.rescoring.features import (
    FIRST_WINS,
    Features,
    Totals,
    is_normalised,
    totals,
)
from espnet_bayeslm.rescoring.near_odds import NearWords
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.rescoring.scales import Scales, scales_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

Refs = Mapping[str, Sequence[str]]
AS_USUAL = RescoreOptions()
# Factors of a weight, in a log scale
FACTORS = 2.0 ** np.arange(-5, 5.5, 0.5)


class Sweep(NamedTuple):
    """Word errors of tuning lists where two weights are multiplied.

    Attributes:
        names: The two features (or sums of some).
        weights: Their weights, (A,) and (B,); in the middle those that were tuned.
        errors: (A, B).
    """

    names: Tuple[str, str]
    weights: Tuple[np.ndarray, np.ndarray]
    errors: np.ndarray

    @property
    def at_edge(self) -> bool:
        """True if the errors are fewest at the border of the picture only."""
        rows, columns = (slice(1, -1) if size > 1 else slice(None) for size in self.errors.shape)
        return bool(self.errors.min() < self.errors[rows, columns].min())


class Fold(NamedTuple):
    """Lists that are rescored with scales that were tuned on the lists of the other folds."""

    scales: Scales
    num_lists: int
    first_pass: int
    rescored: int
    control: Optional[int] = None


class Tuned(NamedTuple):
    """Scales chosen on a development set.

    Attributes:
        scales: The scales.
        chosen: The chosen weights, with the errors of the candidates.
        control: The same without the scores of the new LMs; `chosen` itself
            where these LMs are not used.
        sweep: The errors around the scales.
        words: Of the references.
        risk_errors: Word errors of the tuning lists by least expected errors, where that was asked
            for.
        folds: The folds of `--folds`; empty without it.
        unused: Line that says why the new LMs are not used; empty where they are.
        decoys: Word errors without a bias list, with it, and with decoys; empty without one.
        bias: Error rates by the weight of the bias lists, where there are some.
    """

    scales: Scales
    chosen: TunedWeights
    control: TunedWeights
    sweep: Sweep
    words: int
    risk_errors: Optional[int] = None
    folds: Tuple[Fold, ...] = ()
    unused: str = ""
    decoys: Mapping[str, int] = MappingProxyType({})
    bias: Optional[BiasSweep] = None

    def fold_lines(self) -> List[str]:
        """Choice and errors of each fold, and the errors of all lists; for people."""
        lines = []
        for number, fold in enumerate(self.folds, 1):
            own = "" if fold.control is None else f" ({fold.control} {NO_LM})"
            lines.append(
                f"fold {number} ({fold.num_lists} lists): {_choice(fold.scales)};"
                f" errors {fold.first_pass} -> {fold.rescored}{own}"
            )
        lines.append(f"all lists (scales.yaml): {_choice(self.scales)}")
        first = sum(fold.first_pass for fold in self.folds)
        held_out = sum(fold.rescored for fold in self.folds)
        fitted = self.chosen.errors["tuned"]
        if self.scales.decision == "mbr" and self.risk_errors is not None:
            fitted = self.risk_errors
        lines.append(
            f"errors: {first} in the first pass, {held_out} held out in {len(self.folds)} folds,"
            f" {fitted} with the weights of all lists"
        )
        own_errors = [fold.control for fold in self.folds if fold.control is not None]
        if len(own_errors) == len(self.folds):
            lines.append(f"{NO_LM}: {sum(own_errors)} held out in {len(self.folds)} folds")
        if fitted > held_out:
            lines.append("the weights of all lists make more errors than those of the folds")
        return lines


def held_out_line(tuned: TunedWeights) -> str:
    """Result of cross-validation, in one line."""
    errors = tuned.held_out
    base = errors[AS_IT_CAME]
    if len(errors) == 1:
        needed = f"{LISTS_PER_WEIGHT} for each weight"
        return f"as it came: too few lists of several hypotheses ({needed})"
    if tuned.kept == AS_IT_CAME:
        best = min(errors.values())
        return (
            f"as it came: no gain is sure on held-out lists ({base} errors, at best {best}"
            f" in {tuned.num_folds} folds)"
        )
    return (
        f"{tuned.kept}: {base} -> {errors[tuned.kept]} errors on held-out lists"
        f" ({tuned.num_folds} folds)"
    )


def _choice(scales: Scales) -> str:
    """Scales, for people."""
    return "first pass kept" if scales.features == FIRST_WINS else str(scales)


def tune(
    lists: Sequence[ScoredList],
    refs: Refs,
    mixture: MixtureFacts,
    options: RescoreOptions = AS_USUAL,
    *,
    groups: Mapping[str, str] = MappingProxyType({}),
) -> Tuned:
    """Scales with the fewest word errors.

    They are never worse on these lists than the first pass, nor than the control without the LM
    (`with_control`).
    The groups, {utterance id: unit}, stay in one fold; by default they are the `whole_units` of
    the lists.
    """
    nbests = [item.nbest for item in lists]
    errors = hypothesis_errors(nbests, refs, options.errors.counting)
    of = groups or whole_units(nbests).of
    how: Any = dict(groups=[of[item.utt] for item in nbests], num_folds=options.tune_folds)
    each = options.tune_lms
    with_lm = [item.features(item.lm_scores(mixture, of_each=each)) for item in lists]
    without_lm = [item.features(None) for item in lists]
    bias, again = options.bias, {}
    if bias is not None:
        again = decoys_of(with_lm, errors, nbests, refs, bias, options.bias_presence)
    every = validate(with_lm, errors, normalised_scores=is_normalised(with_lm), **how, **again)
    plain = validate(without_lm, errors, normalised_scores=is_normalised(without_lm), **how)
    chosen, control, unused = with_control(every, plain)
    guard = (
        None
        if bias is None
        else guarded(chosen, every, nbests, refs, bias, options.errors.counting.ignored)
    )
    if guard is not None:
        chosen, every = guard.chosen, guard.every
        with_lm = list(every.lists)
    less = [row.name for row in mixture.subtracted]
    scales = _tuned_scales(chosen, lists, with_lm, refs, less)
    own = _tuned_scales(control, lists, without_lm, refs)
    decision, risk_errors = options.scales_for(mixture).decision, None
    if decision == "mbr":
        rows = zip(lists, with_lm, errors, strict=True)
        risk_errors = sum(int(e[item.choice(f, scales, "mbr")]) for item, f, e in rows)
        if risk_errors > (first := chosen.errors[FIRST_PASS]):
            LOG.warning(
                f"by mbr the tuning lists have {risk_errors} errors, in the first pass {first}:"
                " max decides"
            )
            decision = "max"
    picture = sweep(with_lm, errors, weights=dict(chosen.weights), scaled=chosen.scaled)
    if chosen.kept != AS_IT_CAME and picture.at_edge:
        LOG.warning("the errors are fewest at the edge of the sweep: see sweep.png")
    # words or characters of the references, as the first pass is compared with them
    units = options.errors.counting.units
    firsts = ((refs[nbest.utt], nbest.hypotheses[0].words) for nbest in nbests)
    num_words = sum(len(closest_reading(units(ref), units(first))) for ref, first in firsts)
    scales = dataclasses.replace(scales, decision=decision, control=own, lms=mixture)
    found = Tuned(scales, chosen, control, picture, num_words, risk_errors, unused=unused)
    if guard is None:
        return found
    unbiased = _tuned_scales(guard.unbiased, lists, with_lm, refs, less)
    near = options.near_words
    if isinstance(near, NearWords) and scales.uses_near_words:
        scales = dataclasses.replace(scales, near_words=near.at_least(guard.least))
    scales = dataclasses.replace(scales, unbiased=unbiased)
    rest: Any = (nbests, refs, bias, dict(chosen.weights), options.errors.counting.ignored)
    own_sweep = bias_sweep(every, *rest)
    found = found._replace(scales=scales, decoys=guard.decoys, bias=own_sweep)
    if mixture.components:
        return found
    # there is no LM, and the control is what is tuned without the bias list
    unused = unused.replace("the LM is", "the bias list is")
    return found._replace(scales=dataclasses.replace(scales, control=None), unused=unused)


def _tuned_scales(
    tuned: TunedWeights,
    lists: Sequence[ScoredList],
    features: Sequence[Features],
    refs: Refs,
    subtracted: Sequence[str] = (),
) -> Scales:
    """Scales of tuned weights, with the posterior over a list whose words are calibrated."""
    has_graph = any("graph_score" in own for own in features)
    scales = scales_of(dict(tuned.weights), has_graph=has_graph, subtracted=subtracted)
    hyps = [[hyp.words for hyp in item.nbest.hypotheses] for item in lists]
    pairs = list(zip(lists, features, strict=True))
    best = [item.choice(own, scales) for item, own in pairs]
    rows = zip(lists, hyps, best, strict=True)
    readings = [closest_reading(refs[item.nbest.utt], words[k]) for item, words, k in rows]
    values = [item.totals(own, scales, once=True).values for item, own in pairs]
    return dataclasses.replace(scales, posterior=tuned_posterior(values, hyps, readings, best))


def hypothesis_errors(
    nbests: Sequence[NBest], refs: Refs, counting: Counting = ALL_WORDS
) -> List[np.ndarray]:
    """Errors of each hypothesis of each list, (N,); each is aligned once."""
    check_same_utterances(refs, {nbest.utt: None for nbest in nbests})
    return [
        np.array([counting.errors(refs[nbest.utt], hyp.words).errors for hyp in nbest.hypotheses])
        for nbest in nbests
    ]


def fold_lists(
    nbests: Sequence[NBest], num_folds: int, groups: Mapping[str, str] = MappingProxyType({})
) -> List[np.ndarray]:
    """Places of the lists of each fold; a recording or speaker is in one."""
    of = groups or whole_units(nbests).of
    parts = folds([of[item.utt] for item in nbests], num_folds)
    if len(parts) < 2:
        raise InputError(
            f"--folds {num_folds}: the {len(nbests)} lists are one list, recording or speaker",
            remedy="Give lists of several, which can be divided.",
        )
    return parts


def sweep(
    lists: Sequence[Features],
    errors: Sequence[np.ndarray],
    *,
    weights: Mapping[str, float],
    scaled: Sequence[Tuple[Column, float]],
) -> Sweep:
    """Errors where the weights after the largest one are multiplied."""
    parts = [column for column, weight in scaled[1:3] if weight]
    names = ["+".join(column) for column in parts]
    total = np.zeros((len(FACTORS) if names else 1, len(FACTORS) if len(names) > 1 else 1), int)
    for features, counts in zip(lists, errors, strict=True):
        tuned = totals(features, weights)
        grid, size = tuned.values[None, None, :], np.full((1, 1), tuned.size)
        for part, more in zip(parts, ((FACTORS - 1)[:, None], FACTORS - 1), strict=False):
            moved = totals(features, {name: weights[name] for name in part}, is_part=True)
            grid = grid + more[..., None] * moved.values
            size = size + more * moved.size
        total += counts[Totals(grid, size).best()]
    values = [weights[part[0]] * FACTORS for part in parts] + [np.zeros(1), np.zeros(1)]
    labels = [*names, "", ""]
    return Sweep((labels[0], labels[1]), (values[0], values[1]), total)

"""Scales with the fewest word errors, and the errors of a rescoring."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.counting import ALL_WORDS, Counting
from espnet_bayeslm.evaluation.markup import closest_reading
from espnet_bayeslm.evaluation.wer import check_same_utterances
from espnet_bayeslm.loading.weights_file import NamedWeight
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.bayes_risk import Posterior, tuned_posterior
from espnet_bayeslm.rescoring.decision import ListScores, Scales, ScoredList, Weighting
from espnet_bayeslm.rescoring.feature_tuning import AS_IT_CAME, TunedWeights, tune_features
from espnet_bayeslm.rescoring.features import (
    FIRST_PASS,
    LM,
    SUBTRACTED,
    Features,
    first_of_equals,
    is_normalised,
    is_subtracted,
    size_of,
    totals,
)
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.rescoring.weight_search import folds
from espnet_bayeslm.utils.errors import InputError

# Name of the hypotheses that scales without the new LMs' scores choose
CONTROL = "without the LM"
# A set of these has LMWT and a word penalty
KALDI = ({"am_score", LM, "words"}, {"am_score", "graph_score", LM, "words"})
AS_USUAL = RescoreOptions()
# Factors of a weight, in a log scale
FACTORS = 2.0 ** np.arange(-5, 5.5, 0.5)
NAMED_SUMS = "+"


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
        found: The errors of the candidates.
        sweep: The errors around the scales.
        words: Of the references.
        risk_errors: Word errors of the tuning lists by least expected errors, where that was asked
            for.
        folds: The folds of `--folds`; empty without it.
        control: The errors of the candidates without the scores of the new LMs.
    """

    scales: Scales
    found: TunedWeights
    sweep: Sweep
    words: int
    risk_errors: Optional[int] = None
    folds: Tuple[Fold, ...] = ()
    control: Optional[TunedWeights] = None

    def fold_lines(self) -> List[str]:
        """Choice and errors of each fold, and the errors of all lists; for people."""
        lines = []
        for number, fold in enumerate(self.folds, 1):
            own = "" if fold.control is None else f" ({fold.control} {CONTROL})"
            lines.append(
                f"fold {number} ({fold.num_lists} lists): {_choice(fold.scales)};"
                f" errors {fold.first_pass} -> {fold.rescored}{own}"
            )
        lines.append(f"all lists (scales.yaml): {_choice(self.scales)}")
        first = sum(fold.first_pass for fold in self.folds)
        held_out = sum(fold.rescored for fold in self.folds)
        fitted = self.found.errors["tuned"]
        if self.scales.decision == "mbr" and self.risk_errors is not None:
            fitted = self.risk_errors
        lines.append(
            f"errors: {first} in the first pass, {held_out} held out in {len(self.folds)} folds,"
            f" {fitted} with the weights of all lists"
        )
        own_errors = [fold.control for fold in self.folds if fold.control is not None]
        if len(own_errors) == len(self.folds):
            lines.append(f"{CONTROL}: {sum(own_errors)} held out in {len(self.folds)} folds")
        if fitted > held_out:
            lines.append("the weights of all lists make more errors than those of the folds")
        return lines


def held_out_line(found: TunedWeights) -> str:
    """Result of cross-validation, in one line."""
    errors = found.held_out
    base = errors[AS_IT_CAME]
    if found.kept == AS_IT_CAME:
        best = min(errors.values())
        return (
            f"as it came: no gain is sure on held-out lists ({base} errors, at best {best}"
            f" in {found.num_folds} folds)"
        )
    return (
        f"{found.kept}: {base} -> {errors[found.kept]} errors on held-out lists"
        f" ({found.num_folds} folds)"
    )


def _choice(scales: Scales) -> str:
    """Scales, for people."""
    return "first pass kept" if scales.features == FIRST_PASS else str(scales)


def tune_mixture(
    lists: Sequence[ListScores],
    refs: Mapping[str, Sequence[str]],
    weighting: Weighting,
    *,
    groups: Optional[Mapping[str, str]] = None,
    options: RescoreOptions = AS_USUAL,
) -> Tuned:
    """Scales with the fewest word errors; never worse on these lists than the first pass.

    Args:
        lists: The N-best lists of the development set, with their scores.
        refs: Utterance id -> words, the same utterances.
        weighting: The components, their weights and the decision; of its scales the names of
            subtracted LMs are read.
        groups: Utterance id -> what stays in one fold; None: the lists' speakers, or each list.
        options: How scales are tuned and errors counted.
    """
    nbests = [item.nbest for item in lists]
    errors = hypothesis_errors(nbests, refs, options.counting)
    spoken = [refs[nbest.utt] for nbest in nbests]
    units_of_folds = _groups(nbests, groups)

    def tuned(scored: Sequence[ScoredList], subtracted: Sequence[NamedWeight]) -> Tuple[Any, Any]:
        """Weights with the fewest errors, and scales that choose as they do."""
        features = [item.features() for item in scored]
        found = tune_features(
            features,
            errors,
            groups=units_of_folds,
            num_folds=options.tune_folds,
            normalised_scores=is_normalised(features),
        )
        return found, scales_of(found, scored, subtracted)

    final = [item.scored(weighting, of_each=options.tune_lms) for item in lists]
    without_lm = [item.without_lm() for item in final]
    found, scales = tuned(final, weighting.scales.subtracted)
    control, own = tuned(without_lm, ())
    decision, first = weighting.decision, found.errors["first pass"]
    scales = dataclasses.replace(scales, posterior=_posterior(final, scales, spoken))
    by_risk = None
    if decision == "mbr":
        chosen = [item.choice(scales, "mbr") for item in final]
        by_risk = sum(int(counts[k]) for counts, k in zip(errors, chosen, strict=True))
        if by_risk > first:
            logging.warning(
                "by mbr the tuning lists have %d errors, in the first pass %d: max decides",
                by_risk,
                first,
            )
            decision = "max"
    scales = dataclasses.replace(
        scales,
        decision=decision,
        control=dataclasses.replace(own, posterior=_posterior(without_lm, own, spoken)),
    )
    picture = sweep(
        [item.features() for item in final],
        errors,
        weights=in_lm_units(found.weights),
        scaled=found.scaled,
    )
    if found.kept != AS_IT_CAME and picture.at_edge:
        logging.warning("the errors are fewest at the edge of the sweep: see sweep.png")
    # words or characters of the references, as the first pass is compared with them
    units = options.counting.units
    firsts = [units(nbest.hypotheses[0].words) for nbest in nbests]
    pairs = zip(spoken, firsts, strict=True)
    num_words = sum(len(closest_reading(units(ref), first)) for ref, first in pairs)
    return Tuned(scales, found, picture, num_words, by_risk, control=control)


def _posterior(
    lists: Sequence[ScoredList], scales: Scales, refs: Sequence[Sequence[str]]
) -> Posterior:
    """The posterior of calibrated words."""
    hyps = [[hyp.words for hyp in item.nbest.hypotheses] for item in lists]
    best = [item.choice(scales) for item in lists]
    rows = zip(refs, hyps, best, strict=True)
    readings = [closest_reading(ref, words[k]) for ref, words, k in rows]
    return tuned_posterior([item.totals(scales) for item in lists], hyps, readings, best)


def _groups(nbests: Sequence[NBest], known: Optional[Mapping[str, str]]) -> List[str]:
    """Unit that stays in one fold: a recording, a speaker, or a list by itself."""
    if known is not None:
        return [known[nbest.utt] for nbest in nbests]
    if all(nbest.speaker is not None for nbest in nbests):
        return [str(nbest.speaker) for nbest in nbests]
    return [nbest.utt for nbest in nbests]


def in_lm_units(weights: Sequence[Tuple[str, float]]) -> Tuple[Tuple[str, float], ...]:
    """Weights of which that of the LM is one, where it has one: only ratios count."""
    lm = dict(weights).get(LM, 0.0)
    unit = lm if lm > 0 else 1.0
    return tuple((name, weight / unit) for name, weight in weights)


def scales_of(
    found: TunedWeights,
    lists: Sequence[ScoredList] = (),
    subtracted: Sequence[NamedWeight] = (),
) -> Scales:
    """Scales that choose as the tuned weights do.

    They are LMWT and word penalty alone if these weigh the same scores and choose the same
    hypotheses, else weights of features.
    """
    own = dict(found.weights)
    every = in_lm_units(found.weights)
    features = tuple((name, weight) for name, weight in every if not is_subtracted(name))
    known = {name: weight for name, weight in every if is_subtracted(name)}
    less = tuple(r._replace(weight=known.get(f"{SUBTRACTED}.{r.name}", 0.0)) for r in subtracted)
    lm, am = own.get(LM, 0.0), own.get("am_score", 0.0)
    if lm <= 0 or am <= 0:
        return Scales(features=features, subtracted=less)
    kaldi = Scales(lm / am, 0.0 - own.get("words", 0.0) / lm, subtracted=less)
    scales = dataclasses.replace(kaldi, features=features)
    # LMWT and penalty give a graph score the LM's weight, and take the highest of equals
    same_weights = {*dict(features), "words"} in KALDI and own.get("graph_score", lm) == lm
    same_scores = "graph_score" in own or all(
        item.nbest.scores("graph_score") is None for item in lists
    )
    same = same_weights and same_scores
    return kaldi if same and all(i.choice(kaldi) == i.choice(scales) for i in lists) else scales


def hypothesis_errors(
    nbests: Sequence[NBest], refs: Mapping[str, Sequence[str]], counting: Counting = ALL_WORDS
) -> List[np.ndarray]:
    """Errors of each hypothesis of each list, (N,); each is aligned once."""
    check_same_utterances(refs, {nbest.utt: None for nbest in nbests})
    found = []
    for nbest in nbests:
        ref = refs[nbest.utt]
        counts = [counting.errors(ref, hyp.words) for hyp in nbest.hypotheses]
        found.append(np.array([count.errors for count in counts]))
    return found


def fold_lists(
    nbests: Sequence[NBest], num_folds: int, groups: Optional[Mapping[str, str]] = None
) -> List[np.ndarray]:
    """Places of the lists of each fold; a recording or speaker is in one."""
    found = folds(_groups(nbests, groups), num_folds)
    if len(found) < 2:
        raise InputError(
            f"--folds {num_folds}: the {len(nbests)} lists are one list, recording or speaker",
            remedy="Give lists of several, which can be divided.",
        )
    return found


def sweep(
    lists: Sequence[Features],
    errors: Sequence[np.ndarray],
    *,
    weights: Sequence[Tuple[str, float]],
    scaled: Sequence[Tuple[str, float]],
) -> Sweep:
    """Errors where the weights after the largest one are multiplied."""
    own = dict(weights)
    names = [name for name, weight in scaled[1:3] if weight]
    parts = [name.split(NAMED_SUMS) for name in names]
    total = np.zeros((len(FACTORS) if names else 1, len(FACTORS) if len(names) > 1 else 1), int)
    for features, counts in zip(lists, errors, strict=True):
        grid = totals(features, own)[None, None, :]
        size = np.full((1, 1), size_of(features, own))
        for part, more in zip(parts, ((FACTORS - 1)[:, None], FACTORS - 1), strict=False):
            moved = {name: own[name] for name in part}
            grid = grid + more[..., None] * totals(features, moved)
            size = size + more * size_of(features, moved)
        total += counts[first_of_equals(grid, size)]
    values = [own[part[0]] * FACTORS for part in parts] + [np.zeros(1), np.zeros(1)]
    labels = [*names, "", ""]
    return Sweep((labels[0], labels[1]), (values[0], values[1]), total)

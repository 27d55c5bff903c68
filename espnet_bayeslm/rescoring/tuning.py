"""Scales with the fewest word errors, and the errors of a rescoring."""

from __future__ import annotations

import dataclasses
import itertools
from types import MappingProxyType
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.evaluation.counting import ALL_WORDS, Counting
from espnet_bayeslm.evaluation.markup import closest_reading
from espnet_bayeslm.evaluation.wer import check_same_utterances
from espnet_bayeslm.nbest.fields import SCORES
from espnet_bayeslm.nbest.segments import known_segments
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.bayes_risk import Posterior, tuned_posterior
from espnet_bayeslm.rescoring.decision import (
    CONTROL,
    ListScores,
    RescoredList,
    ScoredList,
    rescored_list,
)
from espnet_bayeslm.rescoring.feature_tuning import (
    AS_IT_CAME,
    LISTS_PER_WEIGHT,
    Column,
    TunedWeights,
    Validated,
    unused_line,
    validate,
    with_control,
)
from espnet_bayeslm.rescoring.features import (
    FIRST_PASS,
    LM,
    Features,
    first_of_equals,
    is_normalised,
    size_of,
    totals,
)
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.rescoring.scales import Scales, Weighting, scales_of
from espnet_bayeslm.rescoring.weight_search import folds
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
        found: The errors of the candidates.
        control: The errors of the candidates without the scores of the new LMs; `found` itself
            where these LMs are not used.
        sweep: The errors around the scales.
        words: Of the references.
        risk_errors: Word errors of the tuning lists by least expected errors, where that was asked
            for.
        folds: The folds of `--folds`; empty without it.
        unused: Line that says why the new LMs are not used; empty where they are.
    """

    scales: Scales
    found: TunedWeights
    control: TunedWeights
    sweep: Sweep
    words: int
    risk_errors: Optional[int] = None
    folds: Tuple[Fold, ...] = ()
    unused: str = ""

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
    if len(errors) == 1:
        needed = f"{LISTS_PER_WEIGHT} for each weight"
        return f"as it came: too few lists of several hypotheses ({needed})"
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
    refs: Refs,
    weighting: Weighting,
    *,
    groups: Mapping[str, str] = MappingProxyType({}),
    options: RescoreOptions = AS_USUAL,
) -> Tuned:
    """Scales with the fewest word errors.

    They are never worse on these lists than the first pass, nor than the control without the LM
    (`with_control`).
    Of the scales that are given the decision and the names of subtracted LMs are read. The groups,
    {utterance id: recording}, stay in one fold; where there is one recording at most, the lists'
    speakers stay whole, or each list.
    """
    nbests = [item.nbest for item in lists]
    errors = hypothesis_errors(nbests, refs, options.counting)
    spoken = [refs[nbest.utt] for nbest in nbests]
    units_of_folds = _groups(nbests, groups)

    def validated(scored: Sequence[ScoredList]) -> Validated:
        """Candidates with their errors on held-out lists."""
        features = [item.features for item in scored]
        return validate(
            features,
            errors,
            groups=units_of_folds,
            num_folds=options.tune_folds,
            normalised_scores=is_normalised(features),
        )

    def scales_by(found: TunedWeights, scored: Sequence[ScoredList]) -> Scales:
        """Scales that choose as some weights do."""
        has_graph = any("graph_score" in item.features for item in scored)
        lms = weighting.scales.subtracted if scored is final else ()
        weights = _in_lm_units(dict(found.weights))
        scales = scales_of(weights, has_graph=has_graph, subtracted=lms)
        return dataclasses.replace(scales, posterior=_posterior(scored, scales, spoken))

    final = [item.scored(weighting, of_each=options.tune_lms) for item in lists]
    without_lm = [item.without_lm() for item in final]
    every, plain = validated(final), validated(without_lm)
    found, control = with_control(every, plain)
    unused = unused_line(every, plain) if found is control else ""
    scales, own = scales_by(found, final), scales_by(control, without_lm)
    decision, first = weighting.scales.decision, found.errors["first pass"]
    by_risk = None
    if decision == "mbr":
        chosen = [item.choice(scales, "mbr") for item in final]
        by_risk = sum(int(counts[k]) for counts, k in zip(errors, chosen, strict=True))
        if by_risk > first:
            LOG.warning(
                f"by mbr the tuning lists have {by_risk} errors, in the first pass {first}:"
                " max decides"
            )
            decision = "max"
    features, weights = [item.features for item in final], _in_lm_units(dict(found.weights))
    picture = sweep(features, errors, weights=weights, scaled=found.scaled)
    if found.kept != AS_IT_CAME and picture.at_edge:
        LOG.warning("the errors are fewest at the edge of the sweep: see sweep.png")
    # words or characters of the references, as the first pass is compared with them
    units = options.counting.units
    firsts = [units(nbest.hypotheses[0].words) for nbest in nbests]
    pairs = zip(spoken, firsts, strict=True)
    num_words = sum(len(closest_reading(units(ref), first)) for ref, first in pairs)
    made_with: Any = {"fingerprints": weighting.digests, "text_forms": weighting.text_forms}
    scales = dataclasses.replace(scales, decision=decision, control=own, **made_with)
    return Tuned(scales, found, control, picture, num_words, by_risk, unused=unused)


def _in_lm_units(weights: Mapping[str, float]) -> Dict[str, float]:
    """Weights of which that of the LM is one, where it has one: only ratios count."""
    lm = weights.get(LM, 0.0)
    return {name: weight / (lm if lm > 0 else 1.0) for name, weight in weights.items()}


def _posterior(
    lists: Sequence[ScoredList], scales: Scales, refs: Sequence[Sequence[str]]
) -> Posterior:
    """The posterior of calibrated words."""
    hyps = [[hyp.words for hyp in item.nbest.hypotheses] for item in lists]
    best = [item.choice(scales) for item in lists]
    rows = zip(refs, hyps, best, strict=True)
    readings = [closest_reading(ref, words[k]) for ref, words, k in rows]
    return tuned_posterior([item.totals(scales) for item in lists], hyps, readings, best)


def _groups(nbests: Sequence[NBest], known: Mapping[str, str]) -> List[str]:
    """Unit that stays in one fold: a recording, a speaker, or a list by itself."""
    if len({*known.values()}) > 1:
        return [known[nbest.utt] for nbest in nbests]
    if all(nbest.speaker is not None for nbest in nbests):
        return [str(nbest.speaker) for nbest in nbests]
    return [nbest.utt for nbest in nbests]


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
    weights: Mapping[str, float],
    scaled: Sequence[Tuple[Column, float]],
) -> Sweep:
    """Errors where the weights after the largest one are multiplied."""
    parts = [column for column, weight in scaled[1:3] if weight]
    names = ["+".join(column) for column in parts]
    total = np.zeros((len(FACTORS) if names else 1, len(FACTORS) if len(names) > 1 else 1), int)
    for features, counts in zip(lists, errors, strict=True):
        grid = totals(features, weights)[None, None, :]
        size = np.full((1, 1), size_of(features, weights))
        for part, more in zip(parts, ((FACTORS - 1)[:, None], FACTORS - 1), strict=False):
            moved = {name: weights[name] for name in part}
            grid = grid + more[..., None] * totals(features, moved)
            size = size + more * size_of(features, moved)
        total += counts[first_of_equals(grid, size)]
    values = [weights[part[0]] * FACTORS for part in parts] + [np.zeros(1), np.zeros(1)]
    labels = [*names, "", ""]
    return Sweep((labels[0], labels[1]), (values[0], values[1]), total)


class Rescoring:
    """An iterator of rescored lists.

    With references scales are tuned on the lists first, which then are all kept in memory.

    Attributes:
        weighting: How scores are weighed, as tuned.
        tuned: Result of the tuning, where there was one.
    """

    def __init__(
        self,
        scores: Iterable[ListScores],
        weighting: Weighting,
        options: RescoreOptions = AS_USUAL,
        *,
        refs: Optional[Refs] = None,
    ):
        self.tuned: Optional[Tuned] = None
        self.weighting = weighting
        self._rescored: Iterator[RescoredList]
        if refs is None:
            weighting.warn_of_other_lms()
            if weighting.sure and weighting.scales.posterior is None:
                LOG.warning("the posterior over the lists is not tuned: its sharpness is 1")
            self._rescored = map(rescored_list, scores, itertools.repeat(weighting))
            return
        lists, segments = list(scores), known_segments(options.segments)
        groups = {utt: segment.recording for utt, segment in segments.items()}
        nbests = [item.nbest for item in lists]
        if all(nbest.scores(name) is None for nbest in nbests for name in SCORES):
            LOG.info("the lists have no scores: the rank stands in for them")

        def tune(some: Sequence[ListScores], refs: Refs) -> Tuple[Weighting, Tuned]:
            tuned = tune_mixture(some, refs, weighting, groups=groups, options=options)
            # where mbr was wanted and max decides, there are confidences all the same
            return weighting._replace(scales=tuned.scales, confidence=weighting.sure), tuned

        self.weighting, self.tuned = tune(lists, refs)
        if self.tuned.unused:
            LOG.warning(self.tuned.unused)
        if options.folds is None:
            self._rescored = map(rescored_list, lists, itertools.repeat(self.weighting))
            return
        errors = hypothesis_errors(nbests, refs, options.counting)
        done: Dict[int, RescoredList] = {}
        counts = []
        for places in fold_lists(nbests, options.folds, groups):
            rest = [lists[k] for k in np.setdiff1d(np.arange(len(lists)), places)]
            of_others, _ = tune(rest, {item.nbest.utt: refs[item.nbest.utt] for item in rest})
            done.update((k, rescored_list(lists[k], of_others)) for k in places.tolist())
            pairs = [(errors[k], done[k]) for k in places.tolist()]
            own = [counted[r.control] for counted, r in pairs if r.control is not None]
            counts.append(
                Fold(
                    of_others.scales,
                    len(places),
                    sum(int(counted[0]) for counted, _ in pairs),
                    sum(int(counted[r.best]) for counted, r in pairs),
                    int(sum(own)) if len(own) == len(places) else None,
                )
            )
        self.tuned = self.tuned._replace(folds=tuple(counts))
        self._rescored = iter([done[k] for k in range(len(lists))])

    def __iter__(self) -> Iterator[RescoredList]:
        return self

    def __next__(self) -> RescoredList:
        return next(self._rescored)

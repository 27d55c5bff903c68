"""Which features are kept, and their weights: tuned on lists with known errors.

Candidates are the lists as they came, a few features, and all of them. Cross-validation over the
tuning lists chooses: each candidate's weights are found on all folds but one, and their errors
counted on that one. The lists stay as they came where no gain holds.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.wer import FIRST_PASS, ORACLE
from espnet_bayeslm.rescoring.features import (
    BIAS,
    FIRST_WINS,
    LENGTH_TIMES,
    LM,
    NEAR,
    REWRITTEN,
    Features,
    Problem,
    feature_table,
    make_problem,
    sign_of,
    totals,
)
from espnet_bayeslm.rescoring.weight_search import SEED, mert, normalised

AS_IT_CAME = "as it came"
NUM_FOLDS = 5
# Standard errors by which a gain on held-out lists must be above 0.
SURE = 1.0
# Weights of the LM per weight of the score from which the search starts, in units of spread.
LM_SHARES = (0.25, 1.0)
# Weight of a subtracted LM from which one more search starts, in units of spread
SUBTRACTED_SHARE = -0.5
# Tuning lists that a set needs for each of its weights
LISTS_PER_WEIGHT = 8

# Features whose sum has one weight
Column = Tuple[str, ...]
# The score of the recogniser first, then that of the LM, then others
Columns = Tuple[Column, ...]
Weights = Tuple[Tuple[str, float], ...]
Ranked = Tuple[Tuple[Column, float], ...]


class TunedWeights(NamedTuple):
    """Chosen weights, with their errors.

    Attributes:
        kept: Name of the candidate.
        weights: (feature, weight), in the features' own units.
        errors: Word errors of the tuning lists: "first pass", "tuned", "oracle".
        held_out: Candidate -> its word errors, each list's counted where it was held out.
        num_folds: Of the cross-validation.
        scaled: (features, their weight in units of their spread), the largest first; none where
            the lists stay as they came.
    """

    kept: str
    weights: Weights
    errors: Dict[str, int]
    held_out: Dict[str, int]
    num_folds: int
    scaled: Ranked


def feature_sets(names: Sequence[str], *, normalised_scores: bool) -> Dict[str, Columns]:
    """Name -> columns of the candidates to choose from, those with fewer features first.

    Without the scores of a new LM the recogniser's own `lm_score` takes their place.
    """
    known = set(names)
    new = LM if LM in known else "lm_score"
    lm: Column = tuple(name for name in ("graph_score", new) if name in known)
    few: Columns = (("words",),) if "words" in known else ()
    bases = [name for name in ("am_score", LENGTH_TIMES) if name in known]
    bases = (bases if normalised_scores else bases[:1]) or ["rank"]
    more = ("lm_score",) if "lm_score" in known - {new} else ("is_first",)
    # a feature that stands in a sum already is not weighed apart by the small sets
    lms: Columns = (lm,) if lm else ()
    labels = ["LM"] if LM in lm else ["+".join(column) for column in lms]
    small: Dict[str, Columns] = {
        ", ".join([base, *labels, "words"]): ((base,), *lms, *few) for base in bases
    }
    middle = {f"{name}, {more[0]}": (*columns, more) for name, columns in small.items()}
    hidden = set() if normalised_scores else {LENGTH_TIMES}
    own_lm: Columns = ((new,),) if new in known else ()
    subtracted: Columns = tuple((name,) for name in names if sign_of(name) < 0)
    rest = [(n,) for n in names if sign_of(n) >= 0 and n not in {*bases[:1], new, *hidden}]
    alone = {", ".join([base, *labels]): ((base,), *lms) for base in bases}
    biased = {**alone, **small}
    if BIAS in known:
        biased = {f"{n}, {BIAS}": (*own, (BIAS,)) for n, own in biased.items()}
        small.update(biased)
    if NEAR in known:
        small.update({f"{n}, near words": (*own, (NEAR,)) for n, own in biased.items()})
    sets = {**small, **middle, "all features": ((bases[0],), *own_lm, *rest)}
    if not subtracted:
        return sets
    chosen = [*small, "all features"]
    return {**sets, **{f"{name}, subtracted": (*sets[name], *subtracted) for name in chosen}}


@dataclasses.dataclass(frozen=True, eq=False)
class Validated:
    """Candidates on tuning lists, and their errors where each list was held out.

    Attributes:
        lists, errors: Features and word errors of each list's hypotheses.
        decoys, decoy_errors: Features and errors of the lists again, with a bias list that does not
            hold what was said; empty where there is none.
        share: Weight of the lists' errors, where the decoys' have another.
        problem: The features as the search sees them.
        sets: Candidate -> its columns.
        held_out: Candidate -> word errors of each list, then of each decoy, weighted, (L,) or
            (2 L,), "as it came" among them.
        num_folds: Of the cross-validation.
    """

    lists: Sequence[Features]
    errors: Sequence[np.ndarray]
    problem: Problem
    sets: Mapping[str, Columns]
    held_out: Mapping[str, np.ndarray]
    num_folds: int
    decoys: Sequence[Features] = ()
    decoy_errors: Sequence[np.ndarray] = ()
    share: int = 1

    @functools.cached_property
    def weights(self) -> Dict[str, np.ndarray]:
        """Weights of each candidate on all lists, in units of spread."""
        return solve(self.problem, self.sets)

    def best(self, names: Optional[Iterable[str]] = None) -> str:
        """Candidate with the fewest errors on held-out lists, the first of equals."""
        return min(names or self.held_out, key=lambda name: self.held_out[name].sum())

    def choice(self, names: Optional[Iterable[str]] = None) -> str:
        """Best candidate where its gain is sure, else the lists as they came."""
        best = self.best(names)
        gains = self.held_out[AS_IT_CAME] - self.held_out[best]
        # a list and its decoy are one
        gains = gains.reshape(-1, len(self.lists)).sum(axis=0)
        # the gain's standard error, lists being independent
        error = np.sqrt(len(gains)) * gains.std(ddof=1) if len(gains) > 1 else 0.0
        return best if gains.sum() > SURE * error else AS_IT_CAME

    def tuned(self, kept: str) -> TunedWeights:
        """Weights of a candidate; the first pass's where they make more errors on these lists."""
        weights: Weights = FIRST_WINS
        scaled: Ranked = ()
        if kept != AS_IT_CAME:
            columns, of_columns = self.sets[kept], self.weights[kept]
            pairs = zip(columns, of_columns.tolist(), strict=True)
            scaled = tuple(sorted(pairs, key=lambda pair: -abs(pair[1])))
            in_own_units = of_columns / self.problem.columns(columns).spreads
            rows = zip(columns, in_own_units.tolist(), strict=True)
            own = {name: weight for column, weight in rows for name in column}
            # only ratios count: in its own unit that of the LM is one, where it is above zero
            unit = own[LM] if own.get(LM, 0.0) > 0 else 1.0
            weights = tuple((name, weight / unit) for name, weight in own.items() if weight)
        first = sum(int(counts[0]) for counts in self.errors)
        tuned = int(chosen_errors(self.lists, self.errors, dict(weights)).sum())
        if tuned > first:
            kept, weights, scaled, tuned = AS_IT_CAME, FIRST_WINS, (), first
        oracle = sum(int(counts.min()) for counts in self.errors)
        counts = {FIRST_PASS: first, "tuned": tuned, ORACLE: oracle}
        held_out = {name: self.errors_held_out(name) for name in self.held_out}
        return TunedWeights(kept, weights, counts, held_out, self.num_folds, scaled)

    def weighed(self, tuned: TunedWeights, weights: Mapping[str, float]) -> TunedWeights:
        """Weights of a candidate of which some were changed, with their errors."""
        counts = chosen_errors(self.lists, self.errors, weights)
        errors = {**tuned.errors, "tuned": int(counts.sum())}
        return tuned._replace(weights=tuple(weights.items()), errors=errors)

    def with_near_words(self, least: float) -> Validated:
        """Candidates on the same lists, in which near words of lower ln odds are barred."""

        def barred(own: Features) -> Features:
            if REWRITTEN not in own:
                return own
            low = (own[REWRITTEN] > 0) & (own[NEAR] < least)
            return {**own, REWRITTEN: np.where(low, 2.0, own[REWRITTEN])}

        lists, decoys = ([barred(own) for own in part] for part in (self.lists, self.decoys))
        return dataclasses.replace(self, lists=lists, decoys=decoys)

    def errors_held_out(self, name: str) -> int:
        """Word errors of a candidate on held-out lists, without decoys."""
        return int(self.held_out[name][: len(self.lists)].sum()) // self.share

    def chosen(self) -> TunedWeights:
        """Weights of the choice; never worse on these lists than without subtracted LMs."""
        plain = [
            candidate
            for candidate in self.held_out
            if all(sign_of(name) >= 0 for own in self.sets.get(candidate, ()) for name in own)
        ]
        names = dict.fromkeys([self.choice(), self.choice(plain)])
        return min(map(self.tuned, names), key=lambda tuned: tuned.errors["tuned"])


def validate(
    lists: Sequence[Features],
    errors: Sequence[np.ndarray],
    *,
    groups: Sequence[str],
    normalised_scores: bool = False,
    num_folds: int = NUM_FOLDS,
    decoys: Sequence[Features] = (),
    decoy_errors: Sequence[np.ndarray] = (),
    shares: Tuple[int, int] = (1, 1),
) -> Validated:
    """Cross-validation of all candidates.

    `errors` are the word errors of each list's hypotheses. Lists of one group (a recording, a
    speaker) are in one fold. `normalised_scores` may be divided by the length. Errors of lists and
    of decoys, which are the lists with other bias lists, count so many times as `shares` say.
    """
    every, num_lists, share = [*lists, *decoys], len(lists), shares[0] if decoys else 1
    weighted = [counts * share for counts in errors]
    weighted += [counts * shares[1] for counts in decoy_errors]
    how: Any = dict(normalised_scores=normalised_scores, num_lists=num_lists)
    problem, sets = make_candidates(every, weighted, **how)
    parts = folds(groups, num_folds)
    if len(parts) < 2:  # one recording: utterances are better than nothing
        parts = folds([str(n) for n in range(num_lists)], num_folds)
    if decoys:
        parts = [np.concatenate([part, part + num_lists]) for part in parts]
    held_out = {name: problem.errors[:, 0].copy() for name in [AS_IT_CAME, *sets]}
    for part in parts if len(parts) > 1 else ():
        rest = np.setdiff1d(np.arange(len(every)), part)
        weights = solve(problem.only(rest), sets)
        for name, columns in sets.items():
            held = problem.only(part).columns(columns)
            held_out[name][part] = held.list_errors(weights[name])
    again = (decoys, decoy_errors, share)
    return Validated(lists, errors, problem, sets, held_out, len(parts), *again)


def folds(groups: Sequence[str], num_folds: int) -> List[np.ndarray]:
    """Index arrays of `num_folds` parts with about as many lists; a group is in one of them.

    Args:
        groups: (L,) what must stay together: a recording, a speaker.
        num_folds: How many; fewer where there are fewer groups.
    """
    names, counts = np.unique(np.asarray(groups), return_counts=True)
    num_folds = min(num_folds, len(names))
    order = np.random.default_rng(SEED).permutation(len(names))
    order = order[np.argsort(-counts[order], kind="stable")]
    filled = np.zeros(num_folds, dtype=int)
    fold_of = {}
    for k in order:
        fold = int(filled.argmin())
        fold_of[names[k]] = fold
        filled[fold] += counts[k]
    of_list = np.array([fold_of[name] for name in groups])
    return [np.flatnonzero(of_list == fold) for fold in range(num_folds)]


def with_control(every: Validated, without_lm: Validated) -> Tuple[TunedWeights, TunedWeights, str]:
    """Weights with the new LMs, those of the control, and why the new LMs are not used.

    The control is tuned without the new LMs. Where the gain with the LMs is sure, the control is
    the candidate without them that has the fewest errors on the tuning lists, of those with no more
    weights. No rule keeps it at the first pass, so that the gain of length and rank is not credited
    to the LMs. These are used where they have fewer errors than every candidate without them on
    held-out lists, and no more than the control on the tuning lists; else both are one. The line
    that says why is empty where the LMs are used, or the lists are too few to try them.
    """
    chosen, control, fewest = every.chosen(), without_lm.chosen(), without_lm.best()
    without = without_lm.errors_held_out(fewest)
    if chosen.kept != AS_IT_CAME:
        size = len(every.sets[chosen.kept])
        names = [n for n, own in without_lm.sets.items() if len(own) <= size] or [AS_IT_CAME]
        control = min(map(without_lm.tuned, names), key=lambda tuned: tuned.errors["tuned"])
        helps = every.errors_held_out(chosen.kept) < without
        no_worse = chosen.errors["tuned"] <= control.errors["tuned"]
        if helps and no_worse and any(sign_of(name) for name, _ in chosen.weights):
            return chosen, control, ""
        control = without_lm.tuned(fewest)
    if not every.sets:
        return control, control, ""
    with_lm = every.errors_held_out(every.best(every.sets))
    line = f"the LM is not used: {with_lm} errors on held-out lists with it, {without} without it"
    return control, control, line if with_lm >= without else f"{line}, and the gain is not sure"


def chosen_errors(
    lists: Sequence[Features], errors: Sequence[np.ndarray], weights: Mapping[str, float]
) -> np.ndarray:
    """Word errors of the best hypothesis of each list under some weights, (L,)."""
    pairs = zip(lists, errors, strict=True)
    return np.array([counts[totals(features, weights).best()] for features, counts in pairs])


def make_candidates(
    lists: Sequence[Features],
    errors: Sequence[np.ndarray],
    *,
    normalised_scores: bool,
    num_lists: Optional[int] = None,
) -> Tuple[Problem, Dict[str, Columns]]:
    """Tuning lists with a column for each sum of features, and the candidates that they allow.

    `num_lists` are without those that are weighed twice; None: there are none.
    """
    num_lists = len(lists) if num_lists is None else num_lists
    every, table, sizes = feature_table(lists)
    padded = np.zeros(table.shape[:2], dtype=int)
    rewritten = np.zeros(table.shape[:2], dtype=bool)
    for row, is_new, counts, own in zip(padded, rewritten, errors, lists, strict=True):
        row[: len(counts)] = counts
        is_new[: len(counts)] = own.get(REWRITTEN, 0.0)
    spreads = make_problem(table, padded, sizes).spreads
    names = [name for name, spread in zip(every, spreads, strict=True) if spread > 0]
    # the ranks are equal where every list has one hypothesis
    sets = feature_sets(names, normalised_scores=normalised_scores) if "rank" in names else {}
    sets = {n: own for n, own in sets.items() if len(own) * LISTS_PER_WEIGHT <= num_lists}
    columns = tuple(dict.fromkeys(column for own in sets.values() for column in own))
    sums = [table[..., [every.index(name) for name in column]].sum(axis=-1) for column in columns]
    values = np.stack(sums, axis=-1) if sums else table[..., :0]
    problem = make_problem(values, padded, sizes)._replace(names=columns)
    return problem._replace(rewritten=rewritten if rewritten.any() else None), sets


def solve(whole: Problem, sets: Mapping[str, Columns]) -> Dict[str, np.ndarray]:
    """Weights of each set, in units of spread; larger sets start from the smallest one's."""
    weights_of: Dict[str, np.ndarray] = {}
    known: Dict[Column, float] = {}
    for name, columns in sets.items():
        problem = whole.columns(columns)
        starts = [_start(columns, share) for share in LM_SHARES]
        if (problem.signs < 0).any():
            starts.append(np.where(problem.signs < 0, SUBTRACTED_SHARE, starts[-1]))
        # as it came: all weight on the recogniser's own choice
        own_choice = ("is_first",), columns[0]
        starts.append(np.array([float(column in own_choice) for column in columns]))
        anchor = _start(columns, 1.0)
        if columns[0] in known:
            anchor = _spread_over(columns, known, problem.spreads)
            starts.append(anchor)
        weights = weights_of[name] = mert(problem, starts, anchor)
        known = known or dict(zip(columns, weights / problem.spreads, strict=True))
    return weights_of


def _start(columns: Columns, share: float) -> np.ndarray:
    """Weights on the recogniser's score and the LM's only, (F,)."""
    of_lm = [not {LM, "lm_score", "graph_score"}.isdisjoint(column) for column in columns[:2]]
    weights = np.zeros(len(columns))
    weights[: len(of_lm)] = np.where(of_lm, share, 0.0)
    weights[0] = 1.0
    return weights


def _spread_over(
    columns: Columns, known: Mapping[Column, float], spreads: np.ndarray
) -> np.ndarray:
    """Weights of a smaller set as those of a larger one, in units of spread."""
    apart = {name: weight for column, weight in known.items() for name in column}
    own = [known.get(c, apart.get(c[0], 0.0) if len(c) == 1 else 0.0) for c in columns]
    return normalised(np.array(own) * spreads)

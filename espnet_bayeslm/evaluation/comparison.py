"""Several systems on one or many test sets: word errors, MAPSSWE and bootstrap of every pair.

MAPSSWE, the matched pairs sentence segment word error test: Gillick and Cox, "Some statistical
issues in the comparison of speech recognition algorithms", ICASSP 1989; segments and statistic as
NIST's sc_stats has them. Words keep their case, which sclite folds unless it is told not to.

Bootstrap: Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance
evaluation", ICASSP 2004: utterances are drawn again and again with replacement, the same ones for
both systems.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import defaultdict
from typing import (
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.evaluation.markup import Items, MarkedAlignment
from espnet_bayeslm.evaluation.wer import (
    NO_WORDS,
    Alignment,
    ErrorCounts,
    Words,
    align,
    check_same_utterances,
    word_errors,
)
from espnet_bayeslm.utils.errors import InputError

# sc_stats's "minimum number of correct boundary words"
NUM_BOUNDARY_WORDS = 2
# |Z| beyond this is a probability below 0.05, to the digits that sc_stats uses
CRITICAL_Z = 1.96
NUM_REPLICATES = 10_000
LEVEL = 0.95
# The most utterance numbers that are held at a time, so that memory does not grow with the set
_HELD = 1 << 22


class SegmentErrors(NamedTuple):
    """Errors of two systems in a segment: a stretch of an utterance where one of them is wrong."""

    errors_a: int
    errors_b: int


@dataclasses.dataclass(frozen=True)
class Mapsswe:
    """The result of the test; d is errors of A less errors of B in a segment.

    Attributes:
        segments: Number of segments.
        mean: Mean of d: positive where B is the better system.
        std: Standard deviation of d, with segments - 1 in the denominator.
        z: mean / (std / sqrt(segments)); 0 where all d are equal.
        p: Two-sided probability of a `|z|` as large, if the systems were equally good.
    """

    segments: int
    mean: float
    std: float
    z: float
    p: float

    @property
    def significant(self) -> bool:
        """True if the systems differ significantly at the level of 0.05."""
        return abs(self.z) > CRITICAL_Z

    @property
    def a_is_better(self) -> bool:
        """True if A makes significantly fewer errors than B."""
        return self.z < -CRITICAL_Z

    @property
    def b_is_better(self) -> bool:
        """True if B makes significantly fewer errors than A."""
        return self.z > CRITICAL_Z


def mapsswe(
    ref: Mapping[str, Sequence[str]],
    hyp_a: Mapping[str, Sequence[str]],
    hyp_b: Mapping[str, Sequence[str]],
) -> Mapsswe:
    """MAPSSWE test of two systems.

    Args:
        ref: Utterance id -> words.
        hyp_a: System A's words, of the same utterances.
        hyp_b: System B's words, of the same utterances.

    Raises:
        InputError: The utterances are not the same.
    """
    return compare_segments(find_segments(align_all(ref, hyp_a), align_all(ref, hyp_b)))


def align_all(
    ref: Mapping[str, Sequence[str]], hyp: Mapping[str, Sequence[str]]
) -> Dict[str, Alignment]:
    """{utterance id: alignment}, in the order of the references."""
    check_same_utterances(ref, hyp)
    return {utt: align(words, hyp[utt]) for utt, words in ref.items()}


def find_segments(
    aligned_a: Mapping[str, Alignment],
    aligned_b: Mapping[str, Alignment],
    counts: Callable[[str, str], bool] = lambda utt, word: True,
) -> List[SegmentErrors]:
    """Segments of all utterances, which both systems have.

    `counts(utterance, word)` is true of words whose errors count.
    """
    return [
        segment
        for utt, alignment in aligned_a.items()
        for segment in utterance_segments(alignment, aligned_b[utt], functools.partial(counts, utt))
    ]


def utterance_segments(
    alignment_a: Alignment,
    alignment_b: Alignment,
    counts: Callable[[str], bool] = lambda word: True,
) -> List[SegmentErrors]:
    """Segments of one utterance.

    An error of either system opens a segment. It closes after two reference words in a row that
    both have right, with no insertion between them, and at the end of the utterance. An alternation
    stands for the words that the systems chose of it, and one with none is passed over.

    Args:
        alignment_a: Alignment of system A.
        alignment_b: Alignment of system B.
        counts: True of reference words, and of inserted words, whose errors count. A segment
            without any is left out. All errors open and close segments.

    Raises:
        ValueError: The reference words are not the same.
    """
    (items_a, slots_a), (items_b, slots_b) = (_slots(a, counts) for a in (alignment_a, alignment_b))
    if items_a != items_b:
        words = [" ".join(map(str, items)) for items in (items_a, items_b)]
        raise ValueError(f"two alignments of different references: {words[0]!r} and {words[1]!r}")
    segments = []
    errors_a = errors_b = num_correct = 0
    for place, (a, b) in enumerate(zip(slots_a, slots_b, strict=True)):
        (inserted_a, wrong_a, words_a, counted_a), (inserted_b, wrong_b, words_b, counted_b) = a, b
        errors_a += counted_a
        errors_b += counted_b
        if inserted_a or inserted_b:
            num_correct = 0
        num_correct = 0 if wrong_a or wrong_b else num_correct + min(words_a, words_b)
        at_boundary = num_correct >= NUM_BOUNDARY_WORDS or place == len(items_a)
        if at_boundary and (errors_a or errors_b):
            segments.append(SegmentErrors(errors_a, errors_b))
            errors_a = errors_b = 0
    return segments


def _slots(alignment: Alignment, counts: Callable[[str], bool]) -> Tuple[Items, List[List[int]]]:
    """Items of the reference; insertions before and within each, wrong words, words, and errors.

    Errors are those of words that count. The end has counts too. An alternation can have no words,
    or several.
    """
    if isinstance(alignment, MarkedAlignment):
        items, places = alignment.items, alignment.places
    else:
        items = tuple(ref for ref, _ in alignment if ref is not None)
        seen = [0, *itertools.accumulate(ref is not None for ref, _ in alignment)]
        places = seen[:-1]
    slots = [[0, 0, 0, 0] for _ in range(len(items) + 1)]
    for (ref, hyp), place in zip(alignment, places, strict=True):
        slot = slots[place]
        slot[0] += ref is None
        slot[1] += ref is not None and ref != hyp
        slot[2] += ref is not None
        slot[3] += ref != hyp and counts(word_of_pair(ref, hyp))
    return items, slots


def word_of_pair(ref: Optional[str], hyp: Optional[str]) -> str:
    """Word that a pair's error is counted for: the reference word, or the inserted one."""
    return str(hyp if ref is None else ref)


def compare_segments(segments: Iterable[SegmentErrors]) -> Mapsswe:
    """Test over segments, of one set or of several that are pooled.

    Without segments, and with one, there is no spread to judge by: z = 0 and p = 1.
    """
    differences = [segment.errors_a - segment.errors_b for segment in segments]
    count = len(differences)
    if count == 0:
        return Mapsswe(0, 0.0, 0.0, 0.0, 1.0)
    total = sum(differences)
    # in whole numbers, so that equal differences have no spread at all
    scatter = count * sum(d * d for d in differences) - total * total
    std = math.sqrt(scatter / (count * (count - 1))) if scatter else 0.0
    mean = total / count
    z = mean / (std / math.sqrt(count)) if std else 0.0
    return Mapsswe(count, mean, std, z, math.erfc(abs(z) / math.sqrt(2)))


@dataclasses.dataclass(frozen=True)
class WerDifference:
    """WER of system A less WER of system B: positive where B is the better system.

    Attributes:
        difference: Difference on the set itself, as a fraction; `low` and `high` are its interval.
        improvement: Probability that B is better than A: the share of the replicates in which it
            makes fewer errors.
        level: Probability of the interval, half of the rest lying on each side.
        worsening: Probability that B is worse than A: the share of the replicates in which it makes
            more errors; None where a file does not say it.
    """

    difference: float
    low: float
    high: float
    improvement: float
    level: float = LEVEL
    worsening: Optional[float] = None


def replicate_totals(
    counts: np.ndarray, *, num_replicates: int = NUM_REPLICATES, seed: int = 0
) -> np.ndarray:
    """Totals of counts over utterances drawn with replacement, (num_replicates, K) float64.

    The K counts of each utterance, (U, K), are errors of some systems, and words. One seed and one
    U give equal replicates for all systems.
    """
    num_utts = len(counts)
    if num_utts == 0:
        return np.zeros((num_replicates, counts.shape[1]))
    rows = max(1, _HELD // num_utts)
    rng = np.random.default_rng(seed)
    totals = []
    for start in range(0, num_replicates, rows):
        # the replicates do not depend on how many are held at a time
        shape = min(rows, num_replicates - start), num_utts
        chosen = rng.integers(num_utts, size=shape, dtype=np.int32)
        # how often each row holds each utterance, (R, U)
        places = (chosen + num_utts * np.arange(len(chosen))[:, None]).ravel()
        drawn = np.bincount(places, minlength=chosen.size).reshape(chosen.shape)
        totals.append(drawn @ counts.astype(np.float64))
    return np.concatenate(totals)


def difference_of_totals(totals: np.ndarray, drawn: np.ndarray) -> WerDifference:
    """Difference of two word error rates and its interval, from replicates.

    The totals, (4,), are errors and words of system A, errors and words of system B. The words
    differ only where references have alternations. `drawn`, (num_replicates, 4), has the totals of
    each replicate; one without a word is left out.
    """
    drawn = drawn[(drawn[:, 1] > 0) & (drawn[:, 3] > 0)]
    if not (totals[1] and totals[3] and len(drawn)):
        raise InputError(
            "the references have no words, so there is no word error rate to compare",
            remedy="Give one system, or references with words.",
        )
    # exactly 0 where the errors are equal and the words are
    errors_a, words_a, errors_b, words_b = np.vstack([totals, drawn]).T
    observed, *differences = (errors_a - errors_b * (words_a / words_b)) / words_a
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    better, worse = (float((np.array(differences) * sign > 0).mean()) for sign in (1, -1))
    return WerDifference(float(observed), float(low), float(high), better, worsening=worse)


@dataclasses.dataclass(frozen=True)
class SystemPair:
    """Two systems compared."""

    a: str
    b: str
    test: Mapsswe
    interval: WerDifference
    identical: bool = False


@dataclasses.dataclass(frozen=True)
class Scores:
    """The results of all systems on a set, or on several sets pooled.

    Attributes:
        errors: Name -> word errors; more than the systems may be in it, such as an oracle.
        pairs: Every two systems, in the order in which they were given.
    """

    errors: Dict[str, ErrorCounts]
    pairs: List[SystemPair]


@dataclasses.dataclass(frozen=True)
class ScoredSet:
    """A test set with the errors of all systems, kept by utterance; sets can be pooled.

    Attributes:
        errors: System -> utterance id -> word errors.
        segments: (system, system) -> their segments, for every two systems.
        identical: Every two systems whose words are the same.
    """

    errors: Dict[str, Dict[str, ErrorCounts]]
    segments: Dict[Tuple[str, str], List[SegmentErrors]]
    identical: FrozenSet[Tuple[str, str]] = frozenset()


def score_set(refs: Mapping[str, Words], hyps: Mapping[str, Mapping[str, Words]]) -> ScoredSet:
    """Word errors of all systems and the segments of every two."""
    errors = {}
    for name, texts in hyps.items():
        check_same_utterances(refs, texts, hyp_path=name)
        errors[name] = {utt: word_errors(words, texts[utt]) for utt, words in refs.items()}
    pairs = list(itertools.combinations(hyps, 2))
    aligned = {name: align_all(refs, texts) for name, texts in hyps.items()} if pairs else {}
    segments = {(a, b): find_segments(aligned[a], aligned[b]) for a, b in pairs}
    same = frozenset((a, b) for a, b in pairs if hyps[a] == hyps[b])
    return ScoredSet(errors, segments, same)


def compare_systems(
    sets: Sequence[ScoredSet],
    *,
    num_replicates: int = NUM_REPLICATES,
    seed: int = 0,
    needs_words: bool = True,
) -> Scores:
    """Results on one set, or on several pooled: errors add, segments are put together.

    An utterance id that is in several sets, as recorded by several microphones, is drawn as one
    by the bootstrap: its errors there do not come about independently. MAPSSWE takes its segments
    to be independent all the same. References without words are an error; without `needs_words`
    no systems are compared then.
    """
    names = list(sets[0].errors)
    by_utt: Dict[str, Dict[str, ErrorCounts]] = {n: defaultdict(lambda: NO_WORDS) for n in names}
    for name, part in itertools.product(names, sets):
        for utt, counts in part.errors[name].items():
            by_utt[name][utt] += counts
    totals = {name: sum(by_utt[name].values(), NO_WORDS) for name in names}
    if len(names) < 2 or not (needs_words or any(count.words for count in totals.values())):
        return Scores(totals, [])
    # sorted, so that the replicates do not depend on the order of a file
    utts = sorted(by_utt[names[0]])
    counts_of = [[by_utt[name][utt] for name in names] for utt in utts]
    # (utterances, 2 * systems)
    table = np.array([[n for c in row for n in (c.errors, c.words)] for row in counts_of])
    drawn = replicate_totals(table, num_replicates=num_replicates, seed=seed)
    pairs = []
    for (i, a), (j, b) in itertools.combinations(enumerate(names), 2):
        columns = [2 * i, 2 * i + 1, 2 * j, 2 * j + 1]
        interval = difference_of_totals(table[:, columns].sum(axis=0), drawn[:, columns])
        segments = itertools.chain.from_iterable(part.segments[a, b] for part in sets)
        identical = all((a, b) in part.identical for part in sets)
        pairs.append(SystemPair(a, b, compare_segments(segments), interval, identical))
    return Scores(totals, pairs)

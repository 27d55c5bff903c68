"""Matched pairs sentence segment word error test (MAPSSWE) of two systems.

Gillick and Cox, "Some statistical issues in the comparison of speech recognition algorithms",
ICASSP 1989; segments and statistic as NIST's sc_stats has them. Words keep their case, which sclite
folds unless it is told not to.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Iterable, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.alignment import Alignment, align_all
from espnet_bayeslm.evaluation.markup import Item, MarkedAlignment
from espnet_bayeslm.evaluation.wer import check_same_utterances

# sc_stats's "minimum number of correct boundary words"
NUM_BOUNDARY_WORDS = 2
# |Z| beyond this is a probability below 0.05, to the digits that sc_stats uses
CRITICAL_Z = 1.96


class Segment(NamedTuple):
    """A stretch of an utterance in which at least one of two systems is wrong."""

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


def find_segments(
    aligned_a: Mapping[str, Alignment], aligned_b: Mapping[str, Alignment]
) -> List[Segment]:
    """Segments of all utterances.

    Raises:
        InputError: The utterances are not the same.
        ValueError: The reference words of an utterance are not the same in both.
    """
    check_same_utterances(aligned_a, aligned_b, ref_path="system A", hyp_path="system B")
    return [
        segment
        for utt, alignment in aligned_a.items()
        for segment in utterance_segments(alignment, aligned_b[utt])
    ]


def utterance_segments(alignment_a: Alignment, alignment_b: Alignment) -> List[Segment]:
    """Segments of one utterance.

    An error of either system opens a segment. It closes after two reference words in a row that
    both have right, with no insertion between them, and at the end of the utterance. An alternation
    stands for the words that the systems chose of it, and one with none is passed over.

    Raises:
        ValueError: The reference words are not the same.
    """
    slots_a, slots_b = _slots(alignment_a), _slots(alignment_b)
    if [slot.item for slot in slots_a] != [slot.item for slot in slots_b]:
        words = [" ".join(map(str, (s.item for s in slots[:-1]))) for slots in (slots_a, slots_b)]
        raise ValueError(f"two alignments of different references: {words[0]!r} and {words[1]!r}")
    segments = []
    errors_a = errors_b = num_correct = 0
    for a, b in zip(slots_a, slots_b, strict=True):
        errors_a += a.insertions + a.wrong
        errors_b += b.insertions + b.wrong
        if a.insertions or b.insertions:
            num_correct = 0
        num_correct = 0 if a.wrong or b.wrong else num_correct + min(a.words, b.words)
        at_boundary = num_correct >= NUM_BOUNDARY_WORDS or a.item is None
        if at_boundary and (errors_a or errors_b):
            segments.append(Segment(errors_a, errors_b))
            errors_a = errors_b = 0
    return segments


class _Slot(NamedTuple):
    """An item of the reference (None: the end) with a system's errors in it.

    Attributes:
        item: A word, or the branches of an alternation.
        insertions: Insertions before and within it.
        wrong: Number of wrong words in the item.
        words: Number of words; an alternation can have none, or several.
    """

    item: Optional[Item]
    insertions: int
    wrong: int
    words: int


def _slots(alignment: Alignment) -> List[_Slot]:
    """Slots: one for each item of the reference and one for the end."""
    if isinstance(alignment, MarkedAlignment):
        items, places = alignment.items, alignment.places
    else:
        items = tuple(ref for ref, _ in alignment if ref is not None)
        seen = [0, *itertools.accumulate(ref is not None for ref, _ in alignment)]
        places = seen[:-1]
    counts = [[0, 0, 0] for _ in range(len(items) + 1)]
    for (ref, hyp), place in zip(alignment, places, strict=True):
        slot = counts[place]
        slot[0] += ref is None
        slot[1] += ref is not None and ref != hyp
        slot[2] += ref is not None
    return [_Slot(item, *slot) for item, slot in zip([*items, None], counts, strict=True)]


def compare_segments(segments: Iterable[Segment]) -> Mapsswe:
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

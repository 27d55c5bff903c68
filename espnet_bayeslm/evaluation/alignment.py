"""Alignment of a hypothesis with its reference, the one that NIST's sclite finds."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence

import numpy as np

from espnet_bayeslm.evaluation.markup import (
    SUBSTITUTION,
    UNPAIRED,
    MarkedWords,
    Pair,
    align_marked,
)
from espnet_bayeslm.evaluation.wer import check_same_utterances

Alignment = Sequence[Pair]

# What two words cost less as a pair than as an insertion and a deletion.
SAVED_BY_EQUAL = 2 * UNPAIRED
SAVED_BY_OTHER = 2 * UNPAIRED - SUBSTITUTION


def align(ref: Sequence[str], hyp: Sequence[str]) -> List[Pair]:
    """Alignment of the lowest cost: 3 for an insertion or deletion, 4 for another word.

    Of several with that cost it is sclite's: from the last word to the first, a pair is preferred
    to an insertion, and that to a deletion. (kaldialign prefers them the other way round.)
    Words with markup are aligned in the cheapest pair of readings.
    """
    if isinstance(ref, MarkedWords) or isinstance(hyp, MarkedWords):
        return align_marked(ref, hyp)
    if list(ref) == list(hyp):
        return [(word, word) for word in ref]
    saved = _most_saved(ref, hyp)
    pairs: List[Pair] = []
    i, j = len(ref), len(hyp)
    while i or j:
        if (
            i
            and j
            and saved[i, j]
            == saved[i - 1, j - 1]
            + (SAVED_BY_EQUAL if ref[i - 1] == hyp[j - 1] else SAVED_BY_OTHER)
        ):
            i, j = i - 1, j - 1
            pairs.append((ref[i], hyp[j]))
        elif j and saved[i, j] == saved[i, j - 1]:
            j -= 1
            pairs.append((None, hyp[j]))
        else:
            i -= 1
            pairs.append((ref[i], None))
    return pairs[::-1]


def _most_saved(ref: Sequence[str], hyp: Sequence[str]) -> np.ndarray:
    """(R + 1, H + 1) costs that pairs save at most, of the first i and the first j words."""
    ids = {word: number for number, word in enumerate(dict.fromkeys([*ref, *hyp]))}
    hyp_ids = np.array([ids[word] for word in hyp], dtype=np.int64)
    saved = np.zeros((len(ref) + 1, len(hyp) + 1), dtype=np.int32)
    for i, word in enumerate(ref):
        paired = saved[i, :-1] + np.where(hyp_ids == ids[word], SAVED_BY_EQUAL, SAVED_BY_OTHER)
        np.maximum.accumulate(np.maximum(saved[i, 1:], paired), out=saved[i + 1, 1:])
    return saved


def align_all(
    ref: Mapping[str, Sequence[str]], hyp: Mapping[str, Sequence[str]]
) -> Dict[str, List[Pair]]:
    """{utterance id: alignment}, in the order of the references."""
    check_same_utterances(ref, hyp)
    return {utt: align(words, hyp[utt]) for utt, words in ref.items()}

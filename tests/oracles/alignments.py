"""Word errors by the textbook's table and by trying everything; MAPSSWE's segments by a regex."""

import re
from functools import cache

import numpy as np
from scipy.stats import norm

# errors, with at most one word between two of them that both systems have right
SEGMENT = re.compile("x(?:c?x)*")


def edit_distance(ref, hyp):
    """Return the fewest substitutions, deletions and insertions (Levenshtein 1966)."""
    table = [[0] * (len(hyp) + 1) for _ in range(len(ref) + 1)]
    for i in range(len(ref) + 1):
        for j in range(len(hyp) + 1):
            if i == 0 or j == 0:
                table[i][j] = i + j
            else:
                table[i][j] = min(
                    table[i - 1][j - 1] + (ref[i - 1] != hyp[j - 1]),
                    table[i - 1][j] + 1,
                    table[i][j - 1] + 1,
                )
    return table[-1][-1]


def best_splits(ref, hyp):
    """Return every (substitutions, deletions, insertions) that the fewest errors can be."""

    @cache
    def alignments(i, j):
        """Return all (S, D, I) with which ref[i:] can become hyp[j:]."""
        found = set()
        if i == len(ref) and j == len(hyp):
            found.add((0, 0, 0))
        if i < len(ref) and j < len(hyp):
            wrong = int(ref[i] != hyp[j])
            found |= {(s + wrong, d, n) for s, d, n in alignments(i + 1, j + 1)}
        if i < len(ref):
            found |= {(s, d + 1, n) for s, d, n in alignments(i + 1, j)}
        if j < len(hyp):
            found |= {(s, d, n + 1) for s, d, n in alignments(i, j + 1)}
        return found

    every = alignments(0, 0)
    fewest = min(map(sum, every))
    return {split for split in every if sum(split) == fewest}


def segments(alignment_a, alignment_b):
    """Return [(errors of A, errors of B)] of the segments of one utterance.

    The places of an utterance are: before the first word, the first word, before the second word
    and so on. Places without an error that are no words are left out.
    """
    errors = list(zip(errors_at(alignment_a), errors_at(alignment_b), strict=True))
    is_word = [n % 2 == 1 for n in range(len(errors))]
    places = [e for e, word in zip(errors, is_word, strict=True) if word or any(e)]
    text = "".join("x" if any(e) else "c" for e in places)
    spans = [match.span() for match in SEGMENT.finditer(text)]
    return [tuple(np.sum(places[start:end], axis=0)) for start, end in spans]


def errors_at(alignment):
    errors = [0]
    for ref, hyp in alignment:
        if ref is None:
            errors[-1] += 1
        else:
            errors += [int(ref != hyp), 0]
    return errors


def statistics(pairs):
    """Return (segments, mean, std, z, p) of [(errors of A, errors of B)]."""
    d = np.array([a - b for a, b in pairs], dtype=float)
    if len(set(d)) < 2:
        return len(d), d[0] if len(d) else 0.0, 0.0, 0.0, 1.0
    z = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
    return len(d), d.mean(), d.std(ddof=1), z, 2 * norm.sf(abs(z))

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


def sclite_alignment(ref, hyp):
    """Return the cheapest of all alignments, of equal ones as sclite chooses from the end."""

    def alignments(i, j):
        """Yield (cost, steps from the end, pairs) of the first i and j words."""
        if not i and not j:
            yield 0, (), ()
        steps = [(1, 1, 4 * (i > 0 < j and ref[i - 1] != hyp[j - 1])), (0, 1, 3), (1, 0, 3)]
        for order, (di, dj, cost) in enumerate(steps):
            if di <= i and dj <= j:
                pair = (ref[i - 1] if di else None, hyp[j - 1] if dj else None)
                for before, later, pairs in alignments(i - di, j - dj):
                    yield before + cost, (order, *later), (*pairs, pair)

    return list(min(alignments(len(ref), len(hyp)))[2])


def segments(alignment_a, alignment_b, counts=lambda word: True):
    """Return [(errors of A, errors of B)] of the segments of one utterance, of words that count.

    The places of an utterance are: before the first word, the first word, before the second word
    and so on. Places without an error that are no words are left out.
    """
    both = alignment_a, alignment_b
    columns = [*map(errors_at, both), *(errors_at(item, counts) for item in both)]
    errors = list(zip(*columns, strict=True))
    is_word = [n % 2 == 1 for n in range(len(errors))]
    places = [e for e, word in zip(errors, is_word, strict=True) if word or any(e)]
    text = "".join("x" if any(e) else "c" for e in places)
    spans = [match.span() for match in SEGMENT.finditer(text)]
    found = [tuple(np.sum(places[start:end], axis=0)[2:]) for start, end in spans]
    return [pair for pair in found if any(pair)]


def errors_at(alignment, counts=lambda word: True):
    errors = [0]
    for ref, hyp in alignment:
        if ref is None:
            errors[-1] += counts(hyp)
        else:
            errors += [ref != hyp and counts(ref), 0]
    return errors


def statistics(pairs):
    """Return (segments, mean, std, z, p) of [(errors of A, errors of B)]."""
    d = np.array([a - b for a, b in pairs], dtype=float)
    if len(set(d)) < 2:
        return len(d), d[0] if len(d) else 0.0, 0.0, 0.0, 1.0
    z = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
    return len(d), d.mean(), d.std(ddof=1), z, 2 * norm.sf(abs(z))

"""Word errors by the textbook's table, and by trying everything."""

from functools import cache


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

"""MAPSSWE's segments by a regular expression over what two systems did to each reference word."""

import re

import numpy as np
from scipy.stats import norm

# errors, with at most one word between two of them that both systems have right
SEGMENT = re.compile("x(?:c?x)*")


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
    """Return the errors at each place."""
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

"""Read ARPA files, and compare two entry by entry."""

import gzip


def read_arpa(path):
    """{n-gram: (log10 p, log10 back-off or None)}, read by its own few lines of code."""
    opener = gzip.open if str(path).endswith(".gz") else open
    entries = {}
    with opener(path, "rt", encoding="utf-8", newline="\n") as f:
        for line in f:
            fields = line.rstrip("\n").split("\t")
            if len(fields) > 1:
                backoff = float(fields[2]) if len(fields) == 3 else None
                # the first of two entries counts
                entries.setdefault(tuple(fields[1].split(" ")), (float(fields[0]), backoff))
    return entries


def largest_difference(ours, reference):
    """Largest |difference| of any log10 p or back-off; the n-grams must be the same."""
    assert ours.keys() == reference.keys()
    difference = 0.0
    for ngram, values in reference.items():
        for our_value, value in zip(ours[ngram], values, strict=True):
            assert (our_value is None) == (value is None), ngram
            difference = max(difference, abs((our_value or 0.0) - (value or 0.0)))
    return difference

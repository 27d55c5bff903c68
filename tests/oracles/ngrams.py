"""Interpolated modified Kneser-Ney by its definition, one n-gram at a time; reading ARPA files."""

import gzip
from collections import Counter


def raw_counts(sentences, order):
    """Count every n-gram of `<s> words </s>` up to `order` that does not end in `<s>`."""
    counts = Counter()
    for sentence in sentences:
        words = ("<s>", *sentence, "</s>")
        for end in range(2, len(words) + 1):
            for start in range(max(0, end - order), end):
                counts[words[start:end]] += 1
    return counts


def adjusted_count(counts, order, ngram):
    """a(ngram): Sec. 3.2, Heafield et al. 2013."""
    if len(ngram) == order or ngram[0] == "<s>":
        return counts[ngram]
    return len({longer[0] for longer in counts if longer[1:] == ngram})


def discounts(counts_of_one_order):
    """D(1), D(2), D(3+): Eq. (26), Chen and Goodman 1998."""
    n = Counter(counts_of_one_order)
    y = n[1] / (n[1] + 2 * n[2])
    return [0.0, *(j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3))]


def probability(counts, order, context, word, *, discounts, vocabulary):
    """p(word | context), interpolated down to the uniform distribution over `vocabulary`."""
    followers = {
        ngram[-1]: adjusted_count(counts, order, ngram)
        for ngram in counts
        if len(ngram) == len(context) + 1 and ngram[:-1] == context
    }
    lower = (
        probability(counts, order, context[1:], word, discounts=discounts, vocabulary=vocabulary)
        if context
        else 1 / len(vocabulary)
    )
    if not followers:
        return lower
    discount = discounts[len(context)]
    total = sum(followers.values())
    gamma = sum(discount[min(count, 3)] for count in followers.values()) / total
    count = followers.get(word, 0)
    return (count - discount[min(count, 3)]) / total + gamma * lower


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

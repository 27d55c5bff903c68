"""Lists are read and written one at a time: memory does not grow with their number."""

import random
import tracemalloc

import pytest

from espnet_bayeslm.nbest.formats import WRITERS, read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest

WORDS = ["well", "i'm", "gonna", "have", "mine", "the", "a", "<unk>"]


def many(num_utts, num_hyps):
    """Yield made-up lists, one at a time."""
    rng = random.Random(0)
    for number in range(num_utts):
        hyps = []
        for _ in range(num_hyps):
            words = tuple(rng.choices(WORDS, k=8))
            am, lm, graph = (-rng.randrange(10**6) / 1000 for _ in range(3))
            hyps.append(Hypothesis(words, am, lm, graph))
        yield NBest(f"utt-{number:06d}", tuple(hyps))


def peak_of(function):
    """Return how far a call raises the memory in use, in bytes."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    result = function()
    peak = tracemalloc.get_traced_memory()[1] - before
    del result
    return peak


@pytest.mark.parametrize("format", WRITERS)
def test_memory_does_not_grow_with_the_lists(format, tmp_path):
    folder = tmp_path / "lists"
    tracemalloc.start()
    try:
        written = peak_of(lambda: write_nbest(many(150, 20), folder, format=format))
        whole = peak_of(lambda: list(read_nbest(folder, format)))
        streamed = peak_of(lambda: sum(1 for _ in read_nbest(folder, format)))
    finally:
        tracemalloc.stop()
    assert streamed < whole / 4, (streamed, whole)  # the ids, and a buffer for each file
    assert written < whole / 4, (written, whole)

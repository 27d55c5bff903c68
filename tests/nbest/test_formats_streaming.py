"""Lists are read and written one at a time: memory for a million hypotheses is flat."""

import os
import random
import subprocess
import sys
import time
import tracemalloc

import pytest

from espnet_bayeslm.nbest.formats import READERS, read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest

WORDS = ["well", "i'm", "gonna", "have", "mine", "the", "a", "<unk>"]


def many(num_utts, num_hyps, *, format):
    """Yield made-up lists, one at a time."""
    rng = random.Random(0)
    for number in range(num_utts):
        hyps = []
        for _ in range(num_hyps):
            words = tuple(rng.choices(WORDS, k=8))
            am, lm, graph = (-rng.randrange(10**6) / 1000 for _ in range(3))
            has_lm = format in ("kaldi", "srilm", "jsonl")
            has_graph = format in ("kaldi", "jsonl")
            hyps.append(Hypothesis(words, am, lm if has_lm else None, graph if has_graph else None))
        yield NBest(f"utt-{number:06d}", tuple(hyps))


def peak_of(function):
    """Return how far a call raises the memory in use, in bytes."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    result = function()
    peak = tracemalloc.get_traced_memory()[1] - before
    del result
    return peak


@pytest.mark.parametrize("format", READERS)
def test_memory_does_not_grow_with_the_lists(format, tmp_path):
    folder = tmp_path / "lists"
    tracemalloc.start()
    try:
        written = peak_of(lambda: write_nbest(many(300, 20, format=format), folder, format=format))
        whole = peak_of(lambda: list(read_nbest(folder, format)))
        streamed = peak_of(lambda: sum(1 for _ in read_nbest(folder, format)))
    finally:
        tracemalloc.stop()
    assert streamed < whole / 4, (streamed, whole)  # the ids, and a buffer for each file
    # ESPnet's files, two for each rank, are filled thousands of utterances at a time
    assert format == "espnet" or written < whole / 4, (written, whole)


READ = """
import os, sys
from espnet_bayeslm.nbest.formats import read_nbest
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
before, peak, count = resident(), 0.0, 0
for number, nbest in enumerate(read_nbest(sys.argv[1], sys.argv[2])):
    count += len(nbest.hypotheses)
    if number % 500 == 0:
        peak = max(peak, resident())
print(count, peak - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
@pytest.mark.parametrize("format", READERS)
def test_a_million_hypotheses(format, tmp_path):
    start = time.perf_counter()
    write_nbest(many(50_000, 20, format=format), tmp_path / "lists", format=format)
    written = time.perf_counter()
    command = [sys.executable, "-c", READ, str(tmp_path / "lists"), format]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    count, megabytes = done.stdout.split()
    print(
        f"{format}: written in {written - start:.0f} s, read in"
        f" {time.perf_counter() - written:.0f} s, memory grew by {float(megabytes):.0f} MiB"
    )
    assert int(count) == 1_000_000
    assert float(megabytes) < 60  # 50,000 ids; the lists themselves take more than 800

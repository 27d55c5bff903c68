"""`bayeslm rescore` on a list of a million hypotheses: its memory does not grow with them."""

import random
import subprocess
import sys

import pytest

from espnet_bayeslm.nbest import Hypothesis, NBest, write_nbest

WORDS = "abcdefghij"
SCRIPT = """
import re, sys
from espnet_bayeslm.bin.rescore import main
main(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print("peak", int(peak) / 1024)
"""


def lists(num_hypotheses):
    """Yield lists of 20 hypotheses each."""
    rng = random.Random(0)
    for utt in range(num_hypotheses // 20):
        words = rng.choices(WORDS, k=rng.randint(3, 20))
        hyps = []
        for rank in range(1, 21):
            words[rng.randrange(len(words))] = rng.choice(WORDS)
            hyps.append(Hypothesis(tuple(words), -100 - 1.5 * rank, -10.0 - rank, 0.0))
        yield NBest(f"u{utt:06d}", tuple(hyps))


def peak_mib(folder, ngram, output):
    command = ["--nbest", folder, "--ngram", ngram, "--output", output, "--lmwt", "10"]
    words = [sys.executable, "-c", SCRIPT, *map(str, command)]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(result.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("num_hypotheses", [200_000, 1_000_000])
def test_memory_is_flat(ngram, tmp_path, num_hypotheses):
    peaks = []
    for count in (20_000, num_hypotheses):
        write_nbest(lists(count), tmp_path / f"lists{count}", format="kaldi")
        peaks.append(peak_mib(tmp_path / f"lists{count}", ngram, tmp_path / f"out{count}"))
    text = (tmp_path / f"out{num_hypotheses}" / "text").read_text()
    assert text.count("\n") == num_hypotheses // 20
    assert peaks[1] - peaks[0] < 40, peaks

"""`bayeslm rescore` on a list of a million hypotheses: its memory does not grow with them."""

import random
import subprocess
import sys

import pytest

WORDS = "abcdefghij"
SCRIPT = """
import re, sys
from espnet_bayeslm.bin.rescore import main
main(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print("peak", int(peak) / 1024)
"""


def write_lists(folder, num_hypotheses):
    """Write Kaldi lists of 20 hypotheses each."""
    rng = random.Random(0)
    folder.mkdir()
    names = ("words_text", "acwt", "lmwt.nolm", "lmwt.withlm")
    files = {name: open(folder / name, "w") for name in names}  # noqa: SIM115
    for utt in range(num_hypotheses // 20):
        words = rng.choices(WORDS, k=rng.randint(3, 20))
        for rank in range(1, 21):
            words[rng.randrange(len(words))] = rng.choice(WORDS)
            key = f"u{utt:06d}-{rank}"
            files["words_text"].write(f"{key} {' '.join(words)}\n")
            files["acwt"].write(f"{key} {100 + 1.5 * rank}\n")
            files["lmwt.nolm"].write(f"{key} 0\n")
            files["lmwt.withlm"].write(f"{key} {10 + rank}\n")
    for file in files.values():
        file.close()


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
        write_lists(tmp_path / f"lists{count}", count)
        peaks.append(peak_mib(tmp_path / f"lists{count}", ngram, tmp_path / f"out{count}"))
    text = (tmp_path / f"out{num_hypotheses}" / "text").read_text()
    assert text.count("\n") == num_hypotheses // 20
    assert peaks[1] - peaks[0] < 40, peaks

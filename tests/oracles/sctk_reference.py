"""What NIST's sclite and sc_stats say of random sets: `sctk_reference.py FILE.json`.

Writes tests/evaluation/data/sctk_mapsswe.json; needs Debian's `sctk` (2.4.10).
"""

import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

NUM_UTTS = 500
# kind -> (P(deletion), P(substitution), P(insertion) of each word, number of distinct words,
#          P(system B repeats what A did to an utterance))
KINDS = {
    "all errors": (0.06, 0.08, 0.06, 40, 0.0),
    "substitutions": (0.0, 0.15, 0.0, 40, 0.0),
    "insertions": (0.01, 0.02, 0.2, 40, 0.0),
    "deletions": (0.2, 0.02, 0.01, 40, 0.0),
    "few words, many ties": (0.15, 0.15, 0.15, 3, 0.0),
    "nearly the same system": (0.05, 0.08, 0.05, 40, 0.8),
    "few errors": (0.005, 0.01, 0.005, 40, 0.0),
}
# system B makes this many times A's errors, by seed
RATIOS = (1.0, 0.75)


def random_set(kind, seed):
    """Return (references, A, B), each {utterance id: words}; empty ones are among all of them."""
    deletion, substitution, insertion, num_words, repeat = KINDS[kind]
    rng = random.Random(seed)
    vocabulary = [f"w{n}" for n in range(num_words)]

    def spoil(words, ratio):
        out = []
        for word in words:
            if rng.random() >= ratio * deletion:
                out.append(rng.choice(vocabulary) if rng.random() < ratio * substitution else word)
            if rng.random() < ratio * insertion:
                out.append(rng.choice(vocabulary))
        return [] if rng.random() < 0.01 else out

    refs, hyps_a, hyps_b = {}, {}, {}
    for n in range(NUM_UTTS):
        utt = f"s{n % 7}-u{n:04d}"
        refs[utt] = [rng.choice(vocabulary) for _ in range(rng.randint(0, 14))]
        hyps_a[utt] = spoil(refs[utt] or vocabulary[: rng.randint(0, 2)], 1.0)
        hyps_b[utt] = spoil(refs[utt] or vocabulary[: rng.randint(0, 2)], RATIOS[seed % 2])
        if rng.random() < repeat:
            hyps_b[utt] = hyps_a[utt]
    return refs, hyps_a, hyps_b


def run_sctk(refs, hyps_a, hyps_b):
    """Return sclite's alignments of both systems, and sc_stats's numbers.

    Alignments are {utterance id: one letter C, S, D or I for each pair}.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, texts in (("ref", refs), ("A", hyps_a), ("B", hyps_b)):
            lines = (" ".join([*words, f"({utt})"]) for utt, words in texts.items())
            (folder / f"{file}.trn").write_text("\n".join(lines) + "\n")
        for file in "AB":
            options = f"-F -i spu_id -r ref.trn -h {file}.trn -o sgml"
            run(["sctk", "sclite", *options.split()], folder)
        sgml = {file: (folder / f"{file}.trn.sgml").read_text() for file in "AB"}
        options = "-p -t mapsswe -v -n out"
        run(["sctk", "sc_stats", *options.split()], folder, sgml["A"] + sgml["B"])
        report = (folder / "out.stats.mapsswe").read_text()
    return read_sgml(sgml["A"]), read_sgml(sgml["B"]), read_report(report)


def run(command, folder, text=""):
    subprocess.run(
        command, cwd=folder, input=text, check=True, text=True, stdout=subprocess.DEVNULL
    )


def read_sgml(text):
    """Return {utterance id: letters of the alignment} of sclite's sgml."""
    paths = re.findall(r'<PATH id="\((.*?)\)"[^>]*>\n(.*?)\n?</PATH>', text, re.DOTALL)
    # no word holds `:`, which stands between pairs
    return {utt: "".join(pair[:1] for pair in pairs.strip().split(":")) for utt, pairs in paths}


def read_report(text):
    """Return the numbers of sc_stats's report, to the digits that it prints."""
    total = re.search(r"^Totals +\d+ +(\d+) +(\d+)", text, re.MULTILINE)
    number = r"\({}: +(-?[\d.]+)\)"
    names = {"segments": "# segs", "mean": "mean", "std": "std dev", "z": "Z Stat"}
    found = {name: float(re.search(number.format(label), text)[1]) for name, label in names.items()}
    found["segments"] = int(found["segments"])
    found["errors"] = [int(total[1]), int(total[2])]
    found["significant"] = re.search(r"\(Stat Diff: (\w+)\)", text)[1] == "Yes"
    return found


def pairs(letters, ref, hyp):
    """Return the alignment [(reference word or None, hypothesis word or None)] of letters."""
    refs, hyps = iter(ref), iter(hyp)
    found = [(None if x == "I" else next(refs), None if x == "D" else next(hyps)) for x in letters]
    assert next(refs, None) is None and next(hyps, None) is None
    assert all((x == "C") == (a == b) for x, (a, b) in zip(letters, found, strict=True))
    return found


def main(path):
    """Write the numbers and the alignments, the utterances in the order of the set."""
    sets = []
    for seed, kind in enumerate(KINDS, 1):
        refs, hyps_a, hyps_b = random_set(kind, seed)
        aligned_a, aligned_b, numbers = run_sctk(refs, hyps_a, hyps_b)
        aligned = {
            name: "/".join(letters[utt] for utt in refs)
            for name, letters in (("a", aligned_a), ("b", aligned_b))
        }
        sets.append({"kind": kind, "seed": seed, **numbers, **aligned})
    lines = ",\n".join(json.dumps(one) for one in sets)
    Path(path).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])

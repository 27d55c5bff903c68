"""NIST's markup against sclite's numbers, by hand and where sctk is installed."""

import os
import pickle
import random
import re
import shutil
import subprocess
from collections import Counter

import pytest

from espnet_bayeslm.evaluation.comparison import SegmentErrors, utterance_segments
from espnet_bayeslm.evaluation.markup import MarkedWords, mapped, parse_markup
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.transcripts import read_transcripts
from espnet_bayeslm.evaluation.wer import (
    align,
    closest_reading,
    count_errors,
    oracle_errors,
    word_errors,
)
from espnet_bayeslm.utils.errors import InputError

# reference, hypothesis, sclite's C, S, D, I (`sclite -F -D -s -i spu_id`, 2.4.10)
CASES = [
    ("we { saw / seen } the old mill", "we seen the old mill", (5, 0, 0, 0)),
    ("it was { ten / @ } miles away", "it was miles away", (4, 0, 0, 0)),
    ("a { b / { c / d } e } f", "a d e f", (4, 0, 0, 0)),
    ("a {b/c} d", "a c d", (3, 0, 0, 0)),
    ("a { b c / d } e", "a x e", (2, 1, 0, 0)),
    ("a { b / c } d { e f / g }", "a { b / c } d f", (4, 0, 1, 0)),
    ("a @ b", "a b", (2, 0, 0, 0)),
    ("{ @ / a }", "", (0, 0, 0, 0)),
    ("a / b", "a b", (2, 0, 1, 0)),
    ("a (uh) b", "a b", (3, 0, 0, 0)),
    ("a (uh) b", "a uh b", (3, 0, 0, 0)),
    ("a (uh) b (um)", "a uh b x", (3, 1, 0, 0)),
    ("{ (uh) / @ } b", "b", (1, 0, 0, 0)),
    ("a ( uh ) b", "a b", (2, 0, 3, 0)),
    ("a co- d", "a cow d", (3, 0, 0, 0)),
    ("a cow d", "a -ow d", (3, 0, 0, 0)),
    ("a co-op d", "a co d", (2, 1, 0, 0)),
    ("b c", "a {e- / @} c", (1, 1, 0, 0)),
    ("a b", "a (uh) b", (3, 0, 0, 0)),
    ("z a;noun b\\;c", "a;verb b;c", (1, 1, 1, 0)),
]
SCLITE = pytest.mark.skipif(not shutil.which("sctk"), reason="Debian's sctk is not installed")


def counts(ref, hyp):
    """Return C, S, D and I of two trn lines without their ids."""
    found = word_errors(parse_markup(ref), parse_markup(hyp))
    correct = found.words - found.substitutions - found.deletions
    return correct, found.substitutions, found.deletions, found.insertions


def sclite(folder, refs, hyps):
    """Return sclite's counts of trn lines."""
    for name, texts in (("ref", refs), ("hyp", hyps)):
        lines = (f"{text} (s-{n})\n" for n, text in enumerate(texts))
        (folder / name).write_text("".join(lines))
    options = "-F -D -s -i spu_id -r ref -h hyp -o pralign"
    command = ["sctk", "sclite", *options.split()]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    text = (folder / "hyp.pra").read_text()
    rows = re.findall(r"^id: \(s-(\d+)\)\n(?:.*\n)*?Scores: \(#C #S #D #I\) (.*)", text, re.M)
    found = {int(n): tuple(map(int, row.split())) for n, row in rows}
    return [found[n] for n in range(len(refs))]


@pytest.mark.parametrize("ref, hyp, expected", CASES)
def test_markup_counts_as_by_sclite(ref, hyp, expected):
    assert counts(ref, hyp) == expected


@SCLITE
def test_cases_against_sclite_itself(tmp_path):
    refs, hyps, expected = zip(*CASES, strict=True)
    assert sclite(tmp_path, refs, hyps) == list(expected)


def random_line(rng, *, depth=0, markup=True):
    """Return a random trn line; `markup`: with deletable words and many alternations."""
    found = []
    for _ in range(rng.randint(1 if depth else 0, 2 if depth else 5)):
        kind = rng.random()
        if kind < (0.25 if markup else 0.08) and depth < 2:
            parts = [random_line(rng, depth=depth + 1, markup=markup) for _ in range(2)]
            found.append("{ " + " / ".join(parts) + " }")
        else:
            word = rng.choice("abcde") + rng.choice(["", "x", "xy"])
            found.append(f"({word})" if markup and kind < 0.32 else word)
    return "@" if depth and rng.random() < 0.2 else " ".join(found)


@SCLITE
def test_random_markup_costs_what_it_costs_sclite(tmp_path):
    rng = random.Random(1)
    refs = [random_line(rng) for _ in range(400)]
    hyps = [random_line(rng, markup=False) for _ in range(400)]
    ours, theirs = list(map(counts, refs, hyps)), sclite(tmp_path, refs, hyps)
    # of alignments with one cost sclite may take another one
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) < 0.03 * len(refs)


@pytest.mark.parametrize("text", ["a { b / c", "a b }", "{ a { b } / c", "a } b {"])
def test_braces_have_partners(tmp_path, text):
    (tmp_path / "ref.trn").write_text(f"ok (a-1)\n{text} (a-2)\n")
    with pytest.raises(InputError, match=r"ref.trn:2: `[{}]` without `[{}]` in .*brace"):
        read_transcripts(tmp_path / "ref.trn")


def test_marked_words_as_values():
    assert not isinstance(parse_markup("a b-c and/or (d e) @ f"), MarkedWords)
    assert parse_markup("a b-c and/or @ f") == ("a", "b-c", "and/or", "f")
    one, other = parse_markup("a { b / c } (d)"), parse_markup("a { b / e } (d)")
    assert one == ("a", "b", "(d)") and one != other and one == parse_markup("a {b/c} (d)")
    again = pickle.loads(pickle.dumps(one))
    assert again == one and isinstance(again, MarkedWords)
    assert dict.fromkeys([one, again, other], 0).keys() == {one, other}
    marked = parse_markup("Ah { Don't / (Do) not } B")
    lower = Normalization("lower,contractions").words(marked)
    assert lower == parse_markup("ah { do not / (do) not } b")
    assert mapped(marked, lambda words: [c for w in words for c in w])[:4] == ("A", "h", "D", "o")
    assert mapped(marked, lambda words: ()) == mapped(marked, lambda words: [])
    assert Normalization().words(marked) == marked


def test_closest_readings_and_their_counts():
    marked = parse_markup("a { b c / d } e")
    assert closest_reading(marked, ("a", "d")) == ("a", "d", "e")
    assert closest_reading(("a",), ("b",)) == ("a",)
    refs = {"u": parse_markup("a { b c / @ } d"), "v": ("x",)}
    assert count_errors(refs, {"u": ("a", "d"), "v": ("x",)}).errors == 0
    lists = {"u": [("a",), ("a", "b", "c", "d")], "v": [("y",), ("x",)]}
    best = oracle_errors(refs, lists)
    assert (best.errors, best.words) == (0, 5)
    ref = parse_markup("a { b c / d } e f g")
    one, other = (align(ref, tuple(text.split())) for text in ("a b c e f x", "a d x f g"))
    # the error at e is parted from that at g by one word that both have right
    assert utterance_segments(one, other) == [SegmentErrors(1, 1)]
    far = parse_markup("x { b c / d } y z w")
    texts = (["q", "b", "c", "y", "z", "w"], ["x", "d", "y", "z", "q"])
    assert utterance_segments(*(align(far, text) for text in texts)) == [
        SegmentErrors(1, 0),
        SegmentErrors(0, 1),
    ]


# content, words by utterance
FILES = {
    "a trn by its content": (
        "a b (s-1)\n;; note (x)\nc (s-2)\n",
        {"s-1": ("a", "b"), "s-2": ("c",)},
    ),
    "a text whose lines end in remarks": (
        "u1 a (laughs)\nu2 b (uh-huh)\n",
        {"u1": ("a", "(laughs)")},
    ),
    "a text with braces": ("u1 { a / b }\n", {"u1": ("{", "a", "/", "b", "}")}),
    "a text with a comment": (";; note\nu1 a\n", {"u1": ("a",)}),
    "a text of digits": ("u1 1 2 3 4\nu2 1 5 6 7\n", {"u1": tuple("1234")}),
}


@pytest.mark.parametrize("content, expected", FILES.values(), ids=FILES)
def test_formats_are_told_by_their_content(tmp_path, content, expected):
    (tmp_path / "ref").write_text(content)
    found = read_transcripts(tmp_path / "ref")
    assert expected.items() <= found.items()
    assert Counter(map(type, found.values())) == {tuple: len(found)}


@pytest.mark.parametrize("content", ["u1 a b\nu2 c\n", "a b (u1)\nc (u2)\n"], ids=["text", "trn"])
def test_a_pipe_is_read_once(content):
    reading, writing = os.pipe()
    os.write(writing, content.encode())
    os.close(writing)
    with open(reading):
        assert read_transcripts(f"/dev/fd/{reading}") == {"u1": ("a", "b"), "u2": ("c",)}


@pytest.mark.parametrize(
    "content, name",
    [
        (";; a comment\nrec A spk 0.0 1.20 <o,f0> a b\nrec A spk 1.2 2.0 c\n", "stm"),
        ("rec 1 0.00 0.31 a\nrec 1 0.31 0.25 b 0.9\n", "ctm"),
    ],
)
def test_timed_formats_are_refused(tmp_path, content, name):
    (tmp_path / "ref").write_text(content)
    with pytest.raises(InputError, match=rf"ref:\d: a NIST {name} .* was expected. Write one line"):
        read_transcripts(tmp_path / "ref")

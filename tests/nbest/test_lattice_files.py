"""Lattices of HTK and Kaldi: what is read, what is written, and what is refused."""

import dataclasses
import gzip
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles.lattice_paths import all_paths, random_lattice, write_htk, write_kaldi_lattices
from oracles.refused import check_refused

from espnet_bayeslm.nbest.formats import LATTICE_READERS
from espnet_bayeslm.nbest.htk import read_htk, read_lattice
from espnet_bayeslm.nbest.kaldi_lattice import read_kaldi_lattices
from espnet_bayeslm.nbest.lattice import (
    Arc,
    Lattice,
    PathScales,
    acoustic_score,
    best_paths,
    kaldi_scales,
)
from espnet_bayeslm.utils.errors import InputError

# as PocketSphinx writes it: a diamond with two pronunciations (times) of `b`, a silence that can be
# left out, and a dead end
HTK = """# by hand
VERSION=1.0
start=7
end=0
N=8\tL=11
I=0\tt=1.00\tW=!SENT_END\tv=1
I=1\tt=0.80\tW=c\tv=1
I=2\tt=0.70\tW=!NULL\tv=1
I=3\tt=0.40\tW=b\tv=1
I=4\tt=0.45\tW=b\tv=2
I=5\tt=0.10\tW=a\tv=1
I=6\tt=0.90\tW=d\tv=1
I=7\tt=0.00\tW=!SENT_START\tv=1
J=0\tS=7\tE=5\ta=-1.5\tp=1
J=1\tS=5\tE=3\ta=-10\tp=1
J=2\tS=5\tE=4\ta=-11\tp=1
J=3\tS=3\tE=1\ta=-7\tp=1
J=4\tS=3\tE=2\ta=-3\tp=1
J=5\tS=4\tE=1\ta=-5.5\tp=1
J=6\tS=4\tE=2\ta=-4\tp=1
J=7\tS=2\tE=1\ta=-0.25\tp=1
J=8\tS=1\tE=0\ta=-2\tp=1
J=9\tS=1\tE=6\ta=-1\tp=1
J=10\tS=5\tE=1\ta=-20\tp=1
"""

# as HTK and SRILM write it: words on the links, quotes and escapes, scales, long names
ON_LINKS = r"""VERSION=1.0
UTTERANCE="a file"
lmname=bigram lmscale=12 wdpenalty=-2 acscale=0.5
base=10
NODES=4 LINKS=4
I=0 t=0
I=1 t=0.5 v=2
I=2
I=3 t=1.25
J=0 START=0 END=1 WORD="\"em" acoustic=-3 language=-1 d=":sil,0.1:"
J=1 S=1 E=2 W=it\'s v=1 a=-2 l=-0.5
J=2 S=1 E=2 W=\303\251t\303\251 a=-2.5 l=-0.25
J=3 S=2 E=3 W=!NULL a=-1 l=-.125
"""


def read_text(folder, text, name="u.lat"):
    (folder / name).write_text(text)
    return read_lattice(folder / name)


def test_words_on_nodes_by_hand(tmp_path):
    """SRILM writes those that are defined."""
    lattice = read_text(tmp_path, HTK)
    assert (lattice.utt, lattice.num_nodes, len(lattice.arcs)) == ("u", 8, 11)
    assert lattice.scores == ("am_score",) and lattice.scales == PathScales()
    hypotheses = [("a", "b", "c"), ("a", "c"), ("a", "b"), (), ("a", "b", "c", "d")]
    # a b c: 1.5 + 10 + (3 + 0.25) + 2, by the silence
    expected = [-16.75, -23.5, -math.inf, -math.inf, -math.inf]
    assert [acoustic_score(lattice, words) for words in hypotheses] == pytest.approx(expected)
    found = {path.words: path.am_score for path in best_paths(lattice, PathScales(), 10)}
    assert found == pytest.approx(dict(zip(hypotheses[:2], expected, strict=False)))
    assert found == {words: path.am_score for words, path in all_paths(lattice).items()}
    assert lattice.times[0] == 0.0 and lattice.times[lattice.end] == 1.0
    assert dict(lattice.arcs[0].details) == {"p": "1", "v": "1"}
    lattice = read_text(tmp_path, HTK.replace("E=2\ta=-3\t", "E=2\t"))
    assert lattice.scores == ("am_score",)
    assert acoustic_score(lattice, ("a", "b", "c")) == pytest.approx(-16.75 + 3)


def test_words_on_links_by_hand(tmp_path):
    lattice = read_text(tmp_path, ON_LINKS)
    ln10 = math.log(10)
    assert [arc.label for arc in lattice.arcs] == ['"em', "it's", "été", "!NULL"]
    assert [arc.am_score for arc in lattice.arcs] == [n * ln10 for n in (-3, -2, -2.5, -1)]
    assert [arc.lm_score for arc in lattice.arcs] == [n * ln10 for n in (-1, -0.5, -0.25, -0.125)]
    assert lattice.scales == PathScales(am=0.5, lm=12, word=-2 * ln10)
    assert lattice.times == (0.0, 0.5, None, 1.25)
    assert lattice.header == (("UTTERANCE", "a file"), ("lmname", "bigram"))
    best = best_paths(lattice, lattice.scales, 2)
    assert [path.words for path in best] == [('"em', "été"), ('"em', "it's")]
    assert best[0].total == pytest.approx(ln10 * (0.5 * -6.5 + 12 * -1.375 - 4))
    text = "base=0\nI=0 W=a\nI=1 W=b\nJ=0 S=0 E=1 a=0.5 r=0.25\n"
    lattice = read_text(tmp_path, text)
    (path,) = best_paths(lattice, PathScales(), 5)
    assert path.words == ("a", "b")
    assert (path.am_score, path.graph_score) == (math.log(0.5), math.log(0.25))
    assert lattice.scores == ("am_score", "graph_score")


PLAIN = st.characters(blacklist_categories=("Z", "C"))
LABELS = st.text(PLAIN, min_size=1, max_size=5).filter(lambda word: word.split() == [word])


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    words=st.lists(LABELS, min_size=1, max_size=4),
    value=st.text(st.characters(blacklist_categories=("C", "Zl", "Zp")), max_size=6),
    scales=st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4),
)
def test_what_was_written_is_read_again(tmp_path_factory, seed, words, value, scales):
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("htk")
    lattices = []
    for utt in ("u1", "u2", "u10"):
        lattice = random_lattice(rng, words=words, utt=utt)
        arcs = tuple(
            arc._replace(label=arc.label or "!NULL", details=(("v", "1"), ("d", value)))
            for arc in lattice.arcs
        )
        times = tuple(float(n) / 7 if n % 3 else None for n in range(lattice.num_nodes))
        fields = dict(scales=PathScales(*scales), times=times, header=(("UTTERANCE", value),))
        lattices.append(dataclasses.replace(lattice, arcs=arcs, **fields))
    write_htk(lattices, folder)
    assert list(read_htk(folder)) == lattices


def test_round_trip_of_the_recogniser_and_of_other_writers(tmp_path):
    """`data/peace.lat.gz` is of PocketSphinx: "we will work together for peace"."""
    (sphinx,) = read_htk(Path(__file__).parent / "data")
    assert len(sphinx.arcs) > 100
    others = {"a.lat": HTK, "b.slf": ON_LINKS}
    for lattice in (sphinx, *(read_text(tmp_path, text, name) for name, text in others.items())):
        write_htk([lattice], tmp_path / lattice.utt)
        (again,) = read_htk(tmp_path / lattice.utt)
        assert again == lattice
        assert best_paths(again, again.scales, 20) == best_paths(lattice, lattice.scales, 20)


def test_too_many_arcs_are_refused(tmp_path):
    (tmp_path / "u.lat").write_text(HTK.replace("\tL=11", ""))
    with pytest.raises(InputError, match=r"u.lat:23: .* too many arcs, at most 9 .*--max_arcs"):
        read_lattice(tmp_path / "u.lat", max_arcs=9)
    assert len(read_lattice(tmp_path / "u.lat", max_arcs=11).arcs) == 11
    arcs = "".join(f"{n} {n + 1} word 1,1,\n" for n in range(5000))
    with pytest.raises(InputError, match=r"x.lats:1002: .* too many .*--max_arcs"):
        read_kaldi_text(tmp_path, f"u\n{arcs}5000\n\nv\n0 1 a\n1\n", max_arcs=1000)


def test_two_files_of_one_utterance(tmp_path):
    for name in ("u.lat", "u.slf"):
        (tmp_path / name).write_text(HTK)
    with pytest.raises(InputError, match=r"u.slf:1: the utterance 'u' stands already in .*u.lat:1"):
        list(read_htk(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no HTK lattices in it"):
        list(read_htk(tmp_path / "empty"))


# as lattice-copy writes it, with symbols; the second one has states out of their order
KALDI = """u-1\x20
0\t1\twell\t4.25,310.5,1_1_8
0\t2\t<eps>\t0.5,20,
1\t2\ti'm\t1e-1,-3.5,9_9
2\t3\t3\t2,10,4
2\t1.5,0.25,7
3\t0.75,0,

u-2
5 2 well
7 9 three 1,1,
2 7 <eps> 3,4,5
9

u-3
0
"""
WORDS = "<eps> 0\nwell 1\ni'm 2\n3 3\nthree 4\n#0 5\n"


def read_kaldi_text(folder, text, name="x.lats", **options):
    (folder / name).write_text(text)
    return list(read_kaldi_lattices(folder / name, **options))


def ids_of(text):
    """Return the text with ids in place of symbols."""
    table = dict(line.split() for line in WORDS.splitlines())
    return re.sub(r"(?m)^(\d+[ \t]\d+[ \t])(\S+)", lambda m: m[1] + table[m[2]], text)


def test_lattices_by_hand(tmp_path):
    first, second, third = read_kaldi_text(tmp_path, KALDI)
    assert [lattice.utt for lattice in (first, second, third)] == ["u-1", "u-2", "u-3"]
    assert first.scores == ("am_score", "lm_score") and first.scales == kaldi_scales(10)
    assert {words: (path.lm_score, path.am_score) for words, path in all_paths(first).items()} == {
        ("well", "i'm"): (-(4.25 + 0.1 + 1.5), -(310.5 - 3.5 + 0.25)),
        ("well", "i'm", "3"): (-(4.25 + 0.1 + 2 + 0.75), -(310.5 - 3.5 + 10)),
        (): (-2.0, -20.25),
        ("3",): (-3.25, -30.0),
    }
    ids = [dict(arc.details).get("ids") for arc in first.arcs]
    assert ids == ["1_1_8", None, "9_9", "4", "7", None]
    (path,) = best_paths(second, second.scales, 9)
    assert (path.words, path.lm_score, path.am_score) == (("well", "three"), -4.0, -5.0)
    (path,) = best_paths(third, third.scales, 9)
    assert path.words == ()


def test_ids_with_a_table_beside_them(tmp_path):
    symbols, text, folder = read_kaldi_text(tmp_path, KALDI), ids_of(KALDI), tmp_path / "ids"
    folder.mkdir()
    with pytest.raises(InputError, match=r"x.lats:1: all words are numbers, .*words.txt"):
        read_kaldi_text(folder, text)
    (tmp_path / "table").write_text(WORDS)
    assert read_kaldi_text(folder, text, words=tmp_path / "table") == symbols
    packed = folder / "words.txt.gz"
    packed.write_bytes(gzip.compress(WORDS.encode()))
    assert list(read_kaldi_lattices(folder)) == symbols
    (folder / "words.txt").write_text(WORDS)
    with pytest.raises(InputError, match=r"words.txt: words.txt.gz is there too"):
        read_kaldi_text(folder, text)
    packed.unlink()
    with pytest.raises(InputError, match=r"x.lats:2: 'well' stands where an id"):
        read_kaldi_text(folder, KALDI)
    (folder / "words.txt").write_text(WORDS.replace(" 2", " 1"))
    with pytest.raises(InputError, match=r"words.txt:3: .* is not `word id`"):
        read_kaldi_text(folder, text)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), zipped=st.booleans())
def test_what_was_written_for_kaldi_is_read_again(tmp_path_factory, seed, zipped):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("kaldi") / f"lattices.lats{'.gz' * zipped}"
    lattices = [random_lattice(rng, utt=f"u{n}") for n in range(3)]
    lattices.append(random_lattice(rng, num_nodes=2, utt="short"))
    write_kaldi_lattices(lattices, path)
    first = list(read_kaldi_lattices(path))
    for lattice, again in zip(lattices, first, strict=True):
        before, after = all_paths(lattice), all_paths(again)
        assert list(before) == list(after)
        for words in before:
            assert after[words].total == pytest.approx(before[words].total)
            assert after[words].am_score == pytest.approx(before[words].am_score)
    other = path.with_name("other.lats")
    write_kaldi_lattices(first, other)
    assert list(read_kaldi_lattices(other)) == first


# what is replaced in a good file, by what, and the error
DAMAGED_HTK = [
    ("end=0\n", "", r"u.lat:23: no field end=, and 2 nodes .* one final node"),
    ("end=0\n", "end=8\n", "u.lat:4: end=8, and there is no node 8"),
    ("end=0\n", "end=1\n", "begins at the end node 1"),
    ("S=5\tE=4", "S=5\tE=44", "u.lat:16: a link to the node 44"),
    ("J=0\tS=7\tE=5", "J=0\tS=7\tE=1", "u.lat:8: the node 2 cannot be reached"),
    ("J=7\tS=2\tE=1", "J=7\tS=2\tE=3", r"u.lat:\d+: .* a cycle through the node"),
    ("J=9\tS=1\tE=6", "J=9\tS=6\tE=6", "cannot be reached|cycle"),
    ("a=-7\t", "", "u.lat:17: the link of .* has the scores none, other links a"),
    ("a=-7\t", "a=nan\t", "u.lat:17: 'nan' is not a finite number"),
    ("a=-7\t", "a=Infinity\t", "u.lat:17: 'Infinity' is not a finite number"),
    ("a=-7\t", "a=x\t", "u.lat:17: 'x' stands where one number"),
    ("W=c\t", "", "u.lat:7: the field W is missing"),
    ("I=2\t", "I=1\t", "u.lat:8: the node 1 comes twice"),
    ("J=2\t", "J=1\t", "u.lat:16: the link 1 stands already in line 15"),
    ("S=7\t", "S=7\tS=7\t", "u.lat:14: the field 'S' comes twice"),
    ("J=10\tS=5\tE=1\ta=-20\tp=1\n", "", "u.lat:5: L=11, and there are 10 links"),
    ("VERSION", "hello VERSION", "u.lat:2: .* where `key=value` was expected"),
    ("VERSION=1.0", "base=1", "u.lat:2: base=1: expected the base of logarithms"),
    ("J=0\t", "J=0\tW=x\t", "the node has the word 'c', and links have words too"),
    ("VERSION=1.0", "SUBLAT=x", "u.lat:2: a sub-lattice"),
    (HTK, "\n", "u.lat:1: no nodes"),
    ("S=7\tE=5", "E=5", "u.lat:14: the field S is missing"),
    ("S=7\tE=5", "S=-7\tE=5", "u.lat:14: S=-7: expected a number from 0"),
    ("I=2\t", "I=2\tL=part\t", "u.lat:8: a sub-lattice in place of a word"),
    ("W=c\t", 'W="a b"\t', "u.lat:7: W='a b': expected one word without white space"),
    ("VERSION=1.0\n", "VERSION=1.0\n" * 2, "u.lat:3: the field 'VERSION' stands already in line 2"),
    (HTK, re.sub("W=.*", "", HTK).replace("J=0", "W=x\tJ=0"), "u.lat:15: the field W is missing"),
    ("W=c\t", "W=\\351\t", "u.lat:7: the bytes of .* are not UTF-8"),
    ("VERSION=1.0\n", "VERSION=1.0\nbase=0\n", "u.lat:15: the probability -1.5 has no logarithm"),
    (
        HTK,
        HTK.replace("VERSION=1.0", "base=10").replace("a=-7\t", "a=1.7e308\t"),
        "u.lat:17: '1.7e308' is too large a number",
    ),
]
DAMAGED_KALDI = [
    ("2\t3\t3\t2,10,4", "2\t0\t3\t2,10,4\n2\t3\tx", r"x.lats:2: .* a cycle"),
    ("2\t3\t3\t2,10,4", "2\t2\t3\t2,10,4\n2\t3\tx", r"x.lats:5: .* a cycle through the node 2"),
    ("2\t1.5,0.25,7\n3\t0.75,0,\n", "", "x.lats:6: .* has no final state"),
    ("2\t3\t3\t2,10,4", "4\t3\t3\t2,10,4", "x.lats:5: the node 4 cannot be reached"),
    ("4.25,", "nan,", "x.lats:2: 'nan' is not a finite number"),
    (",310.5,", ",-Infinity,", "x.lats:2: '-Infinity' is not a finite number"),
    ("4.25,310.5,1_1_8", "4.25", "x.lats:2: '4.25' stands where graph,acoustic,ids"),
    ("1_1_8", "1_x", "x.lats:2: '4.25,310.5,1_x' stands where graph,acoustic,ids"),
    ("0\t1\twell", "0\t-1\twell", "x.lats:2: '-1' stands where a state's number"),
    ("3\t0.75,0,", "2\t0.75,0,", "x.lats:7: the state 2 is final already in line 6"),
    ("u-3\n0\n", "u-3\n", "x.lats:15: the lattice of 'u-3' has no states"),
    ("u-2", "u-1", "x.lats:9: the utterance 'u-1' stands already in .*x.lats:1"),
    ("u-2\n", "", "x.lats:9: '5 2 well' where an utterance id alone was expected"),
    ("0\t1\twell\t4", "0\t1\t5\twell\t4", "x.lats:2: .* has 5 fields.*lattice-copy"),
    ("u-2", "u-2 \0B", "x.lats:9: a binary archive .*lattice-copy ark:- ark,t:-"),
    (KALDI, "\n", "x.lats: no lattices"),
]


DAMAGED = [("htk", "u.lat", HTK, *row) for row in DAMAGED_HTK]
DAMAGED += [("kaldi_lattice", "x.lats", KALDI, *row) for row in DAMAGED_KALDI]


@pytest.mark.parametrize("format, name, good, old, new, message", DAMAGED)
def test_a_damaged_lattice_is_one_clear_error(format, name, good, old, new, message, tmp_path):
    assert old in good
    (tmp_path / name).write_text(good.replace(old, new))
    read = LATTICE_READERS[format]
    check_refused(lambda: list(read(tmp_path / name)), message, tmp_path, remedy=False)


def lattice(utt="u", label="a", **scores):
    return Lattice(utt, 2, 1, (Arc(0, 1, label, **scores),))


BOTH = [[lattice(am_score=math.nan)], [lattice(), lattice("v", lm_score=-math.inf)], []]
BOTH += [[lattice(), lattice()]]  # one id twice
REFUSED = [
    *[(write_htk, "other.slf", lattices) for lattices in (*BOTH, [lattice("a/b")])],
    *[(write_kaldi_lattices, "x.ark", lattices) for lattices in (*BOTH, [lattice(label="7")])],
]


@pytest.mark.parametrize("write, stale, lattices", REFUSED)
def test_what_cannot_be_written_leaves_nothing(write, stale, lattices, tmp_path):
    with pytest.raises(InputError):
        write(lattices, tmp_path / "out")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / stale).write_text("stale")
    with pytest.raises(InputError, match="would be read with the lists"):
        write([lattice()], tmp_path / "out")

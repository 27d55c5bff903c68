"""Lattices that cannot be read, and that cannot be written: one error, and nothing on disk."""

import math

import pytest
from oracles.lattice_paths import write_htk, write_kaldi_lattices
from oracles.refused import check_refused
from test_htk import HTK
from test_kaldi_lattice import KALDI

from espnet_bayeslm.nbest.formats import LATTICE_READERS
from espnet_bayeslm.nbest.lattice import Arc, Lattice
from espnet_bayeslm.utils.errors import InputError

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

"""HTK lattices: what is read, what is written, and what is refused."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles.lattice_paths import all_paths, random_lattice, write_htk

from espnet_bayeslm.nbest.htk import read_htk, read_lattice
from espnet_bayeslm.nbest.lattice import Lattice, PathScales, acoustic_scores, best_paths
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
    lattice = read_text(tmp_path, HTK)
    assert (lattice.utt, lattice.num_nodes, len(lattice.arcs)) == ("u", 8, 11)
    assert lattice.scores == ("am_score",) and lattice.scales == PathScales()
    hypotheses = [("a", "b", "c"), ("a", "c"), ("a", "b"), (), ("a", "b", "c", "d")]
    # a b c: 1.5 + 10 + (3 + 0.25) + 2, by the silence
    expected = [-16.75, -23.5, -math.inf, -math.inf, -math.inf]
    assert acoustic_scores(lattice, hypotheses) == pytest.approx(expected)
    found = {path.words: path.am_score for path in best_paths(lattice, PathScales(), 10)}
    assert found == pytest.approx(dict(zip(hypotheses[:2], expected, strict=False)))
    assert found == {words: path.am_score for words, path in all_paths(lattice).items()}
    assert lattice.times[0] == 0.0 and lattice.times[lattice.end] == 1.0
    assert dict(lattice.arcs[0].details) == {"p": "1", "v": "1"}


def test_a_link_without_a_word_may_lack_a_score(tmp_path):
    """SRILM writes those that are defined."""
    lattice = read_text(tmp_path, HTK.replace("E=2\ta=-3\t", "E=2\t"))
    assert lattice.scores == ("am_score",)
    assert acoustic_scores(lattice, [("a", "b", "c")]) == pytest.approx([-16.75 + 3])


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


def test_a_word_of_the_start_and_logs_of_no_base(tmp_path):
    text = "base=0\nI=0 W=a\nI=1 W=b\nJ=0 S=0 E=1 a=0.5 r=0.25\n"
    lattice = read_text(tmp_path, text)
    (path,) = best_paths(lattice, PathScales(), 5)
    assert path.words == ("a", "b")
    assert (path.am_score, path.graph_score) == (math.log(0.5), math.log(0.25))
    assert lattice.scores == ("am_score", "graph_score")


def words_of_lattices():
    plain = st.characters(blacklist_categories=("Z", "C"))
    return st.text(plain, min_size=1, max_size=5).filter(lambda word: word.split() == [word])


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    words=st.lists(words_of_lattices(), min_size=1, max_size=4),
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
        args = (utt, lattice.num_nodes, lattice.end, arcs, lattice.scores)
        lattices.append(Lattice(*args, **fields))
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


def test_a_lattice_of_too_many_arcs_is_refused(tmp_path):
    (tmp_path / "u.lat").write_text(HTK.replace("\tL=11", ""))
    with pytest.raises(InputError, match=r"u.lat:23: .* too many arcs, at most 9 .*--max_arcs"):
        read_lattice(tmp_path / "u.lat", max_arcs=9)
    assert len(read_lattice(tmp_path / "u.lat", max_arcs=11).arcs) == 11


def test_two_files_of_one_utterance(tmp_path):
    for name in ("u.lat", "u.slf"):
        (tmp_path / name).write_text(HTK)
    with pytest.raises(InputError, match=r"u.slf:1: the utterance 'u' stands already in .*u.lat:1"):
        list(read_htk(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no HTK lattices in it"):
        list(read_htk(tmp_path / "empty"))

"""Kaldi's lattices as text: what is read, what is written, and what is refused."""

import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles.lattice_paths import all_paths, random_lattice, write_kaldi_lattices

from espnet_bayeslm.nbest.kaldi_lattice import read_kaldi_lattices
from espnet_bayeslm.nbest.lattice import best_paths, kaldi_scales
from espnet_bayeslm.utils.errors import InputError

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


def read(folder, text, name="x.lats", **options):
    (folder / name).write_text(text)
    return list(read_kaldi_lattices(folder / name, **options))


def ids_of(text):
    """Return the text with ids in place of symbols."""
    table = dict(line.split() for line in WORDS.splitlines())
    lines = []
    for line in text.split("\n"):
        fields = line.split()
        if len(fields) > 2:
            fields[2] = table[fields[2]]
        lines.append(" ".join(fields))
    return "\n".join(lines)


def test_lattices_by_hand(tmp_path):
    first, second, third = read(tmp_path, KALDI)
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
    symbols, text, folder = read(tmp_path, KALDI), ids_of(KALDI), tmp_path / "ids"
    folder.mkdir()
    with pytest.raises(InputError, match=r"x.lats:1: all words are numbers, .*words.txt"):
        read(folder, text)
    (tmp_path / "table").write_text(WORDS)
    assert read(folder, text, words=tmp_path / "table") == symbols
    packed = folder / "words.txt.gz"
    packed.write_bytes(gzip.compress(WORDS.encode()))
    assert list(read_kaldi_lattices(folder)) == symbols
    (folder / "words.txt").write_text(WORDS)
    with pytest.raises(InputError, match=r"words.txt: words.txt.gz is there too"):
        read(folder, text)
    packed.unlink()
    with pytest.raises(InputError, match=r"x.lats:2: 'well' stands where an id"):
        read(folder, KALDI)
    (folder / "words.txt").write_text(WORDS.replace(" 2", " 1"))
    with pytest.raises(InputError, match=r"words.txt:3: .* is not `word id`"):
        read(folder, text)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), zipped=st.booleans())
def test_what_was_written_is_read_again(tmp_path_factory, seed, zipped):
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


def test_a_lattice_of_too_many_arcs_is_refused(tmp_path):
    arcs = "".join(f"{n} {n + 1} word 1,1,\n" for n in range(5000))
    with pytest.raises(InputError, match=r"x.lats:1002: .* too many .*--max_arcs"):
        read(tmp_path, f"u\n{arcs}5000\n\nv\n0 1 a\n1\n", max_arcs=1000)

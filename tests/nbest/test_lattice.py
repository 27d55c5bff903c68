"""Best paths, N best, oracle and pruning of lattices against the enumeration of all paths."""

import dataclasses
import math

import numpy as np
import pytest
from oracles.alignments import edit_distance
from oracles.lattice_paths import (
    all_paths,
    arc_paths,
    random_lattice,
    write_htk,
    write_kaldi_lattices,
)

from espnet_bayeslm.nbest.formats import LATTICE_READERS, read_nbest
from espnet_bayeslm.nbest.lattice import (
    Arc,
    Lattice,
    PathScales,
    _expanded,
    acoustic_score,
    best_paths,
    best_rest,
    kaldi_scales,
    nbest_list,
    oracle_words,
    pruned,
)
from espnet_bayeslm.utils.errors import InputError

SCALES = [PathScales(), kaldi_scales(10.0, 0.5), PathScales(1.0, 6.5, 2.0, -3.0)]
SEEDS = range(60)


def check_paths(found, expected):
    """Check that paths have the same words, in the same order, and the same scores."""
    assert [path.words for path in found] == [path.words for path in expected]
    for path, other in zip(found, expected, strict=True):
        assert path[1:] == pytest.approx(other[1:], rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("scales", SCALES)
def test_n_best_of_random_lattices_are_those_of_enumeration(scales):
    for seed in SEEDS:
        lattice = random_lattice(np.random.default_rng(seed))
        expected = list(all_paths(lattice, scales).values())
        check_paths(best_paths(lattice, scales, 10**6), expected)
        for size in (1, 2, 5):
            check_paths(best_paths(lattice, scales, size), expected[:size])
        assert best_rest(lattice, scales)[0] == pytest.approx(expected[0].total)


def test_oracles_and_acoustic_scores_are_those_of_enumeration():
    compared = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        lattice = random_lattice(rng)
        paths = all_paths(lattice)
        for length in (0, 1, 3, 6):
            ref = [str(word) for word in rng.choice(["a", "b", "c", "d"], length)]
            words = oracle_words(lattice, ref)
            assert words in paths
            assert edit_distance(ref, words) == min(edit_distance(ref, other) for other in paths)
            compared += edit_distance(ref, words) > 0
        for words, path in all_paths(lattice, PathScales(1, 0, 0, 0)).items():
            assert acoustic_score(lattice, words) == pytest.approx(path.am_score)
        assert acoustic_score(lattice, ("d",)) == -math.inf
    assert compared > 50


@pytest.mark.parametrize("beam", [0.0, 5.0, 30.0, math.inf])
def test_a_pruned_lattice_has_the_arcs_of_good_paths(beam):
    scales = kaldi_scales(2.0, 1.0)
    for seed in SEEDS:
        lattice = random_lattice(np.random.default_rng(seed))
        totals = [(sum(map(scales.total, arcs)), arcs) for arcs in arc_paths(lattice)]
        least = max(total for total, _ in totals) - beam - 1e-9
        good = {arc for total, arcs in totals if total >= least for arc in arcs}
        smaller = pruned(lattice, scales, beam)
        assert len(smaller.arcs) == len(good)
        assert sorted(arc[2:] for arc in smaller.arcs) == sorted(arc[2:] for arc in good)
        kept = [path for path in all_paths(lattice, scales).values() if path.total >= least]
        check_paths(best_paths(smaller, scales, len(kept)), kept)


def test_silences_and_distant_scores():
    """A million paths of the same words are one hypothesis."""
    arcs = [
        Arc(node, node + 1, label, score)
        for node in range(40)
        for label, score in [("a" if node % 2 else "", -1.0)] * 3
    ]
    lattice = Lattice("u", 41, 40, tuple(arcs))
    (path,) = best_paths(lattice, PathScales(), 100)
    assert path.words == ("a",) * 20 and path.am_score == -40
    arcs = [(0, 1, "longer", -9.0), (0, 2, "good", -5.0), (0, 2, "zero", -1e10), (1, 2, "way", 0.0)]
    lattice = Lattice("u", 3, 2, tuple(Arc(*arc) for arc in arcs))
    for size in (1, 2, 3):
        found = best_paths(lattice, PathScales(), size)
        assert [path.words[0] for path in found] == ["good", "longer", "zero"][:size]
    # the best may have nothing to compare with
    arcs = [Arc(0, 1, "none", 0.0), Arc(0, 2, "a", -0.3), Arc(2, 1, "b", 0.0)]
    (path,) = best_paths(Lattice("u", 3, 1, tuple(sorted(arcs))), PathScales(), 1)
    assert path.words == ("none",)


@pytest.mark.parametrize("scale", [0.0, 1e-5, 1.0, 1e6])
def test_equal_words_do_not_multiply_the_search(scale, monkeypatch):
    """Of 4^40 paths 2^40 are equally good, to the last digits of their sums."""
    rng = np.random.default_rng(0)
    arcs = []
    for node in range(40):
        score = -scale * rng.random()
        arcs += [Arc(node, node + 1, f"{w}{node}", score - scale * (w > "b")) for w in "abcd"]
    calls = []
    monkeypatch.setattr(
        "espnet_bayeslm.nbest.lattice._expanded",
        lambda *args: calls.append(1) or _expanded(*args),
    )
    found = best_paths(Lattice("u", 41, 40, tuple(arcs)), PathScales(), 100)
    assert len({path.words for path in found}) == 100 and len(calls) < 100 * 41
    # the first of equals comes first
    assert found[0].words == tuple(f"a{node}" for node in range(40))
    best = sum(arc.am_score for arc in arcs if arc.label.startswith("a"))
    assert [path.total for path in found] == pytest.approx([best] * 100)


LATTICE_WRITERS = {"htk": write_htk, "kaldi_lattice": write_kaldi_lattices}
ZEROS = {"htk": ("-inf", "-Infinity", "-1e10", "-1.0e+10"), "kaldi_lattice": ("inf", "Infinity")}


@pytest.mark.parametrize("format, zero", [(f, zero) for f in ZEROS for zero in ZEROS[f]])
@pytest.mark.parametrize("score", ["am_score", "lm_score"])
def test_arcs_of_log_zero_are_on_no_path(format, zero, score, tmp_path):
    """What only they lead to, and what leads only to them, goes with them."""
    write = LATTICE_WRITERS[format]
    written = "-10000000000" if format == "htk" else "10000000000"
    compared = 0
    for seed in SEEDS[:20]:
        rng = np.random.default_rng(seed)
        lattice = random_lattice(rng)
        drawn = rng.random(len(lattice.arcs)) < 0.25
        arcs = [a._replace(graph_score=0.0) for a in lattice.arcs]
        arcs = [a._replace(**{score: -1e10}) if z else a for a, z in zip(arcs, drawn, strict=True)]
        write([dataclasses.replace(lattice, arcs=tuple(arcs))], tmp_path / f"{seed}")
        (file,) = (tmp_path / f"{seed}").iterdir()
        text = file.read_text()
        assert not drawn.any() or written in text
        file.write_text(text.replace(written, zero))
        kept = dataclasses.replace(lattice, arcs=tuple(a for a in arcs if getattr(a, score) > -1e9))
        expected = all_paths(kept)
        if not expected:
            with pytest.raises(InputError, match=r"every path .* log of zero.*"):
                list(LATTICE_READERS[format](file))
            continue
        (found,) = LATTICE_READERS[format](file)
        check_paths(best_paths(found, PathScales(), 10**6), list(expected.values()))
        compared += bool(drawn.any())
    assert compared > 5


def test_probabilities_of_zero_and_final_weights_of_log_zero(tmp_path):
    htk = "base=0\nI=0\nI=1\nJ=0 S=0 E=1 W=a a=.5\nJ=1 S=0 E=1 W=b a=0\n"
    kaldi = "u\n0 1 a 1,2,\n0 2 b 1,2,\n1 0,0,\n2 Infinity,Infinity,\n"
    for format, text in {"htk": htk, "kaldi_lattice": kaldi}.items():
        (tmp_path / "u").write_text(text)
        (lattice,) = LATTICE_READERS[format](tmp_path / "u")
        assert [path.words for path in best_paths(lattice, PathScales(), 9)] == [("a",)]


def test_a_list_has_the_scores_that_the_lattice_holds():
    arcs = (Arc(0, 1, "a", -3.0, -2.0, -1.0), Arc(0, 1, "", -4.0, -1.0, -1.0))
    acoustic = tuple(arc._replace(lm_score=0.0, graph_score=0.0) for arc in arcs)
    lattice = Lattice("u", 2, 1, acoustic, ("am_score",))
    (best, second) = nbest_list(lattice, 100).hypotheses
    assert (best.words, best.am_score, best.lm_score, best.graph_score) == (("a",), -3, None, None)
    assert second.words == ()
    lattice = Lattice("u", 2, 1, arcs, ("am_score", "lm_score"), kaldi_scales(10.0))
    (best, second) = nbest_list(lattice, 100).hypotheses
    assert (best.words, best.lm_score, best.graph_score) == ((), -1, None)
    assert nbest_list(lattice, 1).hypotheses == (best,)


@pytest.mark.parametrize("format, write", LATTICE_WRITERS.items())
def test_lists_of_lattices_have_the_size_that_was_asked_for(format, write, tmp_path):
    lattices = [random_lattice(np.random.default_rng(n), utt=f"u{n}") for n in range(3)]
    write(lattices, tmp_path / "x")
    scales = PathScales() if format == "htk" else kaldi_scales(10)
    for size in (5, 100):
        found = list(read_nbest(tmp_path / "x", format, size=size))
        for nbest, lattice in zip(found, lattices, strict=True):
            paths = list(all_paths(lattice, scales))[:size]
            assert [hyp.words for hyp in nbest.hypotheses] == paths
    assert list(read_nbest(tmp_path / "x", format)) == found
    with pytest.raises(InputError, match="--nbest_size 0: 1 or more"):
        read_nbest(tmp_path / "x", format, size=0)

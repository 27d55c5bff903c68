"""Bias lists in lattices against the enumeration of all paths."""

import dataclasses
import itertools

import numpy as np
import pytest
from oracles.lattice_paths import all_paths, arc_paths, random_lattice

from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.nbest.biased_lattice import biased_lattice
from espnet_bayeslm.nbest.lattice import (
    Arc,
    Lattice,
    PathScales,
    best_paths,
    kaldi_scales,
    nbest_list,
    pruned,
)

SCALES = [kaldi_scales(10.0, 0.5), PathScales(0.3, 6.5, 2.0, -3.0), PathScales(1.0, 0.0, 0.0)]
WORDS = ("a", "b", "c", "cafe\u0301")


def random_list(rng):
    """Return a list of phrases that overlap and repeat each other, of own weights and not."""
    phrases = [" ".join(rng.choice(WORDS, rng.integers(1, 4))) for _ in range(rng.integers(1, 7))]
    known = dict.fromkeys(phrases)
    return BiasList((p, None if rng.random() < 0.5 else round(rng.random() * 4, 3)) for p in known)


def expected_paths(lattice, own, weight, scales):
    """Return (words, total, bias) of each word sequence, the best first."""
    unit = abs(scales.lm) or 1.0
    rows = [
        (words, path.total + weight * unit * own.total(words), own.total(words))
        for words, path in all_paths(lattice, scales).items()
    ]
    return sorted(rows, key=lambda row: -row[1])


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("weight", [0.0, 3.0, 20.0])
def test_n_best_are_those_of_enumeration(scales, weight):
    changed = divided = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        lattice = random_lattice(rng, num_nodes=8, words=WORDS)
        own = random_list(rng)
        found = biased_lattice(lattice, own, weight, scales)
        expected = expected_paths(lattice, own, weight, scales)
        paths = best_paths(found, found.scales, 10**6)
        assert [path.words for path in paths] == [words for words, *_ in expected]
        for path, (_, total, bias) in zip(paths, expected, strict=True):
            assert (path.total, path.bias) == pytest.approx((total, bias), rel=1e-9, abs=1e-9)
        (best,) = best_paths(pruned(found, found.scales, 0.0), found.scales, 1)
        assert best.words == expected[0][0]
        changed += best.words != next(iter(all_paths(lattice, scales)))
        divided += found.num_nodes > lattice.num_nodes
    assert (changed > 0) == (weight > 0) and divided > 20


def test_every_arc_of_a_path_is_there_and_no_other():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        lattice = random_lattice(rng, words=WORDS)
        times = tuple(n / 10 for n in range(lattice.num_nodes))
        lattice = dataclasses.replace(lattice, times=times)
        found = biased_lattice(lattice, random_list(rng), 3.0, SCALES[0])
        assert list(found.arcs) == sorted(found.arcs, key=lambda arc: arc.source)
        assert all(arc.source < arc.target for arc in found.arcs)

        def walked(item):
            return sorted(
                [(*arc[2:-1], item.times[arc.source]) for arc in p] for p in arc_paths(item)
            )

        assert walked(found) == walked(lattice)


def chain(slots, **scores):
    """Return a lattice of slots of words side by side."""
    arcs = [Arc(n, n + 1, w, *score) for n, slot in enumerate(slots) for w, *score in slot]
    return Lattice("u", len(slots) + 1, len(slots), tuple(arcs), **scores)


def test_phrases_that_cannot_come_again_are_forgotten():
    """The size is that of the lattice, though a path may hold any of 2**12 sets of phrases."""
    lattice = chain([[(f"n{n}",), (f"x{n}",)] for n in range(12)])
    own = BiasList((f"n{n}", None) for n in range(12))
    found = biased_lattice(lattice, own, 3.0, SCALES[0])
    assert (found.num_nodes, len(found.arcs)) == (lattice.num_nodes, len(lattice.arcs))
    again = chain([[(f"n{n}",), (f"x{n}",)] for n in [*range(6), *range(6)]])
    assert biased_lattice(again, own, 3.0, SCALES[0]).num_nodes > 2**6


def test_a_limit_of_states_keeps_the_best_of_a_node():
    slots = [[(f"n{n}", float(n)), (f"x{n}", 0.0)] for n in range(6)] * 2
    lattice, own = chain(slots), BiasList((f"n{n}", None) for n in range(6))
    sizes = []
    for most in (1, 4, 0):
        found = biased_lattice(lattice, own, 3.0, SCALES[0], max_states=most)
        sizes.append(found.num_nodes)
        (best,) = best_paths(found, found.scales, 1)
        assert best.bias == own.total(best.words)
        assert best.total == pytest.approx(expected_paths(lattice, own, 3.0, SCALES[0])[0][1])
    assert sizes == sorted(set(sizes)) and sizes[0] == lattice.num_nodes


def test_lists_hold_the_bias():
    lattice = chain([[("new", -1.0), ("a", 0.0)], [("york", -1.0), ("b", 0.0)]])
    own = BiasList([("new york", 2.0), ("b", None)])
    found = biased_lattice(lattice, own, 1.5, kaldi_scales(1.0))
    hyps = nbest_list(found, 4).hypotheses
    assert [(*h.words, h.am_score, h.extra["bias"]) for h in hyps] == [
        ("a", "b", 0.0, 1.0),
        ("new", "york", -2.0, 2.0),
        ("new", "b", -1.0, 1.0),
        ("a", "york", -1.0, 0.0),
    ]
    for plain in (BiasList(), BiasList([("z", None)])):
        same = biased_lattice(lattice, plain, 1.5, kaldi_scales(1.0))
        assert same.arcs == lattice.arcs
        assert {hyp.extra["bias"] for hyp in nbest_list(same, 4).hypotheses} == {0.0}
    assert all(not hyp.extra for hyp in nbest_list(lattice, 4).hypotheses)


@pytest.mark.parametrize("slots", [*itertools.product("ab", repeat=2)])
def test_arcs_without_words_and_after_the_end(slots):
    """The end may have arcs, which no path takes."""
    arcs = (Arc(0, 1, slots[0]), Arc(1, 2, ""), Arc(2, 3, slots[1]), Arc(3, 4, "a"))
    own = BiasList([("a", None), ("a b", 5.0)])
    found = biased_lattice(Lattice("u", 5, 3, arcs), own, 1.0, PathScales())
    (path,) = best_paths(found, found.scales, 5)
    assert path.words == slots and path.total == own.total(slots)

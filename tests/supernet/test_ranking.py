"""The ranking of architectures against a list of all of them."""

import itertools
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_bayeslm.supernet.ranking import num_architectures, rank, shares
from espnet_bayeslm.utils.errors import InputError

KINDS = ("point", "bayes", "gp", "variational")


def space(rows):
    """Return weights, the rows' values by location and kind."""
    return {f"ffn@{n}": dict(zip(KINDS, values, strict=False)) for n, values in enumerate(rows, 1)}


def log_softmax(values):
    total = math.log(math.fsum(math.exp(v - max(values)) for v in values))
    return [v - max(values) - total for v in values]


def log_shares(weights):
    """Return ln of the shares to the last digit that the ranking has, so that sums are equal."""
    singles = [
        {choices["x"]: log_prob for log_prob, choices in ranked({"x": row})}
        for row in weights.values()
    ]
    return [
        [by_kind[kind] for kind in row]
        for by_kind, row in zip(singles, weights.values(), strict=True)
    ]


def tie_order(logs):
    """Return a key that puts equally probable choices into the documented order of a counter."""
    ranks = [sorted(range(len(row)), key=lambda k: -row[k]) for row in logs]

    def gap(n):
        row = sorted(logs[n], reverse=True)
        if len(row) < 2 or row[1] == -math.inf:
            return math.inf
        return Fraction(row[0]) - Fraction(row[1])

    slow_first = sorted(range(len(logs)), key=lambda n: (-gap(n), n))
    return lambda taken: [ranks[n].index(taken[n]) for n in slow_first]


def brute_force(weights):
    """Return [(log_prob, choices)] of all architectures, sorted."""
    logs, key = log_shares(weights), tie_order(log_shares(weights))
    every = itertools.product(*(range(len(row)) for row in logs))
    scored = [
        (math.fsum(row[k] for row, k in zip(logs, taken, strict=True)), taken) for taken in every
    ]
    scored.sort(key=lambda item: (-item[0], key(item[1])))
    names = [(location, list(kinds)) for location, kinds in weights.items()]
    return [
        (total, {location: kinds[k] for (location, kinds), k in zip(names, taken, strict=True)})
        for total, taken in scored
    ]


def ranked(weights, count=10**9):
    return [(a.mean_log_prob, a.choices) for a in rank([weights], count)]


VALUES = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e3, -1e3, -math.inf]), st.floats(-5, 5, width=32)
)
ROWS = st.lists(VALUES, min_size=1, max_size=4).filter(lambda row: max(row) > -math.inf)


@given(st.lists(ROWS, min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_any_small_space_is_in_the_order_of_all(rows):
    weights = space(rows)
    assert ranked(weights) == brute_force(weights)


@pytest.mark.parametrize("size", range(1, 13))
def test_binary_spaces_are_in_the_order_of_all(size):
    rng = random.Random(size)
    for levels in (None, 3):
        rows = [
            [rng.gauss(0, 1) if levels is None else rng.randrange(levels) for _ in range(2)]
            for _ in range(size)
        ]
        weights = space(rows)
        assert ranked(weights) == brute_force(weights)
        assert len(ranked(weights)) == num_architectures(weights) == 2**size


@given(st.lists(ROWS.filter(lambda r: min(r) > -math.inf), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_the_probability_is_the_product_of_the_softmax(rows):
    weights = space(rows)
    table = {
        location: dict(zip(row, log_softmax(list(row.values())), strict=True))
        for location, row in weights.items()
    }
    for log_prob, choices in ranked(weights):
        expected = math.fsum(table[name][kind] for name, kind in choices.items())
        # log_softmax here loses what a share next to 1 lacks: less than an ulp of 1 each
        assert log_prob == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_probabilities_sum_to_one_and_fall():
    rng = random.Random(0)
    weights = space([[rng.gauss(0, 2) for _ in range(1 + n % 4)] for n in range(8)])
    logs = [total for total, _ in ranked(weights)]
    assert logs == sorted(logs, reverse=True)
    assert math.fsum(map(math.exp, logs)) == pytest.approx(1, abs=1e-12)


def test_the_first_of_a_space_too_large_to_list():
    rng = random.Random(1)
    weights = space([[rng.gauss(0, 1) for _ in range(3)] for _ in range(48)])
    best, second, *_ = first = ranked(weights, 1000)
    assert best[1] == {name: max(row, key=row.get) for name, row in weights.items()}
    assert sum(best[1][name] != second[1][name] for name in weights) == 1
    assert len({tuple(choices.values()) for _, choices in first}) == 1000
    assert [total for total, _ in first] == sorted((t for t, _ in first), reverse=True)


def test_weights_far_apart_keep_what_a_share_next_to_one_lacks():
    weights = {"a": {"point": 1e3, "bayes": -1e3}, "b": {"point": 0.0, "bayes": -50.0}}
    best, second, *_, last = ranked(weights)
    assert best[0] == -math.log1p(math.exp(-50))
    assert second[1] == {"a": "point", "b": "bayes"} and last[0] == pytest.approx(-2050)


def test_a_share_of_zero_comes_last():
    weights = {"a": {"point": 0.0, "bayes": -math.inf}, "b": {"point": 0.0, "bayes": 1.0}}
    assert shares(weights)["a"] == {"point": 1.0, "bayes": 0.0}
    logs = [total for total, _ in ranked(weights)]
    assert math.isfinite(logs[1]) and logs[2:] == [-math.inf, -math.inf]


@pytest.mark.parametrize(
    "weights, words",
    [
        ({}, "empty search space"),
        ({"ffn@1": {}}, "ffn@1 has no candidates"),
        ({"ffn@1": {"point": math.nan, "bayes": 0.0}}, "ffn@1"),
        ({"ffn@1": {"bayes": 0.0, "point": math.nan}}, "ffn@1"),
        ({"ffn@1": {"point": math.inf, "bayes": 0.0}}, "ffn@1"),
        ({"ffn@1": {"point": -math.inf}}, "ffn@1"),
    ],
)
def test_what_cannot_be_ranked(weights, words):
    for function in (shares, lambda w: rank([w], 1)):
        with pytest.raises(InputError, match=words):
            function(weights)


def test_one_run_is_ranked_as_its_architectures():
    best = rank([weights := space([[0.3, 0.1, 0.2], [0.5, -0.5], [0.0]])], 100)
    assert [r.ranks for r in best] == [(n,) for n in range(1, 7)]
    assert [r.mean_rank for r in best] == [1, 2, 3, 4, 5, 6]
    assert [r.log_probs for r in best] == [(r.mean_log_prob,) for r in best]
    assert rank([weights], 2) == best[:2]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_several_runs_are_ranked_by_their_mean(data):
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    num_runs = data.draw(st.integers(2, 3))
    values = st.floats(-3, 3)
    runs = [
        space([data.draw(st.lists(values, min_size=n, max_size=n)) for n in sizes])
        for _ in range(num_runs)
    ]
    result = rank(runs, 1000)
    assert len(result) == math.prod(sizes)
    assert [r.mean_log_prob for r in result] == sorted(
        (r.mean_log_prob for r in result), reverse=True
    )
    orders = [ranked(run) for run in runs]
    for architecture in result:
        places = [[c for _, c in order].index(architecture.choices) for order in orders]
        assert architecture.ranks == tuple(place + 1 for place in places)
        assert architecture.mean_rank == pytest.approx(sum(places) / num_runs + 1)
        logs = tuple(order[p][0] for order, p in zip(orders, places, strict=True))
        assert architecture.log_probs == logs
        assert architecture.mean_log_prob == pytest.approx(sum(logs) / num_runs, abs=1e-12)


def test_an_architecture_beyond_the_limit_has_no_rank():
    one, other = space([[2.0, 0.0]] * 6), space([[0.0, 1.0]] * 6)
    best = rank([one, other], 1, limit=10)[0]
    assert best.choices == {f"ffn@{n}": "point" for n in range(1, 7)}
    assert best.ranks == (1, None) and best.mean_rank is None
    assert rank([one, other], 1, limit=64)[0].ranks == (1, 64)


def test_runs_may_list_the_same_candidates_in_another_order():
    one = {"a": {"point": 1.0, "bayes": 0.0}, "b": {"point": 0.0, "gp": 3.0}}
    other = {"b": {"gp": 3.0, "point": 0.0}, "a": {"bayes": 0.0, "point": 1.0}}
    assert [r.ranks for r in rank([one, other], 4)] == [(n, n) for n in range(1, 5)]
    assert rank([one, other], 1)[0].choices == {"a": "point", "b": "gp"}


@pytest.mark.parametrize(
    "runs, top, words",
    [
        ([space([[0.0, 1.0]])], 0, "1 or more"),
        ([], 1, "no run"),
        ([space([[0.0, 1.0]]), space([[0.0, 1.0]] * 2)], 1, "ffn@2"),
        ([space([[0.0, 1.0, 2.0]]), space([[0.0, 1.0]])], 1, "gp.*ffn@1|ffn@1.*gp"),
        ([{"a": {"point": 0.0}}, {"a": {"bayes": 0.0}}], 1, "run 2"),
    ],
)
def test_runs_that_cannot_be_ranked_together(runs, top, words):
    with pytest.raises(InputError, match=words):
        rank(runs, top)

"""The ranking of architectures against a list of all of them."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_bayeslm.kinds.architectures import num_architectures, rank, shares
from espnet_bayeslm.utils.errors import InputError

KINDS = ("point", "bayes", "gp", "variational")


def space(rows):
    """Return weights, the rows' values by location and kind."""
    return {f"ffn@{n}": dict(zip(KINDS, values, strict=False)) for n, values in enumerate(rows, 1)}


def random_space(seed, *sizes, spread=1.0):
    rng = random.Random(seed)
    return space([[rng.gauss(0, spread) for _ in range(size)] for size in sizes])


def log_prob(weights, choices):
    """Return ln of an architecture's probability."""
    total = 0.0
    for location, row in weights.items():
        highest = max(row.values())
        norm = math.fsum(math.exp(value - highest) for value in row.values())
        total += row[choices[location]] - highest - math.log(norm)
    return total


def every(weights):
    """Return all architectures."""
    return [
        dict(zip(weights, kinds, strict=True)) for kinds in itertools.product(*weights.values())
    ]


def near(value):
    # ln of the norm loses what a share next to 1 lacks: less than an ulp of 1 a location
    return pytest.approx(value, rel=1e-12, abs=1e-14)


VALUES = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 1e3, -1e3, -math.inf]), st.floats(-5, 5, width=32)
)
ROWS = st.lists(VALUES, min_size=1, max_size=4).filter(lambda row: max(row) > -math.inf)


@given(st.lists(ROWS, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_small_space_is_in_the_order_of_all(rows):
    weights = space(rows)
    found = rank([weights], 10**9)
    assert [a.mean_log_prob for a in found] == near(
        sorted((log_prob(weights, choices) for choices in every(weights)), reverse=True)
    )
    assert [a.mean_log_prob for a in found] == near([log_prob(weights, a.choices) for a in found])
    assert len({tuple(a.choices.values()) for a in found}) == num_architectures(weights)
    assert [a.ranks for a in found] == [(n,) for n in range(1, len(found) + 1)]
    assert math.fsum(math.exp(a.mean_log_prob) for a in found) == pytest.approx(1, abs=1e-12)
    assert rank([weights], 3) == found[:3]


def test_equally_probable_architectures_are_in_the_order_of_their_kinds():
    weights = space([[1.0, 1.0], [0.0, 1.0], [2.0, 2.0]])
    found = [tuple(a.choices.values()) for a in rank([weights], 4)]
    assert found == [
        (first, "bayes", last) for first in ("point", "bayes") for last in ("point", "bayes")
    ]


def test_the_first_of_a_space_too_large_to_list():
    weights = random_space(1, *[3] * 48)
    best, second, *_ = first = rank([weights], 1000)
    assert best.choices == {name: max(row, key=row.get) for name, row in weights.items()}
    assert sum(best.choices[name] != second.choices[name] for name in weights) == 1
    assert len({tuple(a.choices.values()) for a in first}) == 1000


def test_weights_far_apart_keep_what_a_share_next_to_one_lacks():
    weights = {"a": {"point": 1e3, "bayes": -1e3}, "b": {"point": 0.0, "bayes": -50.0}}
    best, second, *_, last = rank([weights], 10)
    assert best.mean_log_prob == -math.log1p(math.exp(-50))
    assert second.choices == {"a": "point", "b": "bayes"}
    assert last.mean_log_prob == pytest.approx(-2050)


def test_a_share_of_zero_comes_last():
    weights = {"a": {"point": 0.0, "bayes": -math.inf}, "b": {"point": 0.0, "bayes": 1.0}}
    assert shares(weights)["a"] == {"point": 1.0, "bayes": 0.0}
    logs = [a.mean_log_prob for a in rank([weights], 10)]
    assert math.isfinite(logs[1]) and logs[2:] == [-math.inf, -math.inf]


@pytest.mark.parametrize(
    "weights, words",
    [
        ({"ffn@1": {"point": math.nan, "bayes": 0.0}}, "ffn@1"),
        ({"ffn@1": {"point": math.inf, "bayes": 0.0}}, "ffn@1"),
        ({"ffn@1": {"point": -math.inf}}, "ffn@1"),
    ],
)
def test_what_cannot_be_ranked(weights, words):
    for function in (shares, lambda w: rank([w], 1)):
        with pytest.raises(InputError, match=words):
            function(weights)


@pytest.mark.parametrize("num_runs, sizes", [(2, (3, 1, 2)), (3, (2, 2, 2, 3)), (2, (3,))])
def test_several_runs_are_ranked_by_their_mean(num_runs, sizes):
    runs = [random_space(seed, *sizes) for seed in range(num_runs)]
    result = rank(runs, 1000)
    assert len(result) == math.prod(sizes)
    means = [r.mean_log_prob for r in result]
    assert means == sorted(means, reverse=True)
    orders = [[a.choices for a in rank([run], 1000)] for run in runs]
    for architecture in result:
        places = [order.index(architecture.choices) + 1 for order in orders]
        assert architecture.ranks == tuple(places)
        assert architecture.mean_rank == pytest.approx(sum(places) / num_runs)
        logs = [log_prob(run, architecture.choices) for run in runs]
        assert architecture.log_probs == near(tuple(logs))
        assert architecture.mean_log_prob == near(sum(logs) / num_runs)
        assert architecture.best_run == logs.index(max(logs))


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


def test_the_best_of_none():
    with pytest.raises(InputError, match="1 or more"):
        rank([space([[0.0, 1.0]])], 0)

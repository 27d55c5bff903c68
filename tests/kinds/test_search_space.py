"""Architectures of a search: their ranking, and the configurations of their trainings."""

import itertools
import math
import random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_bayeslm.bayes import parse_uncertainty
from espnet_bayeslm.kinds.architectures import (
    architecture_yaml,
    derived_config,
    num_architectures,
    rank,
    shares,
    uncertainty_of,
)
from espnet_bayeslm.lm.lstm import POSITIONS as LSTM
from espnet_bayeslm.lm.transformer import POSITIONS as TRANSFORMER
from espnet_bayeslm.utils.errors import InputError

KINDS = ("point", "bayes", "gp", "variational")


def space(rows):
    """Return weights, the rows' values by location and kind."""
    return {f"ffn@{n}": dict(zip(KINDS, values, strict=False)) for n, values in enumerate(rows, 1)}


def random_space(seed, *sizes):
    rng = random.Random(seed)
    return space([[rng.gauss(0, 1) for _ in range(size)] for size in sizes])


def log_prob(weights, choices):
    """Return ln of an architecture's probability."""
    total = 0.0
    for location, row in weights.items():
        highest = max(row.values())
        norm = math.fsum(math.exp(value - highest) for value in row.values())
        total += row[choices[location]] - highest - math.log(norm)
    return total


def every(weights):
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


def test_equal_and_zero_shares():
    weights = space([[1.0, 1.0], [0.0, 1.0], [2.0, 2.0]])
    found = [tuple(a.choices.values()) for a in rank([weights], 4)]
    assert found == [
        (first, "bayes", last) for first in ("point", "bayes") for last in ("point", "bayes")
    ]
    weights = {"a": {"point": 0.0, "bayes": -math.inf}, "b": {"point": 0.0, "bayes": 1.0}}
    assert shares(weights)["a"] == {"point": 1.0, "bayes": 0.0}
    logs = [a.mean_log_prob for a in rank([weights], 10)]
    assert math.isfinite(logs[1]) and logs[2:] == [-math.inf, -math.inf]


def test_large_spaces_and_distant_weights():
    weights = random_space(1, *[3] * 48)
    best, second, *_ = first = rank([weights], 1000)
    assert best.choices == {name: max(row, key=row.get) for name, row in weights.items()}
    assert sum(best.choices[name] != second.choices[name] for name in weights) == 1
    assert len({tuple(a.choices.values()) for a in first}) == 1000
    weights = {"a": {"point": 1e3, "bayes": -1e3}, "b": {"point": 0.0, "bayes": -50.0}}
    best, second, *_, last = rank([weights], 10)
    assert best.mean_log_prob == -math.log1p(math.exp(-50))
    assert second.choices == {"a": "point", "b": "bayes"}
    assert last.mean_log_prob == pytest.approx(-2050)


@pytest.mark.parametrize("row", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf]])
def test_what_cannot_be_ranked(row):
    for function in (shares, lambda w: rank([w], 1)):
        with pytest.raises(InputError, match="ffn@1"):
            function(space([row]))


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


def test_limits_and_orders_of_several_runs():
    one, other = space([[2.0, 0.0]] * 6), space([[0.0, 1.0]] * 6)
    best = rank([one, other], 1, limit=10)[0]
    assert best.choices == {f"ffn@{n}": "point" for n in range(1, 7)}
    assert best.ranks == (1, None) and best.mean_rank is None
    assert rank([one, other], 1, limit=64)[0].ranks == (1, 64)
    one = {"a": {"point": 1.0, "bayes": 0.0}, "b": {"point": 0.0, "gp": 3.0}}
    other = {"b": {"gp": 3.0, "point": 0.0}, "a": {"bayes": 0.0, "point": 1.0}}
    assert [r.ranks for r in rank([one, other], 4)] == [(n, n) for n in range(1, 5)]
    assert rank([one, other], 1)[0].choices == {"a": "point", "b": "gp"}
    with pytest.raises(InputError, match="1 or more"):
        rank([space([[0.0, 1.0]])], 0)


NUM_LAYERS = 12
SEARCH = {
    "lm": "bayes_lstm",
    "lm_conf": {
        "unit": 8,
        "uncertainty": {
            "output_gate@1": "bayes",
            "cell_input@1-2": {"kind": "search", "candidates": ["point", "bayes"]},
            "hidden_input@2": {"kind": "gp", "random": ["coefficients"]},
            "all_gates@3": "search",
        },
        "prior_variance": 1.0,
    },
    "model": "bayes_lm",
    "model_conf": {"architecture_lr": 0.1, "kl_weight": 0.5},
    "max_epoch": 3,
}


@pytest.mark.parametrize(
    "choices, expected",
    [
        ({"ffn@1": "point", "embedding": "point"}, {}),
        ({"ffn@1": "bayes", "ffn@2": "bayes", "ffn@6": "bayes"}, {"ffn@1-2,6": "bayes"}),
        ({"ffn@1": "gp", "ffn@2": "bayes", "ffn@3": "gp"}, {"ffn@1,3": "gp", "ffn@2": "bayes"}),
        ({"ffn@1": "gp", "embedding": "gp", "ffn@2": "gp"}, {"ffn@1-2": "gp", "embedding": "gp"}),
    ],
)
def test_layers_of_a_kind_stand_together(choices, expected):
    result = uncertainty_of(choices)
    assert result == expected and list(result) == list(expected)


def locations(positions):
    """Return the locations of an LM and the kinds that each can have."""
    return {
        f"{name}@{layer}" if position.layered else name: position.kinds
        for name, position in positions.items()
        if not position.parts
        for layer in range(1, NUM_LAYERS + 1 if position.layered else 2)
    }


@st.composite
def spaces(draw):
    """Draw (positions of an LM, choices, options)."""
    positions = draw(st.sampled_from([LSTM, TRANSFORMER]))
    every = locations(positions)
    names = draw(st.lists(st.sampled_from(sorted(every)), unique=True, max_size=30))
    choices = {name: draw(st.sampled_from(every[name])) for name in names}
    given_options = st.sampled_from([{}, {"init_std": 0.2}, {"init_std": 0.3}])
    options = {name: {kind: draw(given_options)} for name, kind in choices.items()}
    return positions, choices, options


@given(spaces())
@settings(max_examples=100, deadline=None)
def test_parsing_gives_the_choices_back(space):
    positions, choices, options = space
    uncertainty = yaml.safe_load(yaml.safe_dump(uncertainty_of(choices, options)))
    parsed = parse_uncertainty(uncertainty, positions=positions, num_layers=NUM_LAYERS)
    expected = {
        name: (kind, options[name][kind]) for name, kind in choices.items() if kind != "point"
    }
    found = {str(place): (kind.name, dict(kind.options)) for place, kind in parsed.items()}
    assert found == expected


def test_the_search_is_replaced_by_the_choice():
    gates = ("input_gate", "forget_gate", "cell_input", "output_gate")
    choices = {"cell_input@1": "bayes", "cell_input@2": "point", **{f"{g}@3": "gp" for g in gates}}
    config = derived_config(SEARCH, choices, {"cell_input@3": {"gp": {"random": ["weights"]}}})
    assert config == {
        **SEARCH,
        "lm_conf": {
            "unit": 8,
            "uncertainty": {
                "output_gate@1": "bayes",
                "cell_input@1": "bayes",
                "cell_input@3": {"kind": "gp", "random": ["weights"]},
                "input_gate@3": "gp",
                "forget_gate@3": "gp",
                "output_gate@3": "gp",
                "hidden_input@2": {"kind": "gp", "random": ["coefficients"]},
            },
            "prior_variance": 1.0,
        },
        "model_conf": {"prior": None, "kl_weight": 0.5},
    }
    assert list(config) == list(SEARCH)
    assert list(config["lm_conf"]) == list(SEARCH["lm_conf"])
    assert (
        SEARCH["model_conf"]["architecture_lr"]
        and "all_gates@3" in SEARCH["lm_conf"]["uncertainty"]
    )


@pytest.mark.parametrize("model_conf, prior", [(None, None), ({"prior": "a.pth"}, "a.pth")])
def test_the_prior_is_that_of_the_search(model_conf, prior):
    config = derived_config({**SEARCH, "model_conf": model_conf}, {"cell_input@1": "bayes"})
    assert config["model_conf"] == {"prior": prior}


@pytest.mark.parametrize("uncertainty", [None, {}, "search", {"ffn@1": "bayes"}])
def test_a_configuration_without_a_search(uncertainty):
    with pytest.raises(InputError, match="empty search space"):
        derived_config({"lm_conf": {"uncertainty": uncertainty}}, {"ffn@1": "bayes"})


def test_yaml_with_a_header():
    shared = ["weights"]
    config = {"lm_conf": {"uncertainty": {"ffn@1": shared, "ffn@2": shared}}, "a": (("b",),)}
    text = architecture_yaml(config, ["Rank 1", "", "how: to train"])
    assert text.startswith(
        "# Rank 1\n#\n# how: to train\nlm_conf:\n    uncertainty:\n        ffn@1:\n"
    )
    assert "&" not in text and "*" not in text
    assert yaml.safe_load(text) == {**config, "a": [["b"]]}

"""From choices to the configuration of an ordinary training, and back."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_bayeslm.bayes import parse_uncertainty
from espnet_bayeslm.kinds.architectures import architecture_yaml, derived_config, uncertainty_of
from espnet_bayeslm.lm.lstm import POSITIONS as LSTM
from espnet_bayeslm.lm.transformer import POSITIONS as TRANSFORMER
from espnet_bayeslm.utils.errors import InputError

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
    kinds = {
        name: [kind for kind in every[name] if kind not in ("search", "release")] for name in names
    }
    choices = {name: draw(st.sampled_from(kinds[name])) for name in names}
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

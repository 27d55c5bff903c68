import pytest

from espnet_bayeslm.bayes import Bayes, Location, Position, parse_uncertainty

POSITIONS = {
    "embedding": Position(weights=(), layered=False),
    "ffn": Position(weights=()),
    "norm": Position(),
    "both": Position(weights=(), parts=("left", "right")),
    "left": Position(weights=()),
    "right": Position(weights=()),
}


def parse(uncertainty):
    return parse_uncertainty(uncertainty, positions=POSITIONS, num_layers=6)


@pytest.mark.parametrize(
    "layers, numbers",
    [
        ("1", [1]),
        ("1-2", [1, 2]),
        ("1,2,6", [1, 2, 6]),
        ("*", [1, 2, 3, 4, 5, 6]),
        ("2-3,5", [2, 3, 5]),
    ],
)
def test_layers(layers, numbers):
    assert list(parse({f"ffn@{layers}": "bayes"})) == [Location("ffn", n) for n in numbers]


def test_places_without_layers_and_of_several_parts():
    kinds = parse({"embedding": {"kind": "bayes", "init_std": 0.1}})
    assert kinds == {Location("embedding"): Bayes(init_std=0.1)}
    assert str(Location("embedding")) == "embedding" and str(Location("ffn", 2)) == "ffn@2"
    assert list(parse({"both@2": "bayes"})) == [Location("left", 2), Location("right", 2)]
    with pytest.raises(ValueError, match="1 to 0"):
        parse_uncertainty({"ffn@*": "bayes"}, positions=POSITIONS, num_layers=0)


@pytest.mark.parametrize("uncertainty", [None, {}, {"ffn@1": "point"}])
def test_point_estimates(uncertainty):
    assert parse(uncertainty) == {}


@pytest.mark.parametrize(
    "uncertainty, words",
    [
        ({"fnn@1": "bayes"}, ["'fnn'", "embedding", "ffn"]),
        ({"ffn@7": "bayes"}, ["1 to 6"]),
        ({"ffn@0": "bayes"}, ["1 to 6"]),
        ({"ffn@3-2": "bayes"}, ["low to high"]),
        ({"ffn@": "bayes"}, ["1-2"]),
        ({"ffn@1;2": "bayes"}, ["1-2"]),
        ({"ffn": "bayes"}, ["ffn@LAYERS"]),
        ({"embedding@1": "bayes"}, ["write it as embedding"]),
        ({"ffn@1": "bayesian"}, ["'bayesian'", "point", "bayes"]),
        ({"norm@1": "bayes"}, ["norm@1", "does not fit", "point"]),
        ({"ffn@1-2": "bayes", "ffn@2": "bayes"}, ["ffn@2", "twice"]),
        ({"both@1": "bayes", "left@1": "bayes"}, ["left@1", "twice"]),
        ({"ffn@1": {"kind": "bayes", "std": 1}}, ["'std'", "init_std"]),
        ({"ffn@1": ["bayes"]}, ["valid kinds are"]),
        ({"ffn@1": {"kind": ["bayes"]}}, ["valid kinds are"]),
        ({1: "bayes"}, ["'1'", "valid positions are"]),
        (["ffn@1"], ["POSITION@LAYERS"]),
        ({"ffn@1": {"init_std": 1}}, ["None", "point"]),
        ("ffn@1", ["POSITION@LAYERS"]),
    ],
)
def test_errors_name_what_is_valid(uncertainty, words):
    with pytest.raises(ValueError) as error:
        parse(uncertainty)
    for word in words:
        assert word in str(error.value)

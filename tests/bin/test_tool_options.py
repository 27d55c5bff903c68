"""Each tool's parser, its dataclass, and the Python function have the same options."""

import dataclasses
import importlib
import inspect

import pytest

import espnet_bayeslm
from espnet_bayeslm.bin.bayeslm import TOOLS
from espnet_bayeslm.bin.ngram import NgramOptions
from espnet_bayeslm.bin.rescore import RescoreCommand
from espnet_bayeslm.bin.train import TrainOptions, train
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.utils.options import described_fields, option_name


# the options of lm_train are ESPnet's
@pytest.mark.parametrize("name", sorted({*TOOLS} - {"lm_train"}))
def test_the_parser_has_the_fields_of_the_dataclass(name):
    tool = importlib.import_module(f"espnet_bayeslm.bin.{name}").TOOL
    actions = tool.parser()._actions
    found = {(action.option_strings or [action.dest])[-1].lstrip("-") for action in actions}
    fields = {option_name(field) for field in described_fields(tool.options)}
    assert found - fields <= {"help", "log_level", "config"} and fields <= found


def defaults_of(options):
    """Return {name: (default, type)} of a function's parameters or a dataclass's fields."""
    if not dataclasses.is_dataclass(options):
        found = inspect.signature(options).parameters.values()
        return {p.name: (p.default, p.annotation) for p in found}
    missing, empty = dataclasses.MISSING, inspect.Parameter.empty
    fields = dataclasses.fields(options)
    return {f.name: (empty if f.default is missing else f.default, f.type) for f in fields}


def test_rescoring_in_python_has_the_options_of_the_tool():
    found, expected = defaults_of(espnet_bayeslm.rescore), defaults_of(RescoreOptions)
    # Python has lists and references, the tool their files
    assert found.keys() - expected.keys() == {"lists", "tune", "refs", "device"}
    assert expected.items() <= found.items()
    assert expected.items() <= defaults_of(RescoreCommand).items()
    lines = [line.strip() for line in espnet_bayeslm.rescore.__doc__.splitlines()]
    for field in described_fields(RescoreOptions):
        assert f"{field.name}: {field.metadata['help']}" in lines
    assert RescoreOptions().max_oov_rate == 0.2


def test_training_and_ngrams_in_python_have_the_options_of_the_tools():
    assert defaults_of(train) == defaults_of(TrainOptions)
    names = {name: default for name, (default, _) in defaults_of(build_ngram).items()}
    assert names == {name: default for name, (default, _) in defaults_of(NgramOptions).items()}

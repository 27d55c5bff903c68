"""Each tool's parser, its dataclass, and the Python function have the same options."""

import dataclasses
import importlib
import inspect

import pytest

import espnet_bayeslm
from espnet_bayeslm.bin.bayeslm import TOOLS as NAMES
from espnet_bayeslm.bin.ngram import NgramOptions
from espnet_bayeslm.bin.rescore import RescoreCommand
from espnet_bayeslm.bin.train import TrainOptions, train
from espnet_bayeslm.ngram.build import build_ngram
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.utils.options import described_fields, option_name, options_from

# of all tools but lm_train, whose options are ESPnet's
TOOLS = {
    name: importlib.import_module(f"espnet_bayeslm.bin.{name}").TOOL
    for name in NAMES
    if name != "lm_train"
}
OF_THE_PARSER = {"help", "log_level"}
# Field -> option, where their names differ
RENAMED = {"lms": "lm", "ngrams": "ngram", "source": "from", "train_texts": "train_text"}
RENAMED |= {"subtract_lms": "subtract_lm", "subtract_weights": "subtract_weight"}


def default_of(field):
    """Return a field's default as the parser has it."""
    if field.default is dataclasses.MISSING:
        return None
    return [] if field.default == () else field.default


@pytest.mark.parametrize("tool", TOOLS)
def test_the_parser_has_the_fields_of_the_dataclass(tool):
    fields = {option_name(field): field for field in described_fields(TOOLS[tool].options)}
    assert {f.name: name for name, f in fields.items() if f.name != name}.items() <= RENAMED.items()
    actions = {
        (action.option_strings or [action.dest])[-1].lstrip("-"): action
        for action in TOOLS[tool].parser()._actions
        if action.dest not in OF_THE_PARSER
    }
    if "config" not in fields:  # else it is an option of ESPnet's training
        actions.pop("config")
    assert set(actions) == set(fields)
    for name, action in actions.items():
        field = fields[name]
        assert action.help == field.metadata["help"] and action.default == default_of(field)
        assert action.choices == field.metadata["choices"]
        required = field.default is dataclasses.MISSING
        assert action.required == required or not action.option_strings


@pytest.mark.parametrize("tool", TOOLS)
def test_options_that_are_not_given_are_the_defaults_of_the_dataclass(tool):
    cls = TOOLS[tool].options
    parser, given = TOOLS[tool].parser(), {"output": "x"} if tool == "lattice" else {}
    required = [f for f in described_fields(cls) if f.default is dataclasses.MISSING]
    given.update({f.name: (f.metadata["choices"] or "x")[0] for f in required})
    placed = {f.name for f in required if f.metadata["positional"]}
    words = [given[name] for name in placed]
    words += [f"--{name}={value}" for name, value in given.items() if name not in placed]
    found = options_from(cls, vars(parser.parse_args(words)))
    for field in described_fields(cls):
        value = getattr(found, field.name)
        name = field.name
        assert str(value) == given[name] if name in given else value == default_of(field)


def of_signature(function):
    return {
        name: (p.default, p.annotation)
        for name, p in inspect.signature(function).parameters.items()
    }


def of_dataclass(cls):
    return {
        field.name: (
            inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            field.type,
        )
        for field in dataclasses.fields(cls)
    }


def test_rescoring_in_python_has_the_options_of_the_tool():
    found, expected = of_signature(espnet_bayeslm.rescore), of_dataclass(RescoreOptions)
    # Python has lists and references, the tool their files
    assert found.keys() - expected.keys() == {"lists", "tune", "refs", "device"}
    assert (
        expected.items() <= found.items()
        and expected.items() <= of_dataclass(RescoreCommand).items()
    )
    only_files = "nbest nbest_format nbest_size output tune_ref ref lmwt word_penalty"
    only_files = {*only_files.split(), "token_scores", "merge", "ngpu", "train_texts"}
    only_files |= {"engine", "workers", "engine_conf"}
    assert of_dataclass(RescoreCommand).keys() - expected.keys() == only_files
    lines = [line.strip() for line in espnet_bayeslm.rescore.__doc__.splitlines()]
    for field in described_fields(RescoreOptions):
        assert f"{field.name}: {field.metadata['help']}" in lines
    assert RescoreOptions().max_oov_rate == 0.2


def test_training_in_python_has_the_options_of_the_tool():
    assert of_signature(train) == of_dataclass(TrainOptions)


def test_the_ngram_tool_has_the_arguments_of_the_function():
    names = {name: default for name, (default, _) in of_signature(build_ngram).items()}
    assert names == {name: default for name, (default, _) in of_dataclass(NgramOptions).items()}

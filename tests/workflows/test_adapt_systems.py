"""Command lines of an adaptation: who reads which text, and what each score depends on."""

import pytest

from espnet_bayeslm.workflows.adapt_systems import Plan
from espnet_bayeslm.workflows.commands import TUNED_FIRST_PASS

CONTEXT = {"context": "previous", "recording_of": "(.)"}


def options(words):
    """{option: values} of a command line."""
    found = {}
    for name, value in zip(words[1::2], words[2::2], strict=True):
        found.setdefault(name.removeprefix("--"), []).append(value)
    return found


@pytest.fixture
def plan(tmp_path):
    return Plan(
        tmp_path,
        "hf:lm",
        ["lora", "bayes_lora"],
        parts=3,
        base="hf:base",
        others=["exp/mine"],
        ngrams=["a.arpa"],
        counting={"unit": "char", "ignore_words": "noise", "normalize": "lower"},
        context=CONTEXT,
    )


def test_an_adapter_learns_all_parts_but_one_and_is_measured_on_this_one(plan):
    for config in plan.configs:
        steps = plan.adapters(config)
        for part, step in enumerate(steps, 1):
            ((tool, *_),) = step.commands
            given = options(step.commands[0])
            assert tool == "train" and given["from"] == ["hf:lm"]
            assert given["train_text"] == [f"{plan.folder}/data/adapt{part}.txt"]
            assert given["valid_text"] == [f"{plan.folder}/data/valid{part}.txt"]
            assert given["exp"] == [str(plan.exp(config, part))]
            assert given["patience"] == ["0"] and given["context"] == ["256"]
        assert len(steps) == 3


@pytest.mark.parametrize("config", [None, "lora"])
def test_weights_and_scores_are_of_lms_that_did_not_see_the_lists(plan, config):
    """Nothing that measures reads a training text, and adapters are named for each utterance."""
    measuring = plan.measuring(config)
    system = next(s for s in plan.systems("lora") if s.config == config)
    for step in (measuring, plan.rescoring(system)):
        given = options(step.commands[0])
        # all of them count, not only the one that gives its name
        expected = [] if config is None else [plan.exp("lora", part) for part in (1, 2, 3)]
        assert step.reads == expected
        assert not any(
            "adapt" in value for name in ("text", "nbest") for value in given.get(name, ())
        )
        assert given.get("utt2lm") == (None if config is None else [str(plan.utt2lm("lora"))])
        assert given["lm"][1:] == ["exp/mine"] and given["ngram"] == ["a.arpa"]
        # a part's adapter gives its name; the one of all references is not there yet
        assert given["lm"][0] == ("hf:lm" if config is None else str(plan.exp("lora", 1)))
        assert given.get("base") == (["hf:base"] if config is None else None)
    assert options(measuring.commands[0])["text"] == [f"{plan.folder}/data/tune.text"]


def test_lists_are_rescored_in_folds_with_all_that_counts(plan):
    for system in plan.systems("lora"):
        given = options(plan.rescoring(system).commands[0])
        assert given["folds"] == ["5"]
        assert given["nbest"] == [f"{plan.folder}/data/tune.jsonl"]
        assert given["tune_ref"] == [f"{plan.folder}/data/tune.ref"]
        assert given["weights"] == [str(plan.mixture(system.config).weights)]
        assert given.get("context") == (["previous"] if system.in_context else None)
        assert given["normalize"] == ["lower"] and given["unit"] == ["char"]


def test_the_control_is_tuned_without_the_lm_as_it_is(plan):
    systems = plan.systems("bayes_lora")
    score, report = map(options, plan.evaluation(systems).commands)
    names = [value.split("=")[0] for value in score["hyp"]]
    assert names == [TUNED_FIRST_PASS, "as it is", "as it is, in context", "adapted, in context"]
    assert score["hyp"][0] == f"{TUNED_FIRST_PASS}={plan.rescored(systems[0])}/text_without_lm"
    for value, system in zip(score["hyp"][1:], systems, strict=True):
        assert value == f"{system.name}={plan.rescored(system)}/text"
    assert score["ref"] == report["ref"] == [f"{plan.folder}/data/tune.ref"]
    assert score["unit"] == ["char"] and score["ignore_words"] == ["noise"]

"""Digests of pretrained LMs: another function has another digest, and the same function the same.

Scores in a cache, finished blocks of a stopped run, weights of components and the base of an
adapter are found by them.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from peft import LoraConfig
from tiny_models import FAMILIES, write_adapter, write_model
from transformers import AutoModelForCausalLM as Auto
from transformers import AutoTokenizer

from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.pretrained.adapted import AdaptedLM, vocabulary
from espnet_bayeslm.pretrained.causal_lm import digest_of_model, load_causal_lm
from espnet_bayeslm.utils.errors import InputError

WORDS = [["so", "we", "could", "put", "the", "remote", "on", "the", "table"]]


def component(folder, cache=None):
    """Return the component of an LM, and its scores of a sentence."""
    options = ComponentOptions(lms=[f"hf:{folder}"], text_form="as_is", cache=cache)
    (found,) = load_components(options)
    return found, found.scorer.word_scores(WORDS)[0].log_probs


def edited(file, edit):
    """Change a JSON file."""
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def other_rows(folder):
    """Change weights beyond the first thousands."""
    model = Auto.from_pretrained(folder)
    with torch.no_grad():
        model.get_output_embeddings().weight[260:] *= 1.5
    model.save_pretrained(folder)


def other_theta(folder):
    def edit(conf):
        conf.get("rope_parameters", conf)["rope_theta"] = 50.0

    edited(folder / "config.json", edit)


def without_merges(folder):
    edited(folder / "tokenizer.json", lambda content: content["model"]["merges"].clear())


def other_parts(folder):
    def edit(content):
        split = {"type": "Split", "pattern": {"String": "o"}, "behavior": "Isolated"}
        parts = [{**split, "invert": False}, content["pre_tokenizer"]]
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}

    edited(folder / "tokenizer.json", edit)


def other_case(folder):
    def edit(content):
        content["normalizer"] = {"type": "Replace", "pattern": {"String": "t"}, "content": "s"}

    edited(folder / "tokenizer.json", edit)


def other_alpha(folder):
    edited(folder / "adapter_config.json", lambda conf: conf.update(lora_alpha=64))


BASES = [other_rows, other_theta, without_merges, other_parts, other_case]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folder of a base and of an adapter."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "base")
    write_adapter(folder / "base", folder / "adapter", LoraConfig(r=2, target_modules=["q_proj"]))
    return folder


@pytest.mark.parametrize("change", [*BASES, other_alpha], ids=lambda change: change.__name__)
def test_a_cache_returns_the_scores_of_the_lm_that_is_given(models, tmp_path, change):
    source = models / ("adapter" if change is other_alpha else "base")
    first, before = component(source, tmp_path / "cache")
    shutil.copytree(source, tmp_path / "other")
    change(tmp_path / "other")
    other, expected = component(tmp_path / "other")
    assert abs(before.sum() - expected.sum()) > 1e-3, "the change was to be one of the scores"
    assert other.fingerprint != first.fingerprint
    np.testing.assert_array_equal(component(tmp_path / "other", tmp_path / "cache")[1], expected)
    np.testing.assert_array_equal(component(source, tmp_path / "cache")[1], before)


@pytest.mark.parametrize("change", BASES, ids=lambda change: change.__name__)
def test_an_adapter_refuses_another_base(models, tmp_path, change):
    shutil.copytree(models / "base", tmp_path / "base")
    size = len(vocabulary(AutoTokenizer.from_pretrained(tmp_path / "base")))
    conf = {"model": f"hf:{tmp_path / 'base'}", "lora": {"r": 2}}
    conf["fingerprint"] = AdaptedLM(size, **conf).fingerprint
    AdaptedLM(size, **conf)
    change(tmp_path / "base")
    with pytest.raises(InputError, match="has changed since the adapter was trained"):
        AdaptedLM(size, **conf)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_every_buffer_and_every_option_counts(family, tmp_path, monkeypatch):
    """Any one value of any one of them."""
    lm = load_causal_lm(write_model(tmp_path / "lm", family))
    model, rng = lm.model, np.random.default_rng(0)
    model.register_buffer("scale", torch.ones(3))
    known = [digest_of_model(model, lm.tokenizer)]
    for value in {id(v): v for v in model.state_dict(keep_vars=True).values()}.values():
        flat = value.detach().view(-1)
        place = rng.integers(len(flat))
        flat[place] = torch.nextafter(flat[place], torch.tensor(torch.inf))
        known.append(digest_of_model(model, lm.tokenizer))
    model.register_buffer("count", torch.tensor(3))
    known.append(digest_of_model(model, lm.tokenizer))
    model.count.add_(1)
    known.append(digest_of_model(model, lm.tokenizer))
    for name in ("bos_token", "eos_token", "unk_token"):
        setattr(lm.tokenizer, name, "the")
        known.append(digest_of_model(model, lm.tokenizer))
    options = dict(rms_norm_eps=1e-3, hidden_act="relu", activation_function="silu")
    options |= dict(layer_norm_eps=1e-3, layer_norm_epsilon=1e-3, sliding_window=5)
    for name, value in options.items():
        if hasattr(model.config, name):
            setattr(model.config, name, value)
            known.append(digest_of_model(model, lm.tokenizer))
    # of a configuration that has no defaults, all options count
    monkeypatch.setattr(type(model.config), "has_no_defaults_at_init", True, raising=False)
    known.append(digest_of_model(model, lm.tokenizer))
    assert len(set(known)) == len(known)


def test_the_place_and_the_precision_of_files_do_not_count(models, tmp_path):
    """Float32 and bfloat16 files of the same values; paths and versions that files name."""
    model = Auto.from_pretrained(models / "base", dtype=torch.bfloat16)
    folders = tmp_path / "half", tmp_path / "whole"
    for folder, dtype in zip(folders, (torch.bfloat16, torch.float32), strict=True):
        shutil.copytree(models / "base", folder)
        model.to(dtype).save_pretrained(folder)
    more = {"transformers_version": "4.0.0", "_name_or_path": "elsewhere"}
    edited(folders[0] / "config.json", lambda conf: conf.update(more))
    half, whole = map(load_causal_lm, folders)
    assert half.fingerprint == whole.fingerprint
    # batches of before do not change a tokenizer
    whole.tokenizer(["so we", "so"], truncation=True, max_length=4)
    assert digest_of_model(whole.model, whole.tokenizer) == half.fingerprint
    shutil.copytree(models / "adapter", tmp_path / "adapter")
    shutil.copytree(models / "base", tmp_path / "moved")
    more = {"base_model_name_or_path": str(tmp_path / "moved"), "peft_version": "0.0.0"}
    edited(tmp_path / "adapter/adapter_config.json", lambda conf: conf.update(more))
    adapters = [load_causal_lm(folder / "adapter") for folder in (models, tmp_path)]
    assert adapters[0].fingerprint == adapters[1].fingerprint

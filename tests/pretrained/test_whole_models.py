"""Models and adapters are read whole or not at all: weights, tokens, files, bases elsewhere."""

import argparse
import dataclasses
import functools
import json
import shutil
import sys
import types

import numpy as np
import pytest
import torch
from peft import (
    AdaLoraConfig,
    IA3Config,
    LoraConfig,
    TrainableTokensConfig,
    VeraConfig,
    get_peft_model,
)
from pretrained.tiny_models import FAMILIES, SMALL, write_adapter, write_model
from safetensors.torch import load_file, save_file
from tiny_training import words
from transformers import AutoConfig, AutoTokenizer
from transformers import AutoModelForCausalLM as Auto

import espnet_bayeslm
from espnet_bayeslm.bin import export
from espnet_bayeslm.bin import train as bin_train
from espnet_bayeslm.loading.component_options import ComponentOptions, SubtractOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.loading.experiment import load_state
from espnet_bayeslm.pretrained import causal_lm
from espnet_bayeslm.pretrained.adapted import AdaptedLM
from espnet_bayeslm.pretrained.adapters import adapter_conf, write_start
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.recognisers.espnet_asr import BeamSearch
from espnet_bayeslm.training.launch import check_decoding
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_yaml

WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
IDS = torch.tensor([[5, 9, 7, 3]])
NEW = ["[hum]", "[door]", "[bell]"]
LORA = functools.partial(LoraConfig, r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")


def of(family, **options):
    """Function from a vocabulary's size to a tiny configuration of a family of transformers."""
    layers = dict.fromkeys(("n_layer", "n_layers", "num_layers"), 2)
    heads = dict.fromkeys(("n_head", "n_heads", "num_heads"), 2)
    more = {"intermediate_size": 24, "head_dim": 8, "rotary_dim": 4, "state_size": 4}
    sizes = {**SMALL, **layers, **heads, **more, "n_embd": 16, "d_model": 16, "pad_token_id": 0}
    sizes.update(num_key_value_heads=1, attention_types=[[["global", "local"], 1]])
    known = AutoConfig.for_model(family)
    sizes = {name: size for name, size in sizes.items() if hasattr(known, name)}
    sizes.pop("head_dim", None) if family == "falcon" else None
    return lambda v: AutoConfig.for_model(family, vocab_size=v, **{**sizes, **options})


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("whole") / "base")


@pytest.fixture
def changed(base, tmp_path):
    """Function that copies the base, or another folder, with other weights."""

    def change(edit, folder=base, name=WEIGHTS):
        copy = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder, copy)
        state = {k: v.clone() for k, v in edit(load_file(copy / name)).items()}
        save_file(state, copy / name, metadata={"format": "pt"})
        return copy

    return change


def without(part):
    return lambda state: {name: v for name, v in state.items() if part not in name}


def renamed(old, new):
    return lambda state: {name.replace(old, new, 1): v for name, v in state.items()}


def narrower(state):
    name = "model.layers.1.mlp.up_proj.weight"
    return {**state, name: state[name][:, :8]}


def message(source, **options):
    with pytest.raises(InputError) as caught:
        load_causal_lm(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "edit, expected",
    [
        (without("lm_head"), "1 weight is not in the file (the first: lm_head.weight)"),
        (without("layers.1"), "9 weights are not in the file (the first: model.layers.1.input_lay"),
        (renamed("", "module."), "21 weights are not in the file (the first: lm_head.weight), and"),
        (renamed("", "module."), "no place in the model (the first: module.lm_head.weight)"),
        (renamed("layers.1", "layers.7"), "(the first: model.layers.7.input_layernorm.weight)"),
        (narrower, "layers.1.mlp.up_proj.weight has [24, 8] in the file, expected [24, 16]"),
    ],
)
@pytest.mark.parametrize("form", ["safetensors", "bin", "shards"])
def test_weights_that_do_not_fit(changed, edit, expected, form):
    folder = changed(edit)
    if form == "bin":
        torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
        (folder / WEIGHTS).unlink()
    if form == "shards":
        state, files = load_file(folder / WEIGHTS), {}
        for number, part in enumerate(np.array_split(sorted(state), 2)):
            name = f"model-{number}.safetensors"
            save_file({k: state[k] for k in part}, folder / name, metadata={"format": "pt"})
            files.update(dict.fromkeys(part, name))
        (folder / WEIGHTS).unlink()
        index = {"metadata": {}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert expected in message(folder)


CASES = [
    *((name, family) for name, family in FAMILIES.items()),
    *((name, of(name)) for name in ("gemma", "gemma2", "gemma3_text", "qwen3", "phi3", "gpt_neo")),
    *((name, of(name)) for name in ("falcon", "mpt", "bloom", "stablelm", "gptj", "mamba")),
]


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("name, family", CASES, ids=[name for name, _ in CASES])
def test_saved_models_are_read_whole(tmp_path, name, family, ties):
    def config(size):
        made = family(size)
        made.tie_word_embeddings = ties
        return made

    folder = write_model(tmp_path / "one", config)
    expected = load_causal_lm(folder)
    for form in ("shards", "bin"):
        other = tmp_path / form
        shutil.copytree(folder, other)
        (other / WEIGHTS).unlink()
        if form == "bin":  # tied weights are in it twice
            torch.save(expected.model.state_dict(), other / "pytorch_model.bin")
        else:
            expected.model.save_pretrained(other, max_shard_size="10KB")
            assert len(list(other.glob("model-*.safetensors"))) > 1
        found = load_causal_lm(other)
        assert found.fingerprint == expected.fingerprint
        assert torch.equal(found.model(IDS).logits, expected.model(IDS).logits)


@pytest.mark.parametrize(
    "family, names",
    [
        ("llama", ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
        ("gpt2", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("gpt_neox", [f"gpt_neox.layers.0.attention.{n}bias" for n in ("", "masked_")]),
        (of("gpt_neo"), [f"transformer.h.0.attn.attention.{n}bias" for n in ("", "masked_")]),
        (of("gptj"), ["transformer.h.1.attn.bias", "transformer.h.1.attn.masked_bias"]),
    ],
)
def test_what_older_files_hold_and_models_compute(tmp_path, changed, family, names):
    folder = write_model(tmp_path / "base", family)
    more = dict.fromkeys(names, torch.ones(1, 1, 4, 4))
    old = changed(lambda state: {**state, **more}, folder)
    assert load_causal_lm(old).fingerprint == load_causal_lm(folder).fingerprint
    beyond = changed(lambda state: {**state, "value_head.weight": torch.ones(1, 16)}, folder)
    assert "1 weight of the file has no place in the model (the first: value" in message(beyond)


def write_gguf(folder, path, *, without=(), more=()):
    """Write a tiny llama as a GGUF file, without some tensors and with some more."""
    gguf = pytest.importorskip("gguf", reason="needs gguf")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = gguf.GGUFWriter(str(path), "llama")
    sizes = {"block_count": 2, "context_length": 64, "embedding_length": 16, "head_count": 2}
    sizes.update(feed_forward_length=24, head_count_kv=2, layer_norm_rms_eps=1e-6)
    sizes.update(vocab_size=len(tokens), bos_token_id=0, eos_token_id=0, tokenizer_model="gpt2")
    sizes.update(token_list=tokens, token_types=[1] * len(tokens))
    sizes.update(token_merges=[" ".join(pair) for pair in model["merges"]])
    for name, size in sizes.items():
        getattr(writer, f"add_{name}")(size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, value in load_file(folder / WEIGHTS).items():
        own = f"{names.get_name(name.removesuffix('.weight'))}.weight"
        if own not in without:
            writer.add_tensor(own, value.numpy())
    for name in more:
        writer.add_tensor(name, np.ones((16, 16), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_files_are_read_whole(base, tmp_path, monkeypatch):
    whole = write_gguf(base, tmp_path / "whole.gguf", more=["rope_freqs.weight"])
    reader, read = sys.modules["gguf"].GGUFReader, []
    begin = reader.__init__
    monkeypatch.setattr(reader, "__init__", lambda *args: read.append(args) or begin(*args))
    assert np.isfinite(espnet_bayeslm.load(whole, text_form="lower").score("so we could"))
    assert len(read) == 1  # by all who need a part of it
    lacks = write_gguf(base, tmp_path / "lacks.gguf", without=["blk.1.ffn_up.weight"])
    assert "1 weight is not in the file (the first: model.layers.1.mlp.up_proj" in message(lacks)
    more = write_gguf(base, tmp_path / "more.gguf", more=["blk.7.attn_q.weight"])
    assert "1 weight of the file has no place in the model (the first: blk.7" in message(more)
    (tmp_path / "lfs.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "a pointer of git-lfs" in message(tmp_path / "lfs.gguf")
    # a transformers that does not tell which tensors it reads
    monkeypatch.setitem(sys.modules, "transformers.modeling_gguf_pytorch_utils", None)
    assert causal_lm._unread_tensors(None, more) == []


def test_training_and_export_need_a_whole_base(changed, tmp_path, fails):
    source = f"hf:{changed(without('lm_head'))}"
    text = tmp_path / "text"
    text.write_text("so we could\n")
    given = {"from": source, "config": "lora", "train_text": text, "valid_text": text}
    expected = "1 weight is not in the file (the first: lm_head.weight)"
    assert expected in fails(bin_train.main, words(**given, exp=tmp_path / "exp"))
    command = words(lm=source, format="hf", output=tmp_path / "out")
    assert expected in fails(export.main, command)
    assert not (tmp_path / "exp").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "edit, expected",
    [
        (renamed("model.layers", "model.language_model.layers"), "4 weights are not in the file"),
        (renamed("layers.1", "layers.7"), "layers.7.self_attn.q_proj.lora_A.weight"),
        (
            lambda s: {**s, **renamed("layers.1", "layers.7")(s)},
            "2 weights of the file have no place",
        ),
        (without("layers.1.self_attn.q_proj.lora_B"), "1 weight is not in the file"),
        (lambda s: {n: v[:1] if "lora_A" in n else v for n, v in s.items()}, "[1, 16] in the file"),
    ],
)
def test_adapters_whose_names_do_not_fit(base, tmp_path, changed, edit, expected, fails):
    write_adapter(base, tmp_path / "adapter")
    folder = changed(edit, tmp_path / "adapter", ADAPTER)
    assert expected in message(folder)
    (tmp_path / "text").write_text("so we could\n")
    given = dict.fromkeys(("train_text", "valid_text"), tmp_path / "text")
    command = words(**given, config="lora", exp=tmp_path / "exp", **{"from": folder})
    assert expected in fails(bin_train.main, command)
    assert not (tmp_path / "exp").exists()


ADAPTERS = {
    "lora": LORA(),
    "dora": LORA(use_dora=True),
    "modules": LORA(modules_to_save=["lm_head"]),
    "embedding": LORA(target_modules=["q_proj", "embed_tokens"]),
    "tokens": LORA(trainable_token_indices=[3, 4]),
    "adalora": AdaLoraConfig(
        target_modules=["q_proj"], total_step=9, init_r=2, task_type="CAUSAL_LM"
    ),
    "ia3": IA3Config(target_modules=["k_proj"], feedforward_modules=[], task_type="CAUSAL_LM"),
    "vera": VeraConfig(r=2, target_modules=["q_proj"], save_projection=False),
}


@pytest.mark.parametrize("config", ADAPTERS.values(), ids=ADAPTERS)
def test_adapters_of_peft_are_read_whole(base, tmp_path, config):
    torch.manual_seed(0)
    theirs = get_peft_model(Auto.from_pretrained(base), config)
    with torch.no_grad():
        for value in theirs.parameters():
            if value.requires_grad:
                value.add_(torch.randn_like(value) / 10)
    theirs.save_pretrained(tmp_path / "adapter")
    found = load_causal_lm(tmp_path / "adapter").model(IDS).logits
    assert torch.equal(found, theirs.eval()(IDS).logits)
    assert not torch.equal(found, load_causal_lm(base).model(IDS).logits)


def test_an_experiment_s_own_checkpoint_is_whole(base, tmp_path, changed):
    """Both ways, by the names of the adapter's tensors."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    conf = {"model": f"hf:{base}", "lora": {"r": 2}}
    lm = BayesLanguageModel(AdaptedLM(len(tokenizer), **conf), len(tokenizer))
    state = lm.state_dict()
    config = {"lm": "pretrained", "lm_conf": conf, "token_type": "hugging_face", "model": "lm"}
    config["token_list"] = list(map(str, range(len(tokenizer))))
    write_yaml(tmp_path / "config.yaml", config)
    path, name = tmp_path / "valid.loss.ave.pth", next(name for name in state if "lora_B" in name)
    torch.save(state, path)
    espnet_bayeslm.load(tmp_path)
    for other, expected in [
        ({n: v for n, v in state.items() if n != name}, "1 tensors of the model are not in it"),
        ({**state, name.replace("layers.0", "layers.7"): state[name]}, "of it have no place in"),
        ({**state, name: state[name] * torch.nan}, "weights are not finite"),
    ]:
        torch.save(other, path)
        with pytest.raises(InputError, match=expected):
            espnet_bayeslm.load(tmp_path)
    torch.save(state, path)
    expected = espnet_bayeslm.load(tmp_path).score("so we")
    conf.update(model="hf:/no/where", fingerprint=lm.lm.fingerprint)
    write_yaml(tmp_path / "config.yaml", config)
    with pytest.raises(InputError, match="lm_conf: model names the base model /no/where, which is"):
        espnet_bayeslm.load(tmp_path)
    assert espnet_bayeslm.load(tmp_path, base=str(base)).score("so we") == expected
    other = write_model(tmp_path / "other", scale=7.0)
    with pytest.raises(InputError, match="has changed since the adapter was trained"):
        espnet_bayeslm.load(tmp_path, base=f"hf:{other}")


def with_new_tokens(base, folder, config, *, ties=False, **saving):
    """Write an adapter with `NEW` tokens, and return peft's model."""
    torch.manual_seed(0)
    tokenizer, model = AutoTokenizer.from_pretrained(base), Auto.from_pretrained(base)
    tokenizer.add_tokens(NEW)
    model.resize_token_embeddings(len(tokenizer))
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for value in adapted.parameters():
            if value.requires_grad:
                value.add_(torch.randn_like(value))
    adapted.save_pretrained(folder, **saving)
    tokenizer.save_pretrained(folder)
    return adapted.eval()


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("how", ["resized", "modules", "tokens", "tokens_alone"])
def test_adapters_with_tokens_of_their_own(tmp_path, how, ties):
    base = write_model(tmp_path / "base", of("llama", tie_word_embeddings=ties))
    new = list(range(298, 301))
    config = {
        "resized": LORA(),
        "modules": LORA(modules_to_save=["embed_tokens", "lm_head"]),
        "tokens": LORA(trainable_token_indices=new),
        "tokens_alone": TrainableTokensConfig(token_indices=new, task_type="CAUSAL_LM"),
    }[how]
    theirs = with_new_tokens(base, tmp_path / "adapter", config)
    if how == "tokens_alone" and not ties:  # peft saves no rows of the output projection
        assert "has no weights for the others" in message(tmp_path / "adapter")
        return
    lm = espnet_bayeslm.load(tmp_path / "adapter", text_form="as_is")
    assert lm.tokens[-3:] == NEW
    ids = torch.tensor([[5, 300, 9, 299]])
    torch.testing.assert_close(lm.model(ids).logits, theirs(ids).logits)
    assert np.isfinite(lm.score("so [hum] we could [bell]"))
    options = {"lms": [tmp_path / "adapter"], "text_form": "as_is"}
    (component,) = load_components(ComponentOptions(**options))
    (scores,) = component.scorer.word_scores([["so", "[hum]", "we", "could", "[bell]"]])
    assert scores.log_probs.sum() == pytest.approx(lm.score("so [hum] we could [bell]"), abs=1e-4)
    expected = "neither lora_A nor lora_B" if how == "resized" else "where plain LoRA was expected"
    with pytest.raises(InputError, match=expected):
        adapter_conf(tmp_path / "adapter")
        write_start(tmp_path / "adapter", tmp_path / "start.pth")


def test_new_tokens_without_weights(base, tmp_path):
    saving = {"save_embedding_layers": False}
    with_new_tokens(base, tmp_path / "lora", LORA(), **saving)
    said = message(tmp_path / "lora")
    assert "tokenizer has 301 tokens, and the model's embedding 298 rows" in said
    config = LORA(trainable_token_indices=[298, 299, 300])
    with_new_tokens(base, tmp_path / "rows", config, **saving)
    expected = "trained with 301 tokens, its base's embedding has 298 rows"
    assert expected in message(tmp_path / "rows")


@pytest.mark.parametrize("special", [False, True])
def test_a_tokenizer_beyond_the_embedding(base, tmp_path, special):
    """Marks that no text has need no row; words do."""
    folder = tmp_path / "more"
    shutil.copytree(base, folder)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(["harbour", "lantern"], special_tokens=special)
    tokenizer.save_pretrained(folder)
    if not special:
        assert "tokenizer has 300 tokens, and the model's embedding 298 rows" in message(folder)
        return
    lm = espnet_bayeslm.load(folder, text_form="lower")
    assert lm.score("so we") == espnet_bayeslm.load(base, text_form="lower").score("so we")
    with pytest.raises(InputError, match="the text has token 298, and the LM's embedding 298 rows"):
        lm.score("so harbour")


def test_a_base_that_stands_elsewhere(base, tmp_path):
    moved, adapter = tmp_path / "moved", tmp_path / "adapter"
    shutil.copytree(base, tmp_path / "base")
    write_adapter(tmp_path / "base", adapter)
    expected = espnet_bayeslm.load(adapter, text_form="lower").score("so we")
    (tmp_path / "base").rename(moved)
    said = message(adapter)
    for part in (adapter, tmp_path / "base", "base_model_name_or_path", "--base hf:FOLDER"):
        assert str(part) in said
    given = {"text_form": "lower", "base": f"hf:{moved}"}
    assert espnet_bayeslm.load(adapter, **given).score("so we") == expected
    (component,) = load_components(ComponentOptions(lms=[adapter], **given))
    found = component.scorer.word_scores([["so", "we"]])[0].log_probs.sum()
    assert found == pytest.approx(expected, abs=1e-4)
    for lms, subtracted in [([adapter], [moved]), ([moved], [adapter])]:
        pair = SubtractOptions(lms=lms, subtract_lms=subtracted, subtract_weights=[-1.0], **given)
        assert len(load_components(pair)) == 2
    with pytest.raises(InputError, match="no such folder"):
        espnet_bayeslm.load(adapter, base="hf:/no/where")
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert "names no base model" in message(adapter)
    assert espnet_bayeslm.load(adapter, **given).score("so we") == expected
    with pytest.raises(InputError, match="--base, and no LM is an adapter"):
        load_components(ComponentOptions(lms=[moved], **given))


def test_weights_and_logits_that_are_not_finite(base, changed):
    def edit(state):
        state["model.layers.0.mlp.up_proj.weight"][0, 0] = torch.nan
        state["model.norm.weight"][0] = torch.inf
        return state

    expected = "weights are not finite (the first: model.layers.0.mlp.up_proj.weight)"
    assert expected in message(changed(edit))
    huge = espnet_bayeslm.load(base, text_form="lower")
    with torch.no_grad():
        huge.model.lm_head.weight.fill_(3e38)
    with pytest.raises(InputError, match="logits are not finite"):
        huge.score("so we could")
    with torch.no_grad():
        huge.model.lm_head.weight[3, 3] = torch.nan
    with pytest.raises(InputError, match=r"weights are not finite \(the first: lm_head.weight"):
        dataclasses.replace(huge).score("so we could")


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json", "config.json"])
def test_pointers_of_git_lfs(base, tmp_path, name):
    folder, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(base, folder)
    write_adapter(base, adapter)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / name).write_text(pointer)
    (adapter / ADAPTER).write_text(pointer)
    checkpoint = tmp_path / "valid.loss.ave.pth"
    checkpoint.write_text(pointer)
    with pytest.raises(InputError, match="pointer of git-lfs"):
        load_state(checkpoint)
    copy = tmp_path / "copy"
    shutil.copytree(adapter, copy)
    (copy / "adapter_config.json").write_text(pointer)
    for path in (folder / name, adapter / ADAPTER, copy / "adapter_config.json"):
        said = message(path.parent)
        assert str(path) in said and "pointer of git-lfs" in said and "git lfs pull" in said


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq"])
def test_quantised_bases(base, tmp_path, method):
    shutil.copytree(base, tmp_path / "base")
    config = tmp_path / "base" / "config.json"
    how = {"quant_method": method, "bits": 4, "load_in_4bit": True}
    content = {**json.loads(config.read_text()), "quantization_config": how}
    config.write_text(json.dumps(content))
    said = message(tmp_path / "base")
    assert f"quantised ({method})" in said and "GGUF" in said


def test_searches_of_espnet_take_no_pretrained_lm(base, tmp_path, fails):
    gguf = tmp_path / "lm.gguf"
    gguf.write_bytes(b"GGUF")
    asr = tmp_path / "asr"
    asr.mkdir()
    for name in ("config.yaml", "valid.acc.ave.pth"):
        (asr / name).write_text("{}\n")
    parser, program = argparse.ArgumentParser(), types.ModuleType("asr_inference")
    parser.add_argument("--lm_file")
    parser.add_argument("--lm_train_config")
    program.get_parser = lambda: parser
    for lm in (f"hf:{base}", gguf):
        said = fails(export.main, words(lm=lm, output=tmp_path / "out"))
        assert "tokens differ from the recogniser's" in said and "bayeslm rescore" in said
        with pytest.raises(InputError, match="tokens differ from the recogniser's"):
            BeamSearch(asr, lm=lm, lm_weight=0.3, ctc_weight=0.3, size=2)
        for option in ("--lm_file", "--lm_train_config"):
            with pytest.raises(InputError, match="tokens differ from the recogniser's"):
                check_decoding(program, [option, str(lm)])
    check_decoding(program, ["--lm_file", str(asr / "valid.acc.ave.pth")])

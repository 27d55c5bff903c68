"""Pretrained models, tokenizers and adapters that cannot be used: one line each, with a remedy."""

import json
import shutil
from unittest.mock import Mock

import pytest
from peft import IA3Config, LoraConfig, PromptTuningConfig
from pretrained.tiny_models import write_adapter, write_model
from torch.nn import Linear, ModuleList
from transformers import AutoModelForCausalLM, AutoTokenizer

import espnet_bayeslm
from espnet_bayeslm.pretrained import causal_lm
from espnet_bayeslm.pretrained.adapted import AdaptedLM, _layers, vocabulary
from espnet_bayeslm.pretrained.adapters import adapter_conf, write_start
from espnet_bayeslm.pretrained.causal_lm import (
    load_causal_lm,
    load_tokenizer,
)
from espnet_bayeslm.pretrained.text_forms import (
    Reader,
    TextForm,
    candidates,
    training_reader,
    training_readers,
)
from espnet_bayeslm.utils.errors import InputError


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("lms") / "base")


def edit(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "said, offline, asked, message",
    [
        ("You are trying to access a gated repo.", "0", [True, False], "gated, or does not exist"),
        ("We couldn't connect to the hub.", "0", [True, False], "the hub cannot be reached"),
        ("We couldn't connect to the hub.", "1", [True], "the hub cannot be reached"),
    ],
)
def test_the_hub_is_asked_where_there_is_no_copy(said, offline, asked, message, monkeypatch):
    calls = []

    def read(name, *, local_files_only, trust_remote_code):
        assert name == "organisation/model" and not trust_remote_code
        calls.append(local_files_only)
        raise OSError(f"{said}\nMore lines of advice.")

    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", read)
    with pytest.raises(InputError, match=message) as caught:
        load_tokenizer("hf:organisation/model")
    assert calls == asked and "\n" not in str(caught.value)


def test_a_tokenizer_without_places_in_the_text(base, monkeypatch):
    monkeypatch.setattr(causal_lm, "load_tokenizer", lambda _: object())
    with pytest.raises(InputError, match="does not say where tokens stand"):
        load_causal_lm(base)


def test_marks_and_forms_that_a_tokenizer_lacks(base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    with pytest.raises(InputError, match=r"^text_form upper: valid are as_is"):
        training_reader(tokenizer, "upper")
    with pytest.raises(InputError, match="--text_form upper: valid are auto, as_is"):
        candidates(tokenizer, "upper")
    tokenizer.bos_token = tokenizer.eos_token = None
    with pytest.raises(InputError, match="no token for special marks"):
        Reader(tokenizer, TextForm("lower", "special"))
    assert {reader.form.marks for reader in candidates(tokenizer, "auto")} == {"newline"}


def test_line_breaks_of_no_token_and_of_several():
    none, two = (Mock(return_value={"input_ids": ids}) for ids in ([], [1, 2]))
    none.bos_token_id = none.eos_token_id = None
    with pytest.raises(InputError, match="neither a line break nor a token for ends of text"):
        candidates(none, "auto")
    two.bos_token_id = two.eos_token_id = 3
    assert training_reader(two, "lower").start == [3]
    assert {reader.form.marks for reader in training_readers(two)} == {"special"}
    with pytest.raises(InputError, match=r"line break as 2 tokens.*text_form=lower,special,blank"):
        training_reader(two, "lower,newline")
    two.bos_token_id = two.eos_token_id = None
    with pytest.raises(InputError, match="neither one token of a line break nor one for an end"):
        training_readers(two)


def test_adapters_that_no_training_can_start_from(base, tmp_path):
    for number, (config, values, message) in enumerate(
        [
            (None, {"base_model_name_or_path": None}, "the adapter names no base model"),
            (None, {"peft_type": "NEW"}, r"none that the installed peft reads \(KeyError\('NEW'\)"),
            (
                IA3Config(target_modules=["k_proj"], feedforward_modules=[]),
                {},
                "with IA3",
            ),
            (LoraConfig(use_rslora=True, target_modules=["q_proj"]), {}, "with use_rslora"),
        ]
    ):
        folder = tmp_path / str(number)
        write_adapter(base, folder, config)
        edit(folder / "adapter_config.json", **values)
        with pytest.raises(InputError, match=message):
            adapter_conf(folder)
    prompt = PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    write_adapter(base, tmp_path / "prompt", prompt)
    with pytest.raises(InputError, match="virtual tokens are not read"):
        load_causal_lm(tmp_path / "prompt")
    (tmp_path / "prompt" / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match="none that the installed peft reads"):
        load_causal_lm(tmp_path / "prompt")
    folder = tmp_path / "last"
    write_adapter(base, folder)
    assert adapter_conf(folder)["model"].endswith(str(base))
    (folder / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"the adapter's weights cannot be read .* Restore the"):
        write_start(folder, tmp_path / "start.pth")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"found no adapter_model\.safetensors"):
        write_start(folder, tmp_path / "start.pth")
    assert not (tmp_path / "start.pth").exists()


def test_configurations_of_an_adapted_lm(base, tmp_path):
    size = len(vocabulary(AutoTokenizer.from_pretrained(base)))
    write_adapter(base, tmp_path / "adapter")
    checked = {"gradient_checkpointing": True, "uncertainty": {"lora_a@*": "bayes"}}
    for conf, message in [
        ({"model": None}, "lm_conf has no `model`"),
        ({"model": f"hf:{tmp_path}/adapter"}, "an adapter, where a base model was expected"),
        (checked, "gradient_checkpointing with random weights"),
        ({"lora": {"rank": 3}}, "expected a mapping of r, alpha, dropout"),
        ({"lora": {"dropout": 2}}, "dropout 2 is out of range"),
        ({"lora": {"target_modules": ["nothing"]}}, "nothing"),
        ({"uncertainty": {"ffn@1": "bayes"}}, "valid positions are lora_a"),
    ]:
        with pytest.raises(InputError, match=message):
            AdaptedLM(size, **{"model": f"hf:{base}", "lora": {"r": 2}, **conf})


def test_tokens_that_a_file_of_lines_cannot_hold():
    class Tokenizer(list):
        def convert_ids_to_tokens(self, ids):
            return [self[n] for n in ids]

    tokens = ["a", None, " b", "c\nd", "a", "Ġe"]
    lines = vocabulary(Tokenizer(tokens))
    assert lines == ["a", "<1:>", "<2:_b>", r"<3:c\nd>", "<4:a>", "Ġe"]


def test_a_model_without_a_list_of_layers(base):
    config = Mock(model_type="odd")
    config.get_text_config.return_value.num_hidden_layers = 2
    causal = Mock(config=config)
    causal.named_modules.return_value = [("layers", ModuleList([Linear(1, 1)]))]
    with pytest.raises(InputError, match="a model of the type odd has no list of layers"):
        _layers(causal)


@pytest.mark.parametrize("quantised", [False, True])
def test_an_error_of_the_loader_is_told(quantised, base, tmp_path, monkeypatch):
    """Where weights are quantised, a package may be missing that reads them."""
    folder = shutil.copytree(base, tmp_path / "lm")
    if quantised:
        edit(folder / "config.json", quantization_config={"quant_method": "odd"})
    monkeypatch.setattr(causal_lm, "QUANTISED", ("none",))

    def load(*_, **__):
        raise ImportError("a package is missing")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load)
    expected = "are quantised (odd)" if quantised else "a package is missing"
    assert expected in said_of(f"hf:{folder}")


def said_of(source, **options):
    with pytest.raises(InputError) as caught:
        espnet_bayeslm.load(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_base_is_given_for_adapters_alone_and_is_none_itself(base, tmp_path):
    adapter = tmp_path / "adapter"
    write_adapter(base, adapter)
    expected = "--base, and it is no adapter"
    assert expected in said_of(f"hf:{base}", base=f"hf:{base}")
    chained = tmp_path / "chained"
    shutil.copytree(adapter, chained)
    edit(chained / "adapter_config.json", base_model_name_or_path=str(adapter))
    experiment = tmp_path / "experiment"
    experiment.mkdir()
    (experiment / "config.yaml").write_text("lm: pretrained\n")
    expected = "an adapter, where a base model was expected"
    assert expected in said_of(chained)
    for other in (adapter, f"hf:{adapter}", experiment):
        assert expected in said_of(adapter, base=str(other))
        assert str(other).removeprefix("hf:") in said_of(adapter, base=str(other))


@pytest.mark.parametrize(
    "file, content, expected",
    [
        ("tokenizer.json", None, "tokenizers` library"),
        ("config.json", {"hidden_act": "nope"}, "its files cannot be read (KeyError('nope'))"),
        ("config.json", {"model_type": "nope"}, "Install a newer transformers"),
        ("config.json", {"quantization_config": {"quant_method": "nope"}}, "are quantised (nope)"),
    ],
)
def test_reasons_are_whole(base, tmp_path, file, content, expected):
    folder = tmp_path / "lm"
    shutil.copytree(base, folder)
    if content is None:
        (folder / file).unlink()
    else:
        edit(folder / file, **content)
    assert expected in said_of(f"hf:{folder}")


@pytest.mark.parametrize(
    "line, form",
    [
        ('text_form: "lower,special,blank"', "lower,special,blank"),
        ("text_form: 'lower'", "lower,newline,blank"),
        ("text_form: lower, special", "lower,special,blank"),
        ("text_form:", ""),
        ("", ""),
    ],
)
def test_forms_of_cards_that_people_have_edited(base, tmp_path, line, form):
    write_adapter(base, tmp_path / "adapter")
    (tmp_path / "adapter/README.md").write_text(f"---\n{line}\nlicense:\n---\n")
    lm = load_causal_lm(tmp_path / "adapter")
    assert lm.licence == ""
    assert (str(lm.reader.form) if lm.reader else "") == form

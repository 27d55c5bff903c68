"""Tests of linear layers with packed weights: they are the model's own, and only while used."""

import numpy as np
import pytest
import torch
from peft import LoraConfig
from tiny_models import write_adapter, write_model
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

import espnet_bayeslm
from espnet_bayeslm.kernels import plain
from espnet_bayeslm.pretrained import packed_linears
from espnet_bayeslm.pretrained.packed_linears import PackedLinears
from espnet_bayeslm.pretrained.pretrained_scorer import CausalTreeLM
from espnet_bayeslm.scoring.prefixes import PrefixSearch, TokenPrefix
from espnet_bayeslm.scoring.word_scores import END

SIZE = 160  # matrices of fewer than 2^14 elements are not packed


def is_packed(layer):
    """True if something else than the class computes the layer."""
    return "forward" in vars(layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_the_layers(dtype):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE, bias=False)).to(dtype)
    x = torch.randn(1, 9, SIZE).to(dtype)
    packed = PackedLinears(layers)
    with torch.no_grad():
        expected = layers(x)
        for _ in range(2):
            with packed.used():
                assert all(map(is_packed, layers))
                torch.testing.assert_close(layers(x), expected)
            assert not any(map(is_packed, layers))
    with pytest.raises(ZeroDivisionError), packed.used():
        1 / 0  # noqa: B018
    assert not any(map(is_packed, layers))


def test_what_is_left_as_it_is(monkeypatch):
    layers = nn.ModuleDict({"base": nn.Linear(SIZE, SIZE), "lora_A": nn.Linear(SIZE, SIZE)})
    hooked = nn.Linear(SIZE, SIZE)
    hooked.forward = own = lambda x: x
    layers["hooked"] = hooked
    with PackedLinears(layers, changing="lora_").used():
        assert [is_packed(layers[name]) for name in ("base", "lora_A")] == [True, False]
        assert hooked.forward is own
    with plain(), PackedLinears(layers).used():
        assert not is_packed(layers["base"])
    monkeypatch.setattr(packed_linears, "MOST_ELEMENTS", SIZE * SIZE)
    with PackedLinears(layers).used():
        assert not is_packed(layers["base"])


def test_steps_have_the_scores_of_whole_texts():
    config = LlamaConfig(
        vocab_size=150,
        hidden_size=SIZE,
        intermediate_size=2 * SIZE,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # away from uniform probabilities
        for parameter in model.parameters():
            parameter.mul_(2.0)
    lm = CausalTreeLM(model)
    tokens = [3, 1, 4, 1, 5]
    node, found = None, []
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        for token in tokens:
            node = TokenPrefix(PrefixSearch({}), None, token) if node is None else node.after(token)
            with lm.stepping(0):
                assert is_packed(model.lm_head)
                log_probs, (node.state,) = lm.step([node], 0)
            found.append(log_probs[0])
    torch.testing.assert_close(torch.stack(found), expected, atol=1e-4, rtol=1e-4)


def _merge(model):
    model.merge_adapter()


def _write_data(model):
    model.lm_head.weight.data.mul_(0.7)  # leaves the tensor's version as it is


def _replace_data(model):
    model.lm_head.weight.data = model.lm_head.weight.data * 0.7


def _replace_layer(model):
    torch.manual_seed(3)
    model.base_model.model.model.layers[0].mlp.down_proj = nn.Linear(2 * SIZE, SIZE)


def _replace_bias(model):
    layer = model.base_model.model.model.layers[0].mlp.down_proj
    layer.bias = nn.Parameter(torch.linspace(-3, 3, SIZE))


def _load(model):
    model.load_state_dict({k: 0.9 * v for k, v in model.state_dict().items()})


def _add_adapter(model):
    config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    model.add_adapter("second", config)
    model.set_adapter("second")


def _round(model):
    model.to(torch.bfloat16)


CHANGES = [_merge, _write_data, _replace_data, _replace_layer, _replace_bias, _load, _add_adapter]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """Return the folder of a causal LM with large layers, and of an adapter of it."""
    folder = tmp_path_factory.mktemp("lm")

    def config(size):
        options = {"mlp_bias": True, "num_hidden_layers": 1, "num_attention_heads": 4}
        sizes = {"hidden_size": SIZE, "intermediate_size": 2 * SIZE}
        return LlamaConfig(vocab_size=size, **sizes, **options)

    write_model(folder / "base", config, scale=2.0)
    lora = LoraConfig(r=2, target_modules=["q_proj", "up_proj"])
    write_adapter(folder / "base", folder / "adapter", lora)
    return f"hf:{folder}/adapter"


@pytest.mark.parametrize("change", [*CHANGES, _round])
def test_a_search_after_a_change_has_the_changed_weights(change, adapted):
    """Whatever changes them; the scores are those of whole sentences, which need no packing."""
    trained = espnet_bayeslm.load(adapted, text_form="lower,special,blank")
    scorer, words = trained.scorer, ["so", "we", "could"]

    def searched():
        state, found = scorer.begin(), []
        for word in [*words, END]:
            found += scorer.next_words([state], [word]).tolist()
            state = state if word == END else scorer.after(state, word)
        return found

    before = searched()
    with torch.no_grad():
        change(trained.model)
    found, expected = searched(), scorer.word_scores([words])[0].log_probs
    tolerance = 0.1 if change is _round else 1e-3
    assert found == pytest.approx(expected, abs=tolerance)
    if change not in (_merge, _round):
        assert before != pytest.approx(expected, abs=0.01)


def test_a_decoder_of_ctc_logits_after_a_change(adapted):
    """From one utterance to the next."""
    trained = espnet_bayeslm.load(adapted, text_form="lower,special,blank")
    labels, text = ["_", " ", *"abcdefghijklmnopqrstuvwxyz"], "so we could"
    decoder = espnet_bayeslm.build_ctcdecoder(
        labels, lms=[trained], blank="_", text_form="lower,special,blank"
    )
    logits = np.full((len(text), len(labels)), -30.0)
    logits[range(len(text)), [labels.index(letter) for letter in text]] = 0.0
    for change in (lambda _: None, _write_data, _merge):
        with torch.no_grad():
            change(trained.model)
        best = decoder.decode_beams(logits)[0]
        assert best.text == text
        assert best.log_prob == pytest.approx(trained.score(text), abs=1e-3)


def test_weights_that_stay_are_packed_once(monkeypatch):
    calls, layers = [], nn.Sequential(nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE))
    pack = packed_linears.product
    monkeypatch.setattr(packed_linears, "product", lambda w, *a: calls.append(w) or pack(w, *a))
    packed = PackedLinears(layers)
    for begins, count in ((False, 2), (True, 2), (True, 3), (False, 3)):
        if begins:
            packed.begin()
        with packed.used():
            assert len(calls) == count
        if begins:
            layers[1].weight.data[3, 4] += 1.0

"""Tests of linear layers with packed weights: they are the model's own, and only while used."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from espnet_bayeslm.kernels import plain
from espnet_bayeslm.pretrained import packed_linears
from espnet_bayeslm.pretrained.packed_linears import PackedLinears
from espnet_bayeslm.pretrained.pretrained_scorer import CausalTreeLM
from espnet_bayeslm.scoring.prefixes import PrefixSearch, TokenPrefix

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

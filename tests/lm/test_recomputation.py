"""Activation checkpointing: what is random is not drawn again for the backward pass."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.utils.errors import InputError

VOCAB = 11
LSTM = (BayesLSTMLM, dict(unit=4), ["", "encoder", "rnn"])
TRANSFORMER = (
    BayesTransformerLM,
    dict(att_unit=4, head=2, unit=6, layer=2),
    ["", "embed", "blocks.0"],
)
RANDOM = [
    ("encoder", LSTM, {"embedding": "bayes"}),
    ("rnn", LSTM, {"cell_input@1": "bayes"}),
    ("rnn", LSTM, {"cell_input@2": "gp"}),
    ("rnn", LSTM, {"cell_state@1": "gp"}),
    ("rnn", LSTM, {"hidden_output@1": "variational"}),
    ("rnn", LSTM, {"cell_input@1": "search"}),
    ("embed", TRANSFORMER, {"embedding": "bayes"}),
    ("blocks.0", TRANSFORMER, {"attention@1": "bayes"}),
    ("blocks.0", TRANSFORMER, {"ffn@1": "bayes"}),
    ("blocks.0", TRANSFORMER, {"ffn@1": "gp"}),
    ("blocks.0", TRANSFORMER, {"hidden_output@1": "variational"}),
]


def build(family, uncertainty):
    torch.manual_seed(0)
    cls, conf, _ = family
    return cls(VOCAB, uncertainty=uncertainty, dropout_rate=0.2, **conf).double().train()


def checkpointed(layer, use_reentrant):
    """Make a layer keep nothing for the backward pass."""
    forward = layer.forward
    # the reentrant kind needs an input with a gradient
    some = torch.zeros((), requires_grad=True)
    layer.forward = lambda *args: checkpoint(
        lambda some, *args: forward(*args), some, *args, use_reentrant=use_reentrant
    )


def loss(lm):
    torch.manual_seed(1)
    return lm(torch.arange(12).view(3, 4) % VOCAB)[0].sin().sum()


@pytest.mark.parametrize("whole, use_reentrant", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("layer, family, uncertainty", RANDOM)
def test_a_random_layer_is_not_computed_again(layer, family, uncertainty, whole, use_reentrant):
    lm = build(family, uncertainty)
    if layer in ("encoder", "embed") and not whole:
        pytest.skip("a look-up has nothing to save")
    checkpointed(lm if whole else lm.get_submodule(layer), use_reentrant)
    with pytest.raises(InputError, match="activation checkpointing"):
        loss(lm).backward()

"""Our LMs against torch's and ESPnet's with the same weights."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from lm_cases import VOCAB, make_certain, tokens
from torch import nn

from espnet_bayeslm.lm import LMS, BayesLSTMLM, BayesTransformerLM


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("uncertainty", [{}, {"all_gates@*": "bayes"}])
def test_lstm_equals_espnets_seq_rnn_and_loads_its_checkpoint(tie_weights, uncertainty):
    conf = dict(unit=12, nlayers=3, dropout_rate=0.0, tie_weights=tie_weights)
    reference = SequentialRNNLM(VOCAB, **conf).double().eval()
    lm = BayesLSTMLM(VOCAB, **conf, uncertainty=uncertainty).double().eval()
    lm.load_state_dict(reference.state_dict())
    x = tokens()
    expected = reference(x, None)[0]
    assert torch.allclose(lm(x)[0], expected, atol=1e-12)
    make_certain(lm)
    assert torch.allclose(lm.train()(x)[0], expected, atol=1e-6)


def test_checkpoints_of_another_architecture_are_refused():
    reference = SequentialRNNLM(VOCAB, unit=12, tie_weights=False)
    with pytest.raises(ValueError, match="tie_weights: false"):
        BayesLSTMLM(VOCAB, unit=12).load_state_dict(reference.state_dict())
    transformer = BayesTransformerLM(VOCAB, att_unit=8, head=2, unit=8, layer=1)
    with pytest.raises(ValueError, match="another architecture"):
        BayesLSTMLM(VOCAB, unit=8).load_state_dict(transformer.state_dict(), strict=False)


def reference_transformer(lm, norm_first):
    """The same LM built of `nn.TransformerEncoderLayer`."""
    layers = []
    for block in lm.blocks:
        layer = nn.TransformerEncoderLayer(
            8, 2, 20, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first
        ).double()
        state = {
            name.replace("attention.", "self_attn.").replace("in_proj.", "in_proj_"): value
            for name, value in block.state_dict().items()
        }
        missing, _ = layer.load_state_dict(state, strict=False)  # without a posterior
        assert not missing
        layers.append(layer.train())

    def run(x):
        length = x.size(1)
        position = torch.arange(length, dtype=torch.float64).unsqueeze(1)
        rate = 10000 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
        encodings = torch.zeros(length, 8, dtype=torch.float64)
        encodings[:, 0::2], encodings[:, 1::2] = (position * rate).sin(), (position * rate).cos()
        h = lm.embed.weight[x] * math.sqrt(8) + encodings
        mask = torch.triu(torch.full((length, length), -math.inf, dtype=torch.float64), diagonal=1)
        for layer in layers:
            h = layer(h, src_mask=mask)
        return lm.after_norm(h) @ lm.embed.weight.T + lm.decoder.bias

    return run


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "uncertainty",
    [{}, {"embedding": "bayes", "attention@*": "bayes", "ffn@*": "bayes", "ffn_out@*": "bayes"}],
)
def test_transformer_equals_nn_transformer_encoder_layer(norm_first, uncertainty):
    sizes = dict(att_unit=8, head=2, unit=20, layer=3, dropout_rate=0.0, norm_first=norm_first)
    lm = BayesTransformerLM(VOCAB, **sizes, uncertainty=uncertainty).double().eval()
    for parameter in lm.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = tokens()
    expected = reference_transformer(lm, norm_first)(x)
    assert torch.allclose(lm(x)[0], expected, atol=1e-10)
    make_certain(lm)
    assert torch.allclose(lm.train()(x)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        partial(BayesLSTMLM, unit=8, nlayers=1),
        partial(BayesTransformerLM, att_unit=8, head=2, unit=8, layer=1),
    ],
)
def test_a_tied_output_projection_keeps_the_mean(make):
    lm = make(VOCAB, uncertainty={"embedding": "bayes"})
    table = lm.encoder if isinstance(lm, BayesLSTMLM) else lm.embed
    assert lm.decoder.weight is table.weight
    with lm.train().sampled(1):
        assert not torch.equal(table.weight, lm.decoder.weight)
    assert sum(lm.location_sizes().values()) == table.weight.numel()


def test_posteriors_and_priors_of_other_lms(caplog):
    bayes = BayesLSTMLM(VOCAB, unit=8, uncertainty={"cell_input@1": "bayes"})
    BayesLSTMLM(VOCAB, unit=8).load_state_dict(bayes.state_dict())
    assert "Left out 13 posterior tensors" in caplog.text
    caplog.clear()
    bayes.load_state_dict(BayesLSTMLM(VOCAB, unit=8).state_dict())
    assert "13 posterior tensors are not in the checkpoint" in caplog.text
    point = BayesLSTMLM(VOCAB, unit=8)
    bayes = BayesLSTMLM(VOCAB, unit=8, uncertainty={"cell_input@2": "bayes"})
    bayes.load_state_dict(point.state_dict())
    before = bayes.kl()
    bayes.posterior.set_prior_means(point.state_dict())
    # What is left depends on the standard deviations alone.
    size, log_std = bayes.location_sizes()["cell_input@2"], math.log(0.01)
    expected = size * (-log_std + math.exp(2 * log_std) / 2 - 0.5)
    assert bayes.kl() < before
    assert math.isclose(bayes.kl().item(), expected, rel_tol=1e-5)
    with pytest.raises(ValueError, match="cell_input@2"):
        bayes.posterior.set_prior_means(BayesLSTMLM(VOCAB, unit=9).state_dict())


DATA = Path(__file__).parent / "data"


def read(name):
    """Read what an LM was, its weights and what it computed: `{lm, lm_conf, model, ...}`."""
    return torch.load(DATA / f"{name}.pth", weights_only=True)


def build(stored):
    return LMS[stored["lm"]](vocab_size=7, **stored["lm_conf"]).eval()


@pytest.mark.parametrize("name", ["lstm", "transformer", "espnet"])
def test_an_old_checkpoint_is_the_same_lm(name, caplog):
    stored = read(name)
    lm = build(stored)
    lm.load_state_dict(stored["model"])
    assert caplog.text == ""
    torch.testing.assert_close(lm(stored["ids"])[0], stored["logits"], rtol=0, atol=1e-5)
    torch.testing.assert_close(lm.kl(), stored["kl"], rtol=1e-5, atol=0)
    assert lm.locations() == stored["locations"]
    assert set(lm.state_dict()) == set(stored["model"])

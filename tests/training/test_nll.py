"""The NLL of a batch, on real tokens only, is ESPnet's."""

import contextlib
import math

import pytest
import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel
from training_options import batch

from espnet_bayeslm import kernels
from espnet_bayeslm.kernels import product
from espnet_bayeslm.lm import BayesESPnetLM, BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training import nll
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.nll import batch_nll, token_batch

VOCAB = 13
TRANSFORMER = dict(att_unit=8, head=2, unit=16, layer=2, dropout_rate=0.0)
LMS = {
    "lstm": lambda: BayesLSTMLM(VOCAB, unit=8, dropout_rate=0.0),
    "untied": lambda: BayesLSTMLM(VOCAB, unit=8, dropout_rate=0.0, tie_weights=False),
    "transformer": lambda: BayesTransformerLM(VOCAB, **TRANSFORMER),
    "norm first": lambda: BayesTransformerLM(VOCAB, **TRANSFORMER, norm_first=True),
    "seq_rnn": lambda: espnet("seq_rnn", unit=8, nlayers=1),
    "gru": lambda: espnet("seq_rnn", unit=8, nlayers=1, rnn_type="gru"),
    "random output": lambda: espnet("seq_rnn", {"output": "bayes"}, unit=8, nlayers=1),
    "espnet's transformer": lambda: espnet(
        "transformer", {"ffn@1": "bayes"}, **TRANSFORMER, embed_unit=8
    ),
}


def espnet(backbone, uncertainty=None, **conf):
    return BayesESPnetLM(VOCAB, backbone, conf, uncertainty=uncertainty)


@pytest.mark.parametrize("name", LMS)
def test_sum_and_gradients_are_espnets(name):
    model = BayesLanguageModel(LMS[name]().double(), VOCAB).eval()
    expected = ESPnetLanguageModel.nll(model, *batch())[0].sum()
    found = batch_nll(model, token_batch(model, *batch(), batch()[1]))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    # at the mean the standard deviations have no part
    parameters = [p for n, p in model.named_parameters() if not n.endswith("_log_std")]
    gradients = [torch.autograd.grad(total, parameters) for total in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", ["fused", "plain", "of logits"])
@pytest.mark.parametrize("name", ["espnet's transformer", "transformer"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_nll_in_half_precision_is_summed_in_single(name, dtype, way):
    """Of an LM without an opinion, in bfloat16 or under autocast: ln V, which bfloat16 rounds."""
    options = dict(autocast="bfloat16", num_train_tokens=100)
    model = BayesLanguageModel(LMS[name]().to(dtype), VOCAB, **options)
    with torch.no_grad():
        for parameter in model.lm.decoder.parameters():
            parameter.zero_()
    if way == "of logits":
        model.lm.outputs = lambda *_: None
    for is_training in (True, False):
        with kernels.plain() if way == "plain" else contextlib.nullcontext():
            loss, stats, _ = model.train(is_training)(*batch())
        assert loss.dtype == torch.float32
        assert float(stats["nll"]) == pytest.approx(math.log(VOCAB), rel=1e-6)


@pytest.mark.parametrize("name", ["random output", "espnet's transformer"])
def test_a_step_draws_once(name):
    model = BayesLanguageModel(LMS[name](), VOCAB, num_train_tokens=100).train()
    for step in (1, 2):
        model(*batch())
        assert model.lm.noise_step == step


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_autocast_is_for_training_alone(name):
    torch.manual_seed(3)
    low = BayesLanguageModel(LMS[name](), VOCAB, autocast="bfloat16")
    exact = BayesLanguageModel(low.lm, VOCAB)
    assert torch.equal(low.eval()(*batch())[0], exact.eval()(*batch())[0])
    ours, theirs = low.train()(*batch())[0], exact.train()(*batch())[0]
    assert ours.dtype == torch.float32
    assert (ours != theirs) == product.has_onednn(torch.bfloat16)
    assert ours.item() == pytest.approx(theirs.item(), rel=2e-2)


def test_a_precision_that_is_missing_is_left_out_and_said_once(monkeypatch, caplog):
    monkeypatch.setattr(nll, "has_onednn", lambda dtype: False)
    nll.warn_of_missing.cache_clear()
    low = BayesLanguageModel(LMS["lstm"](), VOCAB, autocast="bfloat16").train()
    exact = BayesLanguageModel(low.lm, VOCAB).train()
    for _ in range(2):
        assert torch.equal(low(*batch())[0], exact(*batch())[0])
    [record] = caplog.records
    assert record.message.startswith("autocast to bfloat16, which this CPU does not have")

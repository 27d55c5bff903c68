"""The variance of ln Z in the loss, and what training with it gives."""

import numpy as np
import pytest
import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.training.model import BayesLanguageModel

VOCAB = 13


def make_text(num=32, seed=0):
    """Return token ids and lengths of a source in which each token hints at the next."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, num)
    text = np.zeros((num, 8), dtype=int)
    for row, length in zip(text, lengths, strict=True):
        row[0] = rng.integers(1, VOCAB - 1)
        for n in range(1, length):
            follow = row[n - 1] % (VOCAB - 2) + 1
            row[n] = follow if rng.random() < 0.8 else rng.integers(1, VOCAB - 1)
    return torch.from_numpy(text), torch.from_numpy(lengths)


def build(weight, uncertainty=None, **options):
    torch.manual_seed(1)
    lm = BayesLSTMLM(VOCAB, unit=8, dropout_rate=0.0, uncertainty=uncertainty or {})
    for parameter in lm.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    options |= dict(self_normalization=weight, num_train_tokens=100)
    return BayesLanguageModel(lm, VOCAB, **options).double().train()


def log_z_by_hand(model, text, lengths):
    """Return ln Z of every real token, one sentence at a time."""
    values = [
        model.lm(torch.tensor([[VOCAB - 1, *ids[:n].tolist()]]))[0][0].logsumexp(-1)
        for ids, n in zip(text, lengths, strict=True)
    ]
    return torch.cat(values)


@pytest.mark.parametrize("training", [True, False])
def test_the_loss_has_half_the_variance(training):
    text, lengths = make_text()
    plain, model = build(0.0).train(training), build(0.7).train(training)
    values = log_z_by_hand(model, text, lengths)
    variance = values.var(unbiased=False)
    (before, old, _), (loss, stats, _) = plain(text, lengths), model(text, lengths)
    assert torch.allclose(stats["nll"], old["nll"]) and torch.allclose(stats["ppl"], old["ppl"])
    assert torch.allclose(stats["lnz_mean"], values.mean())
    assert torch.allclose(stats["lnz_std"], variance.sqrt())
    # the validation loss stays the NLL
    assert torch.allclose(
        loss - before, 0.35 * variance if training else torch.tensor(0.0).double()
    )
    assert set(stats) - set(old) == {"lnz_mean", "lnz_std"}


def test_the_gradient_is_that_of_the_variance():
    text, lengths = make_text(4)
    model = build(2.0)
    model(text, lengths)[0].backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    nll, counts = ESPnetLanguageModel.nll(model, text, lengths)
    variance = log_z_by_hand(model, text, lengths).var(unbiased=False)
    (nll.sum() / counts.sum() + variance).backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        assert torch.allclose(gradient, parameter.grad, atol=1e-12)

"""The loss is the per-token ELBO, however the text is cut into batches."""

import pytest
import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM

from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.training.model import BayesLanguageModel

VOCAB = 13


@pytest.fixture
def text():
    lengths = torch.randint(1, 9, (32,))
    lengths[0] = 8
    return torch.randint(1, VOCAB - 1, (32, 8)), lengths


def build(num_train_tokens=None, **options):
    torch.manual_seed(1)
    lm = BayesLSTMLM(VOCAB, unit=8, dropout_rate=0.0, uncertainty={"cell_input@1-2": "bayes"})
    model = BayesLanguageModel(lm, VOCAB, num_train_tokens=num_train_tokens, **options)
    return model.double().train()


def no_noise(model):
    """Keep the standard deviations, and so the KL, but draw zeros."""
    for _, module, _ in model.lm.random_blocks():
        module.draw = lambda generator, m=module: m.noise.update(
            {b.key: torch.zeros_like(m.log_std(b)) for b in m.random_blocks}
        )
    return model


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_loss_of_an_epoch_is_the_elbo_for_any_batch_size(text, batch_size):
    ids, lengths = text
    total = int((lengths + 1).sum())
    model = no_noise(build(total))
    expected = (model.nll(*text)[0].sum() + model.lm.kl()) / total
    batches = [
        (ids[i : i + batch_size], lengths[i : i + batch_size]) for i in range(0, 32, batch_size)
    ]
    losses, weights = zip(*[model(*batch)[::2] for batch in batches], strict=True)
    epoch = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / total
    assert abs(epoch - expected) < 1e-9


def test_loss_is_nll_plus_kl(text):
    total = int((text[1] + 1).sum())
    model = build(total)
    loss, stats, weight = model(*text)
    assert torch.allclose(loss, stats["nll"] + stats["kl"])
    assert torch.allclose(stats["kl"], model.lm.kl() / total)
    assert torch.allclose(stats["ppl"], stats["nll"].exp())
    assert weight == total


def test_validation_loss_is_the_nll_at_the_mean(text):
    model = build(100).eval()
    loss, stats, _ = model(*text)
    point = BayesLSTMLM(VOCAB, unit=8, dropout_rate=0.0).double()
    point.load_state_dict(model.lm.state_dict())
    expected, _, _ = BayesLanguageModel(point, VOCAB).double().eval()(*text)
    assert torch.equal(loss, expected) and torch.equal(loss, stats["nll"])
    assert torch.allclose(stats["kl"], model.lm.kl() / 100)


def test_the_same_statistics_each_time(text):
    model = build(100)
    assert model(*text)[1].keys() == model.eval()(*text)[1].keys() == {"loss", "nll", "kl", "ppl"}


def test_kl_weight(text):
    assert torch.allclose(build(9, kl_weight=0.25)(*text)[1]["kl"], build(9)(*text)[1]["kl"] / 4)


def test_release_scale_is_smaller_by_weights_and_batch_tokens(text):
    """Release / ELBO = batch tokens / weights of a parameter, 1/655 for Theta_1 of the paper."""
    torch.manual_seed(1)
    lm = BayesLSTMLM(VOCAB, unit=8, uncertainty={"cell_input@1": "bayes"})
    for name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):  # leave one parameter random
        lm.rnn.random_blocks = [b for b in lm.rnn.random_blocks if b.parameter != name]
    total = int((text[1] + 1).sum())
    kl = [
        BayesLanguageModel(lm, VOCAB, num_train_tokens=7 * total, kl_scale=scale)
        .train()
        .kl_term(torch.tensor(total))
        for scale in ("release", "elbo")
    ]
    assert torch.allclose(kl[0] / kl[1], torch.tensor(total / (8 * 8.0)))
    assert 512 * 4096 // (32 * 100) == 655


def test_num_samples_averages_draws(text):
    single, triple = build(100), build(100, num_samples=3)
    losses = [single(*text)[1]["nll"] for _ in range(3)]
    assert torch.allclose(triple(*text)[1]["nll"], sum(losses) / 3)
    assert len({float(loss) for loss in losses}) == 3


def test_unknown_training_size_is_an_error_only_in_training(text):
    model = build()
    with pytest.raises(RuntimeError, match="num_train_tokens"):
        model(*text)
    model.eval()(*text)


def test_a_prior_that_was_not_loaded_is_an_error(text):
    with pytest.raises(RuntimeError, match="prior"):
        build(100, prior="point.pth")(*text)


@pytest.mark.parametrize(
    "options, word", [({"kl_scale": "batch"}, "elbo"), ({"num_samples": 0}, "num_samples")]
)
def test_bad_options(options, word):
    with pytest.raises(ValueError, match=word):
        build(**options)


def test_other_lms_are_refused():
    with pytest.raises(ValueError, match="SequentialRNNLM"):
        BayesLanguageModel(SequentialRNNLM(VOCAB, unit=4), VOCAB)


def test_autocast_keeps_the_kl_in_float32(text):
    model = build(100).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, stats, _ = model(*text)
    assert stats["kl"].dtype == torch.float32
    assert torch.allclose(stats["kl"], (model.lm.kl() / 100).detach())
    loss.backward()


def test_two_steps_draw_differently_and_a_resumed_model_repeats(text):
    model = build(100)
    first = model(*text)[1]["nll"]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    second = model(*text)[1]["nll"]
    resumed = build(100)
    resumed.load_state_dict(state)
    assert first != second
    assert torch.equal(resumed(*text)[1]["nll"], second)

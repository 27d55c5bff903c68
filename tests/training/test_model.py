"""The loss is the per-token ELBO, however the text is cut into batches."""

import math

import pytest
import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from espnet2.train.reporter import Reporter
from torch.distributions import Laplace, Normal, kl_divergence

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.epoch_lines import report_perplexity, report_sigma
from espnet_bayeslm.training.loss_check import loss_error
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.task import check_conf
from espnet_bayeslm.utils.errors import InputError

VOCAB = 13


@pytest.fixture
def text():
    lengths = torch.randint(1, 9, (32,))
    lengths[0] = 8
    return torch.randint(1, VOCAB - 1, (32, 8)), lengths


CELL, LATENT = {"cell_input@1-2": "bayes"}, {"hidden_output@1-2": "variational"}
SIZES = {BayesLSTMLM: dict(unit=8)}
SIZES[BayesTransformerLM] = dict(att_unit=8, head=2, unit=8, layer=2)


def build(num_train_tokens=None, uncertainty=CELL, *, cls=BayesLSTMLM, **options):
    torch.manual_seed(1)

    lm = cls(VOCAB, uncertainty=uncertainty, prior_variance=0.5, dropout_rate=0.0, **SIZES[cls])
    model = BayesLanguageModel(lm, VOCAB, num_train_tokens=num_train_tokens, **options)
    for name, parameter in model.named_parameters():
        if "latent" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.double().train()


@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize(
    "cls, uncertainty", [(BayesLSTMLM, CELL), (BayesTransformerLM, {"ffn@*": "bayes"})]
)
def test_loss_of_an_epoch_is_the_elbo_for_any_batch_size(text, cls, uncertainty, batch_size):
    ids, lengths = text
    total = int((lengths + 1).sum())
    model = build(total, uncertainty, cls=cls)
    for block in model.lm.posterior.blocks():
        # the standard deviations, and so the KL, stay, and the noise is zero
        block.kind.sample_with_kl = lambda block, mean, generator, wants_kl: (mean, None)
    expected = (ESPnetLanguageModel.nll(model, *text)[0].sum() + model.lm.kl()) / total
    batches = zip(ids.split(batch_size), lengths.split(batch_size), strict=True)
    losses, weights = zip(*[model(*batch)[::2] for batch in batches], strict=True)
    epoch = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / total
    assert abs(epoch - expected) < 1e-9


def test_validation_loss_is_the_nll_at_the_mean(text):
    model = build(100).eval()
    loss, stats, _ = model(*text)
    mean = build(None, {}).eval()
    mean.lm.load_state_dict(model.lm.state_dict())
    expected, _, _ = mean(*text)
    assert torch.equal(loss, expected) and torch.equal(loss, stats["nll"])
    assert torch.allclose(stats["kl"], model.lm.kl() / 100)


def test_weight_of_the_kl(text):
    assert torch.allclose(build(9, kl_weight=0.25)(*text)[1]["kl"], build(9)(*text)[1]["kl"] / 4)


def test_options_that_were_removed_load_with_a_warning(text, caplog):
    """ESPnet's decoding builds the model of an old configuration, whose training had them."""
    options = dict(self_normalization=0.1, kl_scale="release")
    model = build(9, **options)
    assert torch.equal(model.eval()(*text)[0], build(9).eval()(*text)[0])
    assert [r.message.split()[1] for r in caplog.records] == [*options]
    build(9, self_normalization=0, kl_scale="elbo")
    assert len(caplog.records) == 2
    with pytest.raises(TypeError, match="unexpected options: scale"):
        build(9, scale=1)
    for key, value in options.items():
        with pytest.raises(InputError, match=f"model_conf: {key} {value} was removed.*Leave it"):
            check_conf("model", BayesLanguageModel, {key: value})
    check_conf("model", BayesLanguageModel, {"kl_scale": "elbo"})


def test_models_that_cannot_train(text):
    model = build()
    with pytest.raises(RuntimeError, match="num_train_tokens"):
        model(*text)
    model.eval()(*text)
    with pytest.raises(RuntimeError, match="prior"):
        build(100, prior="point.pth")(*text)
    with pytest.raises(InputError, match=r"regularizer_weight .* expected 0 or more"):
        point(regularizer="l2", regularizer_weight=-1.0)
    with pytest.raises(ValueError, match="SequentialRNNLM"):
        BayesLanguageModel(SequentialRNNLM(VOCAB, unit=4), VOCAB)


@pytest.mark.parametrize(
    "option, values, message",
    [
        ("num_samples", [0], "0: expected 1 or more"),
        ("kl_weight", [-1.0], "-1.0: expected 0 or more"),
        ("kl_warmup_epochs", [-1], "-1: expected 0 or more"),
        ("posterior_lr", [0.0, -1.0, math.nan], ".*: expected a number above 0, or null"),
        ("autocast", ["half"], "'half': valid are null, bfloat16"),
        ("regularizer", ["l2"], "l2 .* uncertain at cell_input@1, cell_input@2"),
        ("regularizer", ["l3"], "'l3': valid are l1, l2, map"),
        ("regularizer_weight", [1.0], "is given, and no regularizer"),
    ],
)
def test_bad_options(option, values, message):
    for value in values:
        with pytest.raises(InputError, match=f"{option} {message}"):
            build(10, **{option: value})
    with pytest.raises(InputError, match="num_train_tokens 0: expected 1 or more"):
        build(0)
    learnt = BayesLSTMLM(VOCAB, unit=8, prior_variance="learn")
    with pytest.raises(InputError, match=r"map: expected prior_variance a number .*'learn'"):
        BayesLanguageModel(learnt, VOCAB, num_train_tokens=10, regularizer="map")


def test_autocast_keeps_the_kl_in_float32(text):
    model = build(100).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, stats, _ = model(*text)
    assert stats["kl"].dtype == torch.float32
    assert torch.allclose(stats["kl"], (model.lm.kl() / 100).detach())
    loss.backward()


def plain_latent_kl(model, text, lengths):
    """The KL of the latent outputs of each sentence at the mean, by torch.distributions, summed."""
    terms = []

    def listen(module, inputs, _):
        h = inputs[0]
        q = Normal(module.infer_mean(h), module.infer_log_std(h).exp())
        p = Normal(module.prior_mean(h), module.prior_log_std(h).exp())
        terms.append(kl_divergence(q, p).sum())

    hooks = [latent.register_forward_hook(listen) for _, latent in model.lm.latents()]
    for ids, length in zip(text, lengths, strict=True):
        ESPnetLanguageModel.nll(model, ids[None, :length], length[None])
    for hook in hooks:
        hook.remove()
    return sum(terms)


@pytest.mark.parametrize("cls", SIZES)
def test_latent_kl_is_summed_over_real_tokens_only(text, cls):
    """In a padded batch, against each sentence alone (Eq. 30, 32)."""
    model = build(None, LATENT, cls=cls).eval()
    _, stats, weight = model(*text)
    expected = plain_latent_kl(model, *text)
    assert weight == (text[1] + 1).sum()
    assert torch.allclose(stats["kl"] * weight, expected, rtol=1e-10)


def test_latent_kl_is_added_in_training(text):
    model = build(None, LATENT)
    loss, stats, _ = model(*text)
    assert stats["kl"] > 0 and torch.allclose(loss, stats["nll"] + stats["kl"])
    loss, stats, _ = model.eval()(*text)
    assert stats["kl"] > 0 and torch.equal(loss, stats["nll"])
    half, whole = (build(None, LATENT, kl_weight=weight) for weight in (0.5, 1.0))
    assert torch.allclose(half(*text)[1]["kl"], whole(*text)[1]["kl"] / 2)
    model = build(50, {"cell_input@1": "bayes", "hidden_output@2": "variational"}).eval()
    latent = plain_latent_kl(model, *text)
    _, stats, weight = model(*text)
    assert latent > 0
    assert torch.allclose(stats["kl"], model.lm.kl() / 50 + latent / weight)


@pytest.mark.parametrize("num_samples", [1, 3, 5])
def test_the_loss_is_the_mean_over_draws(text, num_samples):
    """Table I: K draws per step are the next K of a model that draws once."""
    model, single = build(100, num_samples=num_samples), build(100)
    _, stats, _ = model(*text)
    losses = [single(*text)[1]["nll"] for _ in range(num_samples)]
    assert torch.allclose(stats["nll"], torch.stack(losses).mean())
    assert len(set(map(float, losses))) == num_samples


def point(**options):
    return build(50, {}, **options)


class TestRegularizers:
    @pytest.mark.parametrize("weight", [None, 0.3])
    def test_penalties(self, text, weight):
        factor = 1 / 50 if weight is None else weight
        theta = torch.nn.utils.parameters_to_vector(point().lm.parameters())
        expected = {
            "l1": -Laplace(0.0, 1.0).log_prob(theta) - math.log(2),
            "l2": -Normal(0.0, 1.0).log_prob(theta) - math.log(2 * math.pi) / 2,
            "map": -Normal(0.0, 0.5**0.5).log_prob(theta) - math.log(math.pi) / 2,
        }
        for regularizer, terms in expected.items():
            model = point(regularizer=regularizer, regularizer_weight=weight)
            loss, stats, _ = model(*text)
            assert torch.allclose(stats["penalty"], factor * terms.sum(), rtol=1e-6)
            assert torch.allclose(loss, stats["nll"] + stats["penalty"])
            loss, stats, _ = model.eval()(*text)
            assert torch.equal(loss, stats["nll"])

    def test_map_has_the_bayesian_prior(self):
        """With every weight random and sigma held, MAP's loss and the ELBO differ by a constant."""
        torch.manual_seed(3)
        prior = {k: torch.randn_like(v) for k, v in point().state_dict().items()}
        model = point(regularizer="map")
        model.set_prior_means(prior)
        bayes = build(50, {"all_gates@1-2": "bayes"}).lm
        bayes.load_state_dict(model.lm.state_dict())
        bayes.posterior.set_prior_means({k[3:]: v for k, v in prior.items()})
        model.penalty_term().backward()
        (bayes.kl() / 50).backward()
        random = [n for n, _ in bayes.rnn.named_parameters() if not n.endswith("_log_std")]
        assert random
        for name in random:
            found, expected = (getattr(lm.rnn, name).grad for lm in (model.lm, bayes))
            assert torch.allclose(found, expected), name


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_with_location_and_sigma(text, value):
    model = build(100)
    model(*text)
    model.lm.rnn.weight_hh_l1.data[17, 3] = value
    with pytest.raises(ValueError) as error:
        model(*text)
    message = str(error.value)
    assert "step 2" in message and "learning rate" in message
    where = "cell_input@2 has sigma 0.01 to 0.01 and weights that are not finite; cell_input@1"
    assert where in message


def test_the_sigma_of_latent_outputs_is_shown_where_there_is_one(text):
    model = build(100, LATENT)
    message = str(loss_error(torch.tensor(math.nan), model.lm, 1))
    assert message.startswith("the training loss is nan at step 1 of this run. ")
    assert report_sigma(model, epoch=1) == []
    model(*text)
    with torch.no_grad():
        model.lm.decoder.bias.fill_(math.nan)
    with pytest.raises(InputError, match=r"; hidden_output@\d has sigma 0\.\d+ to 0\.\d+"):
        model(*text)
    assert len(report_sigma(model, epoch=1)) == 2


def test_a_sigma_that_is_not_a_number_is_shown(text):
    for n in range(len(build(100).lm.posterior.blocks())):
        model = build(100)
        block = model.lm.posterior.blocks()[n]
        block.tensor("_log_std").data.fill_(math.nan)
        with pytest.raises(ValueError, match=f"; {block.location} has sigma nan to nan and"):
            model(*text)


def test_an_epoch_without_a_batch_has_no_perplexity():
    every = Reporter()
    every.set_epoch(1)
    with every.observe("valid") as reporter:
        assert report_perplexity(reporter) == {}
        reporter.register({"loss": torch.tensor(2.0)})
        reporter.next()
        assert report_perplexity(reporter)["ppl"] == pytest.approx(math.exp(2.0))


def test_the_kl_keeps_its_gradient_after_a_validation(text):
    model = build(100)

    def gradients():
        model.zero_grad()
        model.lm.noise_step = 0
        model(*text)[0].backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    before = gradients()
    model.eval()
    with torch.no_grad():
        model(*text)
    model.train()
    torch.testing.assert_close(gradients(), before, rtol=0, atol=0)
    # what is compared has the KL's: that of the NLL alone is another
    model.kl_weight = 0.0
    without = gradients()
    assert not any(torch.equal(before[n], without[n]) for n in before if n.endswith("_log_std"))

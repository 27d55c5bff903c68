"""Prior variances that follow the posterior, and draws of embeddings."""

import math

import pytest
import torch
from torch import nn

from espnet_bayeslm.bayes import Posterior, Weights
from espnet_bayeslm.bayes.objective import kl_learned_prior, kl_weights, prior_variances
from espnet_bayeslm.bayes.weights import LOG_STD, PRIOR_MEAN, Bayes
from espnet_bayeslm.lm import BayesTransformerLM
from espnet_bayeslm.utils.errors import InputError

OPTIONS = {"init_std": 0.3, "init_std_unit": "absolute", "prior_variance": 0.5}
PRECISE = torch.float64


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=PRECISE)


def make(layer, **options):
    posterior = Posterior(layer.to(PRECISE))
    posterior.add([Weights("*")], Bayes(**{**OPTIONS, **options}), "here")
    for block in posterior.blocks():
        log_std = block.tensor(LOG_STD)
        log_std.data.copy_(-1.0 + 0.3 * numbers(*log_std.shape))
        block.tensor(PRIOR_MEAN).copy_(0.1 * numbers(*log_std.shape, seed=1))
    return layer, posterior


class TestLearnedPrior:
    @pytest.mark.parametrize("by_row", [False, True])
    def test_it_is_the_least_kl_over_variances(self, by_row):
        mean, log_std, prior_mean = numbers(4, 5), numbers(4, 5, seed=1) / 3, numbers(4, 5, seed=2)
        least = kl_learned_prior(mean, log_std, prior_mean, by_row=by_row)
        optimum = prior_variances(mean, (2 * log_std).exp(), prior_mean, by_row=by_row)

        def at(factor):
            each = (factor * optimum).expand(4).unsqueeze(1)
            terms = zip(mean, log_std, prior_mean, each, strict=True)
            return sum(kl_weights(m, s, p, math.sqrt(v)) for m, s, p, v in terms)

        torch.testing.assert_close(least, at(1.0), rtol=0, atol=1e-10)
        assert min(at(0.97), at(1.03)) > least

    @pytest.mark.parametrize("by_row", [False, True])
    def test_gradients_are_those_with_the_variances_held(self, by_row):
        mean, log_std = (numbers(4, 5, seed=s).requires_grad_() for s in (0, 1))
        prior_mean = numbers(4, 5, seed=2)
        learned = kl_learned_prior(mean, log_std, prior_mean, by_row=by_row)
        held = prior_variances(mean, (2 * log_std).exp(), prior_mean, by_row=by_row).detach()
        rows = zip(mean, log_std, prior_mean, held.expand(4), strict=True)
        fixed = sum(kl_weights(m, s, p, math.sqrt(v)) for m, s, p, v in rows)
        a, b = (torch.autograd.grad(x, (mean, log_std)) for x in (learned, fixed))
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("variance", ["learn", "learn_rows"])
    def test_a_layer_with_it(self, variance):
        layer, posterior = make(nn.Linear(3, 4), prior_variance=variance)
        with posterior.sampled(torch.Generator().manual_seed(0), with_kl=True) as sample:
            layer(numbers(2, 3))
        expected = sum(
            kl_learned_prior(
                getattr(layer, name),
                getattr(layer, name + LOG_STD),
                getattr(layer, name + PRIOR_MEAN),
                by_row=variance == "learn_rows",
            )
            for name in ("weight", "bias")
        )
        torch.testing.assert_close(sample.kl(), expected, rtol=0, atol=1e-10)

    def test_what_is_no_variance(self):
        with pytest.raises(InputError, match="above 0 or one of learn, learn_rows, got 'learnt'"):
            BayesTransformerLM(
                9, **SMALL, uncertainty={"embedding": "bayes"}, prior_variance="learnt"
            )


SMALL = {"att_unit": 8, "head": 2, "unit": 16, "layer": 1, "dropout_rate": 0.0}


def test_configurations_that_say_how_noise_was_shared_still_load(caplog):
    lm = BayesTransformerLM(9, **SMALL, uncertainty={"ffn@1": {"kind": "bayes", "noise": "local"}})
    assert "option noise is ignored" in caplog.text and lm.locations() == ["ffn@1"]

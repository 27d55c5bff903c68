"""All noise comes from `drawn`: within it there is one draw, outside of it the mean."""

import ast
import math
from pathlib import Path

import pytest
import torch
from lm_cases import (
    BATCH,
    RANDOM,
    VOCAB,
    build,
    is_latent,
    make_generic,
    name,
    tokens,
)
from torch.utils.checkpoint import checkpoint

import espnet_bayeslm
from espnet_bayeslm.bayes import noise_generator
from espnet_bayeslm.bayes.base_kinds import MEANS
from espnet_bayeslm.kinds.gp import BASIS
from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.nll import batch_nll, token_batch
from espnet_bayeslm.utils.errors import InputError

PACKAGE = Path(espnet_bayeslm.__file__).parent
# Where noise is made, all of it by a generator that `drawn` or IVON was given.
MAKE_NOISE = {
    *("kinds/bayes.py", "kinds/variational.py", "kinds/whole_posterior.py"),
    # dropout, initial values
    "layers/transformer.py",
}
SAMPLERS = {"normal_", "randn", "randn_like", "normal", "bernoulli", "bernoulli_", "exponential_"}


def test_noise_is_made_in_few_places():
    found = set()
    for part in ("bayes", "kernels", "layers", "kinds", "lm", "scoring", "training"):
        for path in (PACKAGE / part).rglob("*.py"):
            names = {
                n.attr
                for n in ast.walk(ast.parse(path.read_text()))
                if isinstance(n, ast.Attribute)
            }
            if names & SAMPLERS:
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found <= MAKE_NOISE and {"kinds/bayes.py", "kinds/variational.py"} <= found


@pytest.mark.parametrize("case", RANDOM, ids=map(name, RANDOM))
class TestDrawn:
    def test_a_held_draw_is_the_same_in_every_mode_and_gone_after(self, case):
        lm, x = make_generic(build(case)), tokens()
        mean, found = lm.eval()(x)[0], []
        for mode in (True, False):
            with lm.train(mode).drawn(noise_generator(0, 0, 7), hold=True) as draw:
                first, again = lm(x)[0], lm(x)[0]
                assert torch.equal(first, again) and not torch.equal(first, mean)
                found.append(first)
                with lm.drawn(noise_generator(0, 0, 8), hold=True):
                    assert not torch.equal(lm(x)[0], first)
                assert torch.equal(lm(x)[0], first)
            assert not any(MEANS in vars(layer) for layer in lm.modules())
            assert all(latent.sampling is None for _, latent in lm.latents())
            assert torch.equal(lm.eval()(x)[0], mean)
            assert torch.allclose(draw.kl(), lm.kl())
        with lm.sampled(7):
            found.append(lm(x)[0])
        torch.testing.assert_close(found, [found[0]] * 3, rtol=0, atol=1e-12)

    def test_an_error_within_leaves_the_mean(self, case):
        lm, x = make_generic(build(case)).eval(), tokens()
        mean = lm(x)[0]
        with pytest.raises(ZeroDivisionError), lm.drawn(noise_generator(0, 0, 1)):
            1 / 0  # noqa: B018
        assert torch.equal(lm(x)[0], mean) and lm.has_draws()

    def test_the_kl_of_a_training_step_is_that_of_its_draw(self, case):
        model = BayesLanguageModel(make_generic(build(case)), VOCAB, num_train_tokens=50).train()
        _, stats, _ = model(*BATCH)
        model.lm.noise_step = 0
        with model.lm.drawn(weight_kl=True, token_kl=True) as draw:
            if is_latent(case):  # padding would have noise of its own
                nll = batch_nll(model, token_batch(model, *BATCH, BATCH[1]))
            else:
                nll = model.nll(*BATCH)[0].sum()
        latent = draw.token_kl()
        assert (latent is not None) == is_latent(case)
        assert torch.allclose(stats["nll"], nll / (BATCH[1] + 1).sum())
        if latent is None:
            assert torch.allclose(stats["kl"], draw.kl() / 50)


def test_a_learnt_prior_starts_by_the_distance_from_its_mean():
    """In units of the prior, the start is a share of the weights' distance from a trained mean."""
    kind = {"kind": "bayes", "prior_variance": "learn", "init_std_unit": "prior", "init_std": 0.5}
    lm = BayesLSTMLM(VOCAB, unit=4, uncertainty={"all_gates@1": kind})
    trained = {key: value + 1 for key, value in lm.state_dict().items()}
    with torch.no_grad():
        for block in lm.posterior.blocks():
            block.mean.add_(1.25)
    lm.posterior.set_prior_means(trained)
    lm.posterior.start_untrained()
    for block in lm.posterior.blocks():
        torch.testing.assert_close(block.std, torch.full_like(block.std, 0.125))


LSTM = (BayesLSTMLM, dict(unit=4), ["", "encoder", "rnn"])
TRANSFORMER = (
    BayesTransformerLM,
    dict(att_unit=4, head=2, unit=6, layer=2),
    ["", "embed", "blocks.0"],
)


@pytest.mark.parametrize(
    "family, location, native",
    [
        (LSTM, "cell_input@1", "tanh"),
        (LSTM, "cell_state@1", None),
        (LSTM, "layer_input@2", None),
        (TRANSFORMER, "ffn@1", "gelu"),
    ],
)
def test_the_prior_of_coefficients_is_the_function_that_they_start_as(family, location, native):
    """So their KL is at its least there, also where a point-estimate LM is the prior."""
    cls, conf, _ = family
    kind = {"kind": "gp", "random": ["coefficients"], "init_std": 0.2, "prior_variance": 0.5}
    lm = cls(VOCAB, uncertainty={location: kind}, **conf)
    (block,) = lm.posterior.blocks()
    start = torch.zeros_like(block.mean)
    if native is not None:
        start[BASIS.index(native)] = 1.0
    ratio = 0.2**2 / 0.5
    least = block.mean.numel() * (ratio - 1 - math.log(ratio)) / 2
    for prior in ({}, cls(VOCAB, **conf).state_dict()):
        if prior:
            lm.posterior.set_prior_means(prior)
        torch.testing.assert_close(block.tensor("_prior_mean"), start)
        assert float(lm.kl()) == pytest.approx(least, rel=1e-5)
    with torch.no_grad():
        block.mean.zero_()
    assert float(lm.kl()) == pytest.approx(least + float(start.sum()), rel=1e-5)


CHECKPOINTED = [
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


@pytest.mark.parametrize("whole, use_reentrant", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("layer, family, uncertainty", CHECKPOINTED)
def test_a_random_layer_is_not_computed_again(layer, family, uncertainty, whole, use_reentrant):
    if layer in ("encoder", "embed") and not whole:
        pytest.skip("a look-up has nothing to save")
    cls, conf, _ = family
    lm = cls(VOCAB, uncertainty=uncertainty, dropout_rate=0.2, **conf).double().train()
    module = lm if whole else lm.get_submodule(layer)
    # keeps nothing for the backward pass; the reentrant kind needs an input with a gradient
    forward, some = module.forward, torch.zeros((), requires_grad=True)
    module.forward = lambda *args: checkpoint(
        lambda some, *args: forward(*args), some, *args, use_reentrant=use_reentrant
    )
    with pytest.raises(InputError, match="activation checkpointing"):
        lm(torch.arange(12).view(3, 4))[0].sin().sum().backward()

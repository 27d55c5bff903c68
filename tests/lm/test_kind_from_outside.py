"""A kind that this package does not know, in one class: a Laplace posterior over weights."""

import pytest
import torch
from lm_cases import LSTM, SEQ_RNN, TRANSFORMER, VOCAB, build, search
from lm_cases import name as case_name
from test_contract import Contract, LocationContract
from torch.distributions import Laplace, kl_divergence

from espnet_bayeslm.bayes import Bayes, WeightKind
from espnet_bayeslm.bayes.base_kinds import KINDS
from espnet_bayeslm.evaluation.signal_to_noise import summarize_weights
from espnet_bayeslm.lm import BayesESPnetLM, BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.loading.export import point_uncertainty
from espnet_bayeslm.report.search_results import weights_figure
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.optimizer import split_posterior


class LaplaceKind(Bayes):
    """Laplace posterior and prior; options, start and tensors are those of the Gaussian."""

    name, colour = "laplace", "tab:orange"

    sample_with_kl = WeightKind.sample_with_kl

    def sample(self, block, mean, generator):
        """Mean + standard deviation * noise of mean 0 and standard deviation 1."""
        uniform = torch.empty_like(mean, requires_grad=False)
        uniform.uniform_(-0.5, 0.5, generator=generator)
        noise = -uniform.sign() * torch.log1p(-2 * uniform.abs()) / 2**0.5
        return mean + self.log_std(block).exp() * noise

    def kl(self, block):
        """KL of two Laplace distributions, summed."""
        scale, prior_scale = self.log_std(block).exp() / 2**0.5, self.prior_std / 2**0.5
        prior = Laplace(block.tensor("_prior_mean"), prior_scale)
        return kl_divergence(Laplace(block.mean, scale), prior).sum()


CASES = [
    (BayesLSTMLM, LSTM, {"cell_input@*": "laplace", "embedding": "laplace", "cell_state@1": "gp"}),
    (BayesTransformerLM, TRANSFORMER, {"ffn@1-2": "laplace", "attention@3": "bayes"}),
    (BayesESPnetLM, SEQ_RNN, {"output_gate@1": "laplace"}),
    (BayesLSTMLM, LSTM, {"cell_input@1": search("point", "bayes", "laplace")}),
]


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Make the kind known for one test; a program would decorate it by `register_kind`."""
    monkeypatch.setitem(KINDS, LaplaceKind.name, LaplaceKind)


@pytest.fixture(params=CASES, ids=map(case_name, CASES))
def case(request):
    return request.param


@pytest.fixture
def lm(case, known):
    return build(case)


class TestLaplaceContract(LocationContract, Contract):
    def test_kl_equals_torch_distributions(self, lm, case):
        expected = sum(b.kind.kl(b) for b in lm.posterior.blocks())
        assert torch.allclose(lm.kl(), expected) and lm.kl() > 0
        with lm.train().drawn(weight_kl=True) as draw:
            lm.compute(torch.ones(1, 3, dtype=torch.long), None)
        assert torch.allclose(draw.kl(), expected)


def test_draws_have_the_posterior_as_their_distribution():
    lm = BayesLSTMLM(VOCAB, unit=40, uncertainty={"cell_input@1": "laplace"}, init_std=0.3)
    mean = lm.rnn.weight_hh_l0
    with lm.sampled(0):
        noise = (lm.rnn.weight_hh_l0 - mean)[80:120].detach() / 0.3
    # 1600 draws: E|x| = 1 / sqrt(2) of a Laplace distribution, sqrt(2 / pi) of a Gaussian
    assert noise.std() == pytest.approx(1.0, abs=0.12)
    assert noise.abs().mean() == pytest.approx(0.5**0.5, abs=0.06)


def test_it_trains_and_has_its_rows():
    lm = build((BayesTransformerLM, TRANSFORMER, {"ffn@1": "laplace"}))
    model = BayesLanguageModel(lm, VOCAB, num_train_tokens=100).train()
    optimizer = split_posterior(torch.optim.SGD(model.parameters(), lr=0.1), model)
    assert [len(group["params"]) for group in optimizer.param_groups][1:] == [2]
    model(torch.randint(1, VOCAB - 1, (4, 5)), torch.full((4,), 5))[0].backward()
    optimizer.step()
    (summary,) = summarize_weights(lm.posterior.blocks())
    assert summary.location == "ffn@1" and summary.count == 12 * 9
    assert summary.median_std_ratio != 1.0
    assert point_uncertainty({"ffn@1": "laplace"}, path="config.yaml") == {}
    figure = weights_figure({"seed": {"ffn@1": {"point": 0.0, "laplace": 1.0}}})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["point", "laplace"]


def test_it_fits_where_weights_are_and_nowhere_else():
    with pytest.raises(ValueError, match=r"'laplace' does not fit.*point, gp"):
        BayesLSTMLM(VOCAB, uncertainty={"cell_state@1": "laplace"})
    with pytest.raises(ValueError, match="the same weights random, with different options"):
        both = {"cell_input@1": "laplace", "hidden_input@1": "gp"}
        BayesLSTMLM(VOCAB, unit=4, uncertainty=both)

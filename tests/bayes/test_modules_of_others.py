"""Modules that know nothing of this package, made Bayesian from outside and trained."""

import pytest
import torch
from espnet2.lm.transformer_lm import TransformerLM
from torch import nn
from torch.distributions import Normal, kl_divergence

from espnet_bayeslm.bayes import Posterior, noise_generator

BAYES = {"kind": "bayes", "init_std": 0.05, "prior_variance": 0.5}
VOCAB = 11


class Classifier(nn.Module):
    """A GRU whose last output is classified."""

    def __init__(self):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(VOCAB, 6), nn.GRU(6, 5, batch_first=True)
        self.out = nn.Linear(5, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def gru():
    model = Classifier()
    posterior = Posterior(model, {"rnn.weight_*": BAYES, "embed.weight": BAYES})
    return model, posterior, model


def espnets_transformer():
    model = TransformerLM(VOCAB, "sinusoidal", embed_unit=8, att_unit=8, head=2, unit=8, layer=2)
    posterior = Posterior(model, {"encoder.encoders.*.feed_forward.*": BAYES})
    return model, posterior, lambda ids: model(ids, None)[0]


def gpt2_with_lora():
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    sizes = dict(n_embd=8, n_layer=2, n_head=2, n_positions=32, vocab_size=VOCAB)
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["c_attn"]))
    posterior = Posterior(model, {"*.lora_A.*": BAYES, "*.lora_B.*": BAYES})
    return model, posterior, lambda ids: model(input_ids=ids).logits


@pytest.fixture(params=[gru, espnets_transformer, gpt2_with_lora])
def made(request):
    torch.manual_seed(0)
    model, posterior, logits = request.param()
    return model.double().eval(), posterior, logits


def tokens(seed=0):
    return torch.randint(1, VOCAB, (4, 7), generator=torch.Generator().manual_seed(seed))


def nll(logits, ids):
    return nn.functional.cross_entropy(logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def test_sample_kl_and_gradients_are_those_of_the_closed_forms(made):
    model, posterior, logits = made
    with posterior.sampled(noise_generator(0, 0, 3), with_kl=True) as sample:
        found = nll(logits, tokens()) + sample.kl() / 100
    # by torch.distributions
    generator, values, kl = noise_generator(0, 0, 3), {}, 0.0
    for block in posterior.blocks():
        mean, log_std = block.whole, block.tensor("_log_std")
        noise = torch.empty_like(mean).normal_(generator=generator)
        values[block.name] = mean + log_std.exp() * noise
        prior = Normal(torch.zeros_like(mean), 0.5**0.5)
        kl = kl + kl_divergence(Normal(mean, log_std.exp()), prior).sum()
    assert set(sample.values) == set(values)

    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return logits(ids)

    wrapped = Called()

    def functional(ids):
        given = {f"model.{name}": value for name, value in values.items()}
        return torch.func.functional_call(wrapped, given, (ids,))

    expected = nll(functional, tokens()) + kl / 100
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    leaves = [p for b in posterior.blocks() for p in (b.whole, b.tensor("_log_std"))]
    pair = [torch.autograd.grad(loss, leaves) for loss in (found, expected)]
    torch.testing.assert_close(*pair, rtol=0, atol=1e-10)


def test_a_few_steps_lower_the_bound_and_the_mean_comes_back(made):
    model, posterior, logits = made
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    # the mean is not the sample, and the same before and after
    mean = logits(tokens())
    with posterior.sampled(noise_generator(0, 0, 0)):
        assert not torch.allclose(logits(tokens()), mean)
    assert torch.equal(logits(tokens()), mean)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
        with posterior.sampled(noise_generator(0, 0, step), with_kl=True) as sample:
            loss = nll(logits, tokens()) + sample.kl() / 10_000
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < sum(losses[:5])


def test_checkpoints_of_the_module_load_and_the_posterior_travels_with_it(made):
    model, posterior, _ = made
    state = model.state_dict()
    own = {f"{b.name}{suffix}" for b in posterior.blocks() for suffix in ("_log_std", "_start_std")}
    assert own <= set(state)
    means = {key: value for key, value in state.items() if not key.endswith(("_std", "_mean"))}
    missing, unexpected = model.load_state_dict(means, strict=False)
    assert not unexpected and set(missing) == set(state) - set(means)

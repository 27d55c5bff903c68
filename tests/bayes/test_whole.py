import math

import pytest
import torch
from torch import nn

from espnet_bayeslm.bayes import Posterior
from espnet_bayeslm.bayes.weights import add_whole_posterior, whole_blocks
from espnet_bayeslm.utils.errors import InputError


class TiedLM(nn.Module):
    """An embedding, an LSTM, and a decoder that has the embedding's table."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(5, 4)
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.decoder = nn.Linear(4, 5)
        self.decoder.weight = self.encoder.weight

    def forward(self, ids):
        return self.decoder(self.rnn(self.encoder(ids))[0])


LOG_STD = math.log(0.1)


def make(log_std=LOG_STD):
    torch.manual_seed(0)
    posterior = Posterior(TiedLM().double())
    add_whole_posterior(posterior, log_std=log_std)
    return posterior.module, posterior


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def copy(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(states, others):
    return all(torch.equal(states[name], others[name]) for name in states)


def test_each_parameter_has_one_buffer_in_the_state_dict():
    module, posterior = make(log_std=-20.0)
    state, blocks = module.state_dict(), whole_blocks(posterior)
    names = [block.name for block in blocks]
    assert sorted(names) == sorted(name for name, _ in module.named_parameters())
    assert "encoder.weight" in names and "decoder.weight" not in names
    for block in blocks:
        log_std = block.tensor("_log_std")
        assert torch.equal(state[block.name], block.mean)
        assert state[f"{block.name}_log_std"].data_ptr() == log_std.data_ptr()
        assert log_std.shape == block.mean.shape and log_std.dtype == block.mean.dtype
        assert (log_std == -20).all() and not log_std.requires_grad
    assert sum(name.endswith("_log_std") for name in state) == len(names)
    assert whole_blocks(Posterior(TiedLM())) == []


def test_buffers_survive_a_checkpoint():
    (module, _), (other, _) = make(), make(log_std=-20.0)
    other.load_state_dict(module.state_dict())
    assert same(copy(module), copy(other))


def test_samples_are_mean_plus_std_times_noise():
    module, posterior = make()
    with torch.no_grad():
        module.decoder.bias_log_std.fill_(math.log(3.0))
    with posterior.sampled(generator()):
        noise = generator()
        for block in whole_blocks(posterior):
            eps = torch.empty_like(block.mean.data).normal_(generator=noise)
            expected = block.mean + block.tensor("_log_std").exp() * eps
            found = getattr(block.owner, block.parameter)
            assert torch.allclose(found, expected, rtol=0, atol=1e-15)
        assert module.encoder.weight is module.decoder.weight


def test_means_come_back_bit_for_bit():
    module, posterior = make()
    means, places = copy(module), [p.data_ptr() for p in module.parameters()]
    with posterior.sampled(generator()):
        assert not torch.equal(module.decoder.weight, means["decoder.weight"])
        with posterior.sampled(generator(2)):
            pass
    assert same(copy(module), means)
    with pytest.raises(KeyError), posterior.sampled(generator()):
        raise KeyError
    assert same(copy(module), means)
    assert places == [p.data_ptr() for p in module.parameters()]


def test_a_second_posterior_is_refused():
    uncertain = Posterior(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), {"1.weight": "bayes"})
    for posterior in (uncertain, make()[1]):
        keys = set(posterior.module.state_dict())
        with pytest.raises(InputError, match=r"posterior (over .* )?already"):
            add_whole_posterior(posterior)
        assert set(posterior.module.state_dict()) == keys

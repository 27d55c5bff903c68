import math

import pytest
import torch
from torch import nn

from espnet_bayeslm.bayes import Bayes, UncertainModule
from espnet_bayeslm.bayes.kinds import all_weights
from espnet_bayeslm.bayes.whole import add_whole_posterior, sampled_whole, whole_posterior
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
    module = TiedLM().double()
    add_whole_posterior(module, log_std=log_std)
    return module


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def copy(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(states, others):
    return all(torch.equal(states[name], others[name]) for name in states)


def test_each_parameter_has_one_buffer_in_the_state_dict():
    module = make(log_std=-20.0)
    state = module.state_dict()
    names = [name for name, _, _ in whole_posterior(module)]
    assert names == [name for name, _ in module.named_parameters()]
    assert "encoder.weight" in names and "decoder.weight" not in names
    for name, parameter, log_std in whole_posterior(module):
        assert torch.equal(state[name], parameter)
        assert state[f"{name}_log_std"].data_ptr() == log_std.data_ptr()
        assert log_std.shape == parameter.shape and log_std.dtype == parameter.dtype
        assert (log_std == -20).all() and not log_std.requires_grad
    assert sum(name.endswith("_log_std") for name in state) == len(names)


def test_names_are_those_of_the_part_that_is_asked():
    module = make()
    assert [name for name, _, _ in whole_posterior(module.decoder)] == ["bias"]
    assert "weight_ih_l0" in [name for name, _, _ in whole_posterior(module.rnn)]
    assert list(whole_posterior(TiedLM())) == []


def test_buffers_survive_a_checkpoint():
    module, other = make(), make(log_std=-20.0)
    other.load_state_dict(module.state_dict())
    assert same(copy(module), copy(other))


def test_draws_are_mean_plus_std_times_noise():
    module = make()
    means = copy(module)
    with torch.no_grad():
        module.decoder.bias_log_std.fill_(math.log(3.0))
    with sampled_whole(module, generator()):
        noise = generator()
        for name, parameter, log_std in whole_posterior(module):
            expected = means[name] + log_std.exp() * torch.empty_like(parameter.data).normal_(
                generator=noise
            )
            assert torch.allclose(parameter, expected, rtol=0, atol=1e-15)


def test_means_come_back_bit_for_bit():
    module = make().float()
    means, places = copy(module), [p.data_ptr() for p in module.parameters()]
    with sampled_whole(module, generator()):
        assert not same(copy(module), means)
        with sampled_whole(module, generator(2)):
            pass
    assert same(copy(module), means)
    with pytest.raises(KeyError), sampled_whole(module, generator()):
        raise KeyError
    assert same(copy(module), means)
    assert places == [p.data_ptr() for p in module.parameters()]


def test_a_draw_that_fails_half_way_leaves_the_means():
    module = make()
    module.decoder.bias_log_std = torch.zeros(3, dtype=torch.float64)
    means = copy(module)
    with pytest.raises(RuntimeError), sampled_whole(module, generator()):
        pass
    assert same(copy(module), means)


def test_absurd_standard_deviations_are_clamped():
    module = make(log_std=1e4)
    with sampled_whole(module, generator()):
        assert all(torch.isfinite(p).all() for p in module.parameters())


def test_a_second_posterior_is_refused():
    class Layer(UncertainModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 2))

    uncertain = nn.Sequential(nn.Linear(2, 2), Layer())
    kind = Bayes(init_std=0.1, prior_variance=1.0)
    kind.make_random(all_weights(uncertain[1]), "w@0")
    keys = set(uncertain.state_dict())
    for module in (uncertain, make()):
        with pytest.raises(InputError, match="posterior already"):
            add_whole_posterior(module)
    assert set(uncertain.state_dict()) == keys
    with pytest.raises(InputError, match="no posterior"), sampled_whole(TiedLM(), generator()):
        pass

"""A random embedding: which rows it draws, and what reaches its parameters."""

import pytest
import torch
import torch.nn.functional as F

from espnet_bayeslm.bayes import Posterior, noise_generator

ROWS, SIZE, PADDING = 50, 4, 0
IDS = torch.tensor([[3, 7, 3, 0], [49, 7, 1, 0]])
UNIQUE = [0, 1, 3, 7, 49]


@pytest.fixture
def embedding():
    torch.manual_seed(0)
    found = torch.nn.Embedding(ROWS, SIZE, padding_idx=PADDING).double()
    found.posterior = Posterior(found, {"weight": {"kind": "bayes", "init_std": 0.3}})
    with torch.no_grad():
        found.weight_log_std.add_(torch.randn(ROWS, SIZE).double() / 10)
    return found


def noise_of(step):
    return torch.randn(len(UNIQUE), SIZE, dtype=torch.double, generator=noise_generator(0, 0, step))


def test_only_the_rows_that_are_looked_up_are_drawn(embedding):
    generator = noise_generator(0, 0, 5)
    with embedding.posterior.sampled(generator, one_pass=True):
        vectors = embedding(IDS)
    rows = dict(zip(UNIQUE, noise_of(5), strict=True))
    for id, vector in zip(IDS.flatten().tolist(), vectors.flatten(0, 1), strict=True):
        expected = embedding.weight[id] + embedding.weight_log_std[id].exp() * rows[id]
        torch.testing.assert_close(vector, expected)
    as_many = noise_generator(0, 0, 5)
    torch.empty(len(UNIQUE), SIZE, dtype=torch.double).normal_(generator=as_many)
    assert torch.equal(generator.get_state(), as_many.get_state())


def test_gradients_are_those_of_a_table_drawn_whole(embedding):
    table = torch.zeros(ROWS, SIZE, dtype=torch.double)
    table[UNIQUE] = noise_of(2)
    weights = torch.randn(*IDS.shape, SIZE, dtype=torch.double)
    whole = embedding.weight + embedding.weight_log_std.exp() * table
    loss = (F.embedding(IDS, whole, PADDING) * weights).sum()
    names = ("weight", "weight_log_std")
    parameters = [getattr(embedding, name) for name in names]
    expected = torch.autograd.grad(loss, parameters)
    with embedding.posterior.sampled(noise_generator(0, 0, 2), one_pass=True):
        found = torch.autograd.grad((embedding(IDS) * weights).sum(), parameters)
    torch.testing.assert_close(found, expected)
    assert not found[1][PADDING].any()


def test_rows_are_drawn_for_one_look_up(embedding):
    """A second one would have other noise: it is refused."""
    with embedding.posterior.sampled(noise_generator(0, 0, 1), one_pass=True):
        embedding(IDS)
        with pytest.raises(RuntimeError, match="sample without one_pass"):
            embedding(IDS)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_nothing_to_look_up(embedding, shape):
    with embedding.posterior.sampled(noise_generator(0, 0, 1), one_pass=True):
        vectors = embedding(torch.zeros(shape, dtype=torch.long))
    assert vectors.shape == (*shape, SIZE)
    vectors.sum().backward()
    assert not embedding.weight.grad.any() and not embedding.weight_log_std.grad.any()

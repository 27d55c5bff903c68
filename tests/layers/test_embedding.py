"""A random embedding: which rows it draws, and what reaches its parameters."""

import contextlib

import pytest
import torch
import torch.nn.functional as F

from espnet_bayeslm.bayes import Posterior, noise_generator
from espnet_bayeslm.kernels import KERNELS
from espnet_bayeslm.layers.embedding import embed

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


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("padding", [PADDING, None])
def test_rows_and_table_have_one_gradient(embedding, random, padding):
    """That of the rows' look-up and that of a projection with the table, added."""
    embedding.padding_idx = padding
    weights = torch.randn(*IDS.shape, SIZE, dtype=torch.double)
    parameters = [embedding.weight, *([embedding.weight_log_std] if random else [])]

    def loss(look_up):
        sampled = embedding.posterior.sampled(noise_generator(0, 0, 2), one_pass=True)
        with sampled if random else contextlib.nullcontext():
            vectors, table = look_up()
        return (vectors * weights).sum() + (vectors @ table.t()).sin().sum()

    expected = torch.autograd.grad(loss(lambda: (embedding(IDS), embedding.weight)), parameters)
    found = torch.autograd.grad(loss(lambda: embed(embedding, IDS, embedding.weight)), parameters)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    # the table alone, and the rows alone
    _, table = embed(embedding, IDS, embedding.weight)
    assert torch.equal(
        torch.autograd.grad(table.sum(), embedding.weight)[0], torch.ones_like(table)
    )
    rows = torch.autograd.grad(embed(embedding, IDS, embedding.weight)[0].sum(), embedding.weight)[
        0
    ]
    torch.testing.assert_close(rows, torch.autograd.grad(embedding(IDS).sum(), embedding.weight)[0])
    with torch.no_grad():
        assert embed(embedding, IDS, embedding.weight)[1] is embedding.weight
    other = torch.randn(ROWS, SIZE)
    assert embed(embedding, IDS, other)[1] is other


def test_a_gradient_of_the_tied_weight_that_a_hook_keeps_stays_as_it_was(embedding):
    vectors, table = KERNELS["look_up"].kernel(embedding.weight, IDS, PADDING)
    weights, kept = torch.randn_like(table), []
    table.register_hook(kept.append)
    (vectors.sum() + (table * weights).sum()).backward()
    assert torch.equal(kept[0], weights)
    counts = torch.bincount(IDS.flatten(), minlength=ROWS)
    counts[PADDING] = 0
    expected = weights + counts.unsqueeze(1)
    torch.testing.assert_close(embedding.weight.grad, expected)


def test_a_gradient_of_the_tied_weight_that_nobody_keeps_is_not_copied(embedding):
    vectors, table = KERNELS["look_up"].kernel(embedding.weight, IDS, PADDING)
    made = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            fresh = torch.ones(ROWS, SIZE, dtype=torch.double)
            made.append(fresh.data_ptr())
            return fresh

    (vectors.sum() + Product.apply(table)).backward()
    assert embedding.weight.grad.data_ptr() == made[0]


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_nothing_to_look_up(embedding, shape):
    with embedding.posterior.sampled(noise_generator(0, 0, 1), one_pass=True):
        vectors = embedding(torch.zeros(shape, dtype=torch.long))
    assert vectors.shape == (*shape, SIZE)
    vectors.sum().backward()
    assert not embedding.weight.grad.any() and not embedding.weight_log_std.grad.any()

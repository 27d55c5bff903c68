"""The sampled softmax: what is drawn, the loss by hand, and what it is on average."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from espnet_bayeslm.layers.sampled import Proposal, sampled_loss

VOCAB = 11


def tensors(num_tokens=23, size=5, vocab=VOCAB, dtype=torch.float64):
    torch.manual_seed(1)
    outputs = torch.randn(num_tokens, size, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, size, dtype=dtype, requires_grad=True)
    bias = torch.randn(vocab, dtype=dtype, requires_grad=True)
    return outputs, weight, bias, torch.randint(1, vocab, (num_tokens,))


def proposal(num_samples, vocab=VOCAB):
    """Return one whose token 0 is never drawn, and whose last is drawn most."""
    return Proposal(torch.arange(vocab), num_samples)


def draws(proposal, count):
    generator = torch.Generator().manual_seed(0)
    return [proposal.draw(generator) for _ in range(count)]


@pytest.mark.parametrize("num_samples", [1, 4, 8, 10])
def test_tokens_are_drawn_as_often_as_said(num_samples):
    one, count = proposal(num_samples), 3000
    weights = torch.arange(VOCAB).double()
    expected, certain = num_samples * weights / weights.sum(), 0
    while (expected > 1).any():
        # the most frequent ones are certain, and the others share what is left
        certain += 1
        rest = weights[: VOCAB - certain]
        expected[: VOCAB - certain] = (num_samples - certain) * rest / rest.sum()
        expected[VOCAB - certain :] = 1
    torch.testing.assert_close(one.inclusion, expected, rtol=1e-12, atol=1e-15)
    assert one.log_inclusion[0] == 0
    torch.testing.assert_close(one.log_inclusion[1:], expected[1:].log())
    assert one.inclusion.sum().item() == pytest.approx(num_samples)
    found, pairs = torch.zeros(VOCAB), torch.zeros(VOCAB, VOCAB)
    for candidates in draws(one, count):
        assert (candidates.diff() > 0).all()
        found[candidates] += 1
        pairs[candidates.unsqueeze(1), candidates] += 1
    deviation = (expected * (1 - expected) / count).sqrt()
    assert ((found / count - expected).abs() <= 4 * deviation).all() and found[0] == 0
    # one token's presence says nothing of another's
    together = expected.outer(expected)
    deviation = (together * (1 - together) / count).sqrt().fill_diagonal_(1)
    assert ((pairs / count - together).abs() <= 4.5 * deviation).all()


def test_equal_weights():
    assert torch.equal(Proposal(torch.ones(8), 8).inclusion, torch.ones(8).double())
    assert torch.equal(Proposal(torch.ones(8), 2).inclusion, torch.full((8,), 0.25).double())


def test_the_counter_decides():
    one = proposal(5)
    first, second, third = (one.draw(torch.Generator().manual_seed(n)) for n in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_with_all_tokens_it_is_the_softmax():
    *leaves, targets = tensors()
    loss = sampled_loss(*leaves, targets, torch.arange(VOCAB), torch.zeros(VOCAB))
    logits = F.linear(*leaves)
    expected = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(loss.objective, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss.nll, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss.log_z, logits.logsumexp(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(loss.objective.sum(), leaves),
        torch.autograd.grad(expected.sum(), leaves),
        rtol=1e-10,
        atol=1e-12,
    )


def by_hand(outputs, weight, bias, target, candidates, inclusion):
    """Return objective, NLL and ln Z of one token."""
    unnormalised = (weight @ outputs + bias).exp()
    others = sum(unnormalised[v] / inclusion[v] for v in candidates if v != target)
    corrected = unnormalised[target] / inclusion[target]
    log_z = (others + unnormalised[target]).log()
    share = corrected / (others + corrected)
    return -share.log(), log_z - unnormalised[target].log(), log_z


@pytest.mark.parametrize("candidates", [[3], [1, 2, 3, 7], [1, 4, 5, 6, 8, 9, 10]])
def test_values_and_gradients_by_hand(candidates):
    *leaves, targets = tensors()
    targets[:4] = torch.tensor([3, 3, 7, 2])  # accidental hits, one of them twice
    one = proposal(6)
    found = sampled_loss(*leaves, targets, torch.tensor(candidates), one.log_inclusion)
    inclusion = one.log_inclusion.exp()
    outputs, weight, bias = leaves
    rows = [
        by_hand(x, weight, bias, int(target), candidates, inclusion)
        for x, target in zip(outputs, targets, strict=True)
    ]
    for name, expected in zip(found._fields, zip(*rows, strict=True), strict=True):
        ours, theirs = getattr(found, name), torch.stack(expected)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            torch.autograd.grad(ours.sum(), leaves, retain_graph=True),
            torch.autograd.grad(theirs.sum(), leaves, retain_graph=True),
            rtol=1e-09,
            atol=1e-12,
        )


def every_draw(one):
    """Yield each set of candidates, no candidate too, and its probability."""
    uncertain = ((one.inclusion > 0) & (one.inclusion < 1)).nonzero().squeeze(1)
    for present in itertools.product([False, True], repeat=len(uncertain)):
        chosen = one.inclusion == 1
        chosen[uncertain] = torch.tensor(present)
        probability = torch.where(chosen, one.inclusion, 1 - one.inclusion).prod()
        yield chosen.nonzero().squeeze(1), probability


@pytest.mark.parametrize("num_samples", [1, 4])
def test_z_is_right_on_average(num_samples):
    *leaves, targets = tensors(vocab=7)
    targets[0] = 5
    one, total = proposal(num_samples, vocab=7), 0
    for candidates, probability in every_draw(one):
        loss = sampled_loss(*leaves, targets, candidates, one.log_inclusion)
        total = total + probability * loss.log_z.exp()
    # but for the token that is never drawn
    expected = F.linear(*leaves)[:, 1:].exp().sum(1)
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("num_samples", [1, 3])
def test_the_objective_is_least_at_the_targets_distribution(num_samples):
    """With few candidates too; without the target's correction it would not be."""
    _, _, bias, _ = tensors(vocab=7)
    bias = bias[1:].detach()
    true = bias.softmax(0)
    logits = torch.cat([torch.zeros(1).double(), bias]).requires_grad_()
    # each token once as the target, weighed by its probability
    targets, none = torch.arange(1, 7), torch.zeros(7, 1).double()
    one = proposal(num_samples, vocab=7)
    objective = uncorrected = 0
    for candidates, probability in every_draw(one):
        loss = sampled_loss(none[1:], none, logits, targets, candidates, one.log_inclusion)
        objective = objective + probability * (true * loss.objective).sum()
        uncorrected = uncorrected + probability * (true * loss.nll).sum()
    (found,) = torch.autograd.grad(objective, logits, retain_graph=True)
    (other,) = torch.autograd.grad(uncorrected, logits)
    assert found.norm() < 1e-12 and other.norm() > 0.01


def test_no_tokens():
    outputs, weight, bias, targets = tensors()
    loss = sampled_loss(outputs[:0], weight, bias, targets[:0], torch.tensor([2]), bias.detach())
    assert loss.objective.sum() == 0
    assert all((g == 0).all() for g in torch.autograd.grad(loss.objective.sum(), [weight, bias]))


def test_under_autocast_sums_are_in_single_precision():
    *leaves, targets = tensors(300, 16, 50, torch.float32)
    one = proposal(20, 50)
    candidates = draws(one, 1)[0]

    def run():
        loss = sampled_loss(*leaves, targets, candidates, one.log_inclusion)
        return loss, torch.autograd.grad(loss.objective.sum(), leaves)

    expected, gradients = run()
    with torch.autocast("cpu", torch.bfloat16):
        found, low = run()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32 and not torch.equal(ours, theirs)
        assert ours.sum().item() == pytest.approx(theirs.sum().item(), rel=5e-3)
    for ours, theirs in zip(low, gradients, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_nothing_of_the_size_of_tokens_times_vocabulary_lives():
    tokens, size, vocab = 256, 8, 6000
    *leaves, targets = tensors(tokens, size, vocab, torch.float32)
    one = proposal(64, vocab)
    with torch.profiler.profile(profile_memory=True) as profile:
        loss = sampled_loss(*leaves, targets, draws(one, 1)[0], one.log_inclusion)
        loss.objective.sum().backward()
    peak = used = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            used += event.nbytes()
            peak = max(peak, used)
    # the dense gradients, and a few times the candidates' logits; of the vocabulary: 6.1 MB
    assert 0 < peak < 3 * vocab * (size + 1) * 4 + 12 * tokens * 64 * 4
    assert peak < tokens * vocab * 4 / 3

"""CTC's probability that a hypothesis has ended equals ESPnet's prefix scorer and a brute force."""

import itertools

import pytest
import torch

from espnet_bayeslm.decoding.ctc_ends import CTCEnds

NUM_TOKENS, NUM_FRAMES = 4, 6


@pytest.fixture
def ctc():
    """Return a CTC projection of random weights."""
    torch.manual_seed(0)
    return CTCEnds(NUM_TOKENS, 3).eval()


def collapsed(path):
    """Return the tokens of a path of frames."""
    return tuple(token for token, _ in itertools.groupby(path) if token)


def test_probabilities_are_sums_over_all_paths(ctc):
    encoded = torch.randn(NUM_FRAMES, 3)
    with torch.no_grad():
        start = ctc.begin(encoded)
    probs = start.log_probs.exp()
    whole, begins = {}, {}
    for path in itertools.product(range(NUM_TOKENS), repeat=NUM_FRAMES):
        p = float(torch.stack([probs[t, token] for t, token in enumerate(path)]).prod())
        tokens = collapsed(path)
        whole[tokens] = whole.get(tokens, 0.0) + p
        for n in range(len(tokens) + 1):
            begins[tokens[:n]] = begins.get(tokens[:n], 0.0) + p
    for length in (1, 2, 3):
        for tokens in itertools.product(range(1, NUM_TOKENS), repeat=length):
            prefix = start
            for token in tokens:
                (prefix,) = ctc.after([prefix], [token])
            assert float(prefix.log_prob.exp()) == pytest.approx(begins[tokens], rel=1e-6)
            end = torch.tensor(prefix.end_log_prob).exp()
            assert float(end) == pytest.approx(whole[tokens] / begins[tokens], rel=1e-5)


def test_many_hypotheses_at_once_and_long_utterances(ctc):
    encoded = 20 * torch.randn(2000, 3)
    with torch.no_grad():
        start = ctc.begin(encoded)
    together = alone = [start] * 3
    for tokens in ([1, 2, 3], [1, 1, 2], [2, 1, 3]):
        together = ctc.after(together, tokens)
        alone = [ctc.after([p], [t])[0] for p, t in zip(alone, tokens, strict=True)]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.ends, other.ends)
    # against torch's own loss
    for prefix in together:
        loss = torch.nn.functional.ctc_loss(
            start.log_probs[:, None],
            torch.tensor([prefix.tokens]),
            torch.tensor([2000]),
            torch.tensor([3]),
            reduction="sum",
        )
        assert float(prefix.ends[:, -1].logsumexp(0)) == pytest.approx(-float(loss), rel=1e-9)

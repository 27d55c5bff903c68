"""Words that wait until their hypothesis leads: totals stay rescoring's, and fewer are paid."""

import pytest
import torch
from test_fusion_lm import CUTS, look_ahead, sources
from test_fusion_search import SIZE, TOKENS, arpa, fusion, searched

from espnet_bayeslm.decoding.fusion_lm import FusionLM

__all__ = ["arpa", "sources"]

PIECES, LINES = CUTS["pieces"]
FIRST, SECOND = ([PIECES.index(p) for p in line.split()][:6] for line in list(LINES.values())[::2])


def mixed(sources, **options):
    """Return a fusion of a causal LM and an n-gram, with a look-ahead of random weights."""
    torch.manual_seed(1)
    components = {**sources["mixture"], "text_form": "lower"}
    options = {"weights": [0.3, 0.7], "ahead": look_ahead(1), "end_margin": 1e9, **options}
    return FusionLM(len(PIECES), PIECES, components, **options).eval()


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_leaders", [1, 2])
def test_totals_of_a_search(num_leaders, ahead, interval, arpa):
    encoded = torch.randn(20, SIZE, generator=torch.Generator().manual_seed(3))
    given = {"ahead": look_ahead(ahead), "interval": interval, "num_leaders": num_leaders}
    lm = fusion(arpa, **given, end_margin=1e9)
    ids, scores = zip(*searched(lm, encoded, lm.ctc), strict=True)
    assert scores == pytest.approx(lm.text_log_probs(ids), abs=1e-4)
    assert max(len(lm.payments.words(own)) for own in ids) > 3


def score_pairs(lm, orders):
    """Return sums of scores of two hypotheses, whose order changes; the last step has both ends."""
    xs = torch.zeros(1, 5, SIZE).expand(2, -1, -1)
    sums, states = {FIRST[0]: 0.0, SECOND[0]: 0.0}, [None, None]
    for n, first in enumerate(orders):
        pair = (FIRST, SECOND) if first == 0 else (SECOND, FIRST)
        if n and first != orders[n - 1]:
            states = states[::-1]
        ys = torch.tensor([[len(PIECES) - 1, *own[:n]] for own in pair])
        rows, states = lm.batch_score(ys, states, xs)
        for own, row in zip(pair, rows, strict=True):
            token = own[n] if n < len(own) else len(PIECES) - 1
            sums[own[0]] += float(row[token])
    return [sums[FIRST[0]], sums[SECOND[0]]]


@pytest.mark.parametrize("takes_back", [True, False])
@pytest.mark.parametrize("orders", [(0,) * 7, (1,) * 7, (0, 0, 1, 1, 0, 1, 0), (1, 0) * 3 + (1,)])
def test_a_hypothesis_that_leads_has_paid_all_its_words(orders, takes_back, sources):
    lm = mixed(sources, num_leaders=1, takes_back=takes_back)
    found = score_pairs(lm, orders)
    expected = lm.text_log_probs([FIRST, SECOND])
    if not takes_back:
        ids = torch.tensor([[len(PIECES) - 1, *own] for own in (FIRST, SECOND)])
        with torch.no_grad():
            ahead = lm.ahead(ids, None)[0]
        targets = torch.tensor([[*own, len(PIECES) - 1] for own in (FIRST, SECOND)])
        kept = ahead.gather(2, targets[..., None]).sum((1, 2)).tolist()
        expected = [own + 0.5 * stays for own, stays in zip(expected, kept, strict=True)]
    # the last step has words due, and ends
    assert found == pytest.approx(expected, abs=1e-4)


def test_n_grams_stand_in_for_words_that_wait(sources):
    lm = mixed(sources, num_leaders=1, ahead=None)
    xs, states = torch.zeros(1, 5, SIZE).expand(2, -1, -1), [None, None]
    word = PIECES.index("▁so")
    for n in range(3):
        # the first has begun no word, and may not end
        lm.end_margin = -1e9
        ys = torch.tensor([[len(PIECES) - 1, 1, 1], [len(PIECES) - 1, word, word]])[:, : n + 1]
        rows, states = lm.batch_score(ys, states, xs)
    mixture = lm._loaded.on("cpu")
    (ngram,) = [c.scorer for c in mixture.components if c.kind == "ngram"]
    expected = ngram.next_words([ngram.begin()], ["so"])[0]
    assert states[1].text.due and rows[1, word] == pytest.approx(expected, abs=1e-5)
    rows, states = lm.batch_score(
        torch.cat([ys, torch.tensor([[1], [PIECES.index("re")]])], 1).flip(0), states[::-1], xs
    )
    exact = mixture.next_words([mixture.begin()], ["so"])[0]
    assert not states[0].text.due
    assert rows[0, word] == pytest.approx(exact - expected, abs=1e-5)


def test_each_utterance_of_a_batch_has_leaders(arpa):
    """Its ends wait until its own leader may end, in a search that tells ranks."""
    lm = fusion(arpa, num_leaders=1)
    lm._can_end = lambda *_: [False, True, True, True, False]
    lm.ctc = None
    ys = torch.full((5, 1), len(TOKENS) - 1)
    one, other = torch.randn(2, 9, SIZE)
    for xs, ends in (
        (torch.stack([one, one, other, other, other]), [False, False, True, True, False]),
        (one.expand(5, -1, -1), [False] * 5),
        (None, [False, True, True, True, False]),
    ):
        rows, _ = lm.batch_score(ys, [None] * 5, xs)
        assert (rows[:, -1] > -torch.inf).tolist() == ends
    rows, _ = lm(ys, None)
    assert (rows[:, 0, -1] > -torch.inf).tolist() == [False, True, True, True, False]

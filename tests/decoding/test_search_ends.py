"""Ends that wait until a search is over: totals stay rescoring's, and no LM is asked before."""

import pytest
import torch
from espnet_nets import BatchBeamSearch, CTCPrefixScorer
from test_fusion_lm import look_ahead
from test_fusion_search import CTC, SIZE, STEPS, TOKENS, arpa, fusion

from espnet_bayeslm.scoring.word_scores import END

__all__ = ["arpa"]
LAST, BEAM, WEIGHT = len(TOKENS) - 1, 6, 0.4


def search_of(lm, **options):
    """Return ESPnet's search with a fusion and its CTC."""
    end = {"sos": LAST, "eos": LAST, "vocab_size": len(TOKENS), "pre_beam_score_key": None}
    scorers = {"lm": lm, "ctc": CTCPrefixScorer(ctc=CTC(lm.ctc), eos=LAST)}
    weights = {"lm": WEIGHT, "ctc": 0.6}
    return BatchBeamSearch(scorers=scorers, weights=weights, beam_size=BEAM, **end, **options)


@pytest.fixture
def encoded():
    """Return the output of an encoder for two utterances."""
    return torch.randn(2, 14, SIZE, generator=torch.Generator().manual_seed(3))


def tokens_of(hyp):
    """Return tokens of a hypothesis without start and end; ESPnet ends some twice."""
    ids = hyp.yseq.tolist()[1:]
    return ids[: ids.index(LAST)]


def expected(lm, ids):
    """Return ln P of texts, with the look-ahead's scores where they stay."""
    found = lm.text_log_probs(ids)
    if lm.ahead_stays:
        for n, own in enumerate(ids):
            with torch.no_grad():
                rows, _ = lm.ahead(torch.tensor([[LAST, *own]]), None)
            targets = torch.tensor([*own, LAST])[:, None]
            found[n] += lm.ahead_weight * float(rows[0].gather(1, targets).sum())
    return found


@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("takes_back", [True, False])
@torch.no_grad()
def test_totals(interval, takes_back, arpa, encoded):
    how = {"ahead": look_ahead(1), "interval": interval, "takes_back": takes_back}
    lm = fusion(arpa, **how, normalize=STEPS)
    search = search_of(lm)
    within = {tuple(tokens_of(hyp)): float(hyp.score) for hyp in search(encoded[0])}
    lm.attach_to(search)
    found = search(encoded[0])
    ids = [tokens_of(hyp) for hyp in found]
    assert 1 < len(found) <= BEAM
    assert max(len(lm.payments.words(own)) for own in ids) > 3
    parts = [float(hyp.scores["lm"]) for hyp in found]
    assert parts == pytest.approx(expected(lm, ids), abs=1e-4)
    scores = [float(hyp.score) for hyp in found]
    assert scores == sorted(scores, reverse=True)
    weighted = [WEIGHT * h.scores["lm"] + 0.6 * h.scores["ctc"] for h in found]
    assert scores == pytest.approx([*map(float, weighted)], abs=1e-4)
    both = [n for n, own in enumerate(ids) if tuple(own) in within]
    assert len(both) > 1
    assert [scores[n] for n in both] == pytest.approx(
        [within[tuple(ids[n])] for n in both], abs=1e-4
    )


@pytest.mark.parametrize("takes_back", [True, False])
@torch.no_grad()
def test_hypotheses_that_are_cut_off_pay_all_words_and_the_end(takes_back, arpa, encoded):
    lm = fusion(arpa, ahead=look_ahead(1), interval=5, takes_back=takes_back)
    search = search_of(lm)
    lm.attach_to(search)
    found = [hyp for hyp in search(encoded[0], maxlenratio=-6) if len(hyp.yseq) == 6 + 2]
    assert any(LAST not in hyp.yseq[1:-1] for hyp in found)
    parts = [float(hyp.scores["lm"]) for hyp in found]
    assert parts == pytest.approx(expected(lm, [tokens_of(hyp) for hyp in found]), abs=1e-4)


@torch.no_grad()
def test_no_lm_is_asked_for_ends_before_the_search_is_over(arpa, encoded, monkeypatch):
    lm = fusion(arpa, ahead=look_ahead(1), interval=3)
    search, mixture, asked = search_of(lm), lm._mixture(), []
    lm.attach_to(search)
    next_words = mixture.next_words
    monkeypatch.setattr(
        mixture, "next_words", lambda s, words: asked.append([*words]) or next_words(s, words)
    )
    search(encoded[0])
    assert len(asked) > 2 and END in asked[-1]
    assert not any(END in words for words in asked[:-1])
    assert not lm.ends_wait


@torch.no_grad()
def test_utterances_of_a_batch(arpa, encoded):
    lm = fusion(arpa, ahead=look_ahead(1), interval=2)
    search = search_of(lm)
    if not hasattr(search, "_n_utt"):
        pytest.skip("the installed ESPnet searches one utterance at a time")
    lm.attach_to(search)
    alone = [search(own) for own in encoded]
    for one, of_batch in zip(alone, search(encoded), strict=True):
        assert [tokens_of(hyp) for hyp in of_batch] == [tokens_of(hyp) for hyp in one]
        assert [float(hyp.score) for hyp in of_batch] == pytest.approx(
            [float(hyp.score) for hyp in one], abs=1e-4
        )


@torch.no_grad()
def test_order_by_length(arpa, encoded):
    lm = fusion(arpa, ahead=look_ahead(1), interval=2)
    search = search_of(lm)
    if not hasattr(search, "normalize_length"):
        pytest.skip("the installed ESPnet does not divide by the length")
    search.normalize_length = True
    lm.attach_to(search)
    ranks = [float(hyp.score) / (len(hyp.yseq) - 1) for hyp in search(encoded[0])]
    assert ranks == sorted(ranks, reverse=True) and len(ranks) > 1


@torch.no_grad()
def test_without_a_look_ahead_ends_are_paid_within_the_search(arpa, encoded):
    lm = fusion(arpa, end_margin=1e9)
    search = search_of(lm)
    lm.attach_to(search)
    assert "forward" not in vars(search) and search(encoded[0])

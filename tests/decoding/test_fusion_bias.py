"""Bias lists in ESPnet's search pay what a rescoring of its hypotheses pays them."""

import numpy as np
import pytest
import torch
from espnet_nets import BatchBeamSearch, CTCPrefixScorer
from test_fusion_lm import CUTS, look_ahead, sources, total
from test_fusion_search import CTC, SIZE, STEPS, TOKENS, arpa, fusion, searched

from espnet_bayeslm.decoding.fusion_lm import FusionLM
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.utils.errors import InputError

__all__ = ["arpa", "sources"]

PHRASES = {"we could": 2.0, "so": None, "the remote is": 4.0, "the table": 1.5, "there": 0.25}
BIAS = BiasList(PHRASES.items())
OTHER = BiasList([("put it", 3.0), ("there", None), ("could", 2.0), ("do", 1.0)])


@pytest.mark.parametrize("ahead, interval", [(False, 1), (True, 1), (True, 3)])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("with_lm", [False, True])
def test_a_finished_hypothesis_has_the_weight_of_its_phrases(
    with_lm, cut, ahead, interval, sources
):
    tokens, cuts = CUTS[cut]
    torch.manual_seed(1)
    lm = FusionLM(
        len(tokens),
        tokens,
        sources["n-gram"] if with_lm else None,
        ahead=look_ahead(ahead),
        end_margin=1e9,
        interval=interval,
        bias=PHRASES,
        bias_weight=1.7,
    ).eval()
    found = []
    for text, pieces in cuts.items():
        ids = [tokens.index(piece) for piece in pieces.split()]
        (expected,) = lm.text_log_probs([ids])
        assert bool(expected) == with_lm
        found.append(BIAS.total(text.split()))
        expected += 1.7 * found[-1]
        assert total(lm, ids, ends_early=interval == 1) == pytest.approx(expected, abs=1e-4)
    assert any(found)


@pytest.mark.parametrize("normalize", ["", STEPS])
@pytest.mark.parametrize("with_lm", [False, True])
def test_totals_of_a_search(normalize, with_lm, arpa):
    given = dict(bias=[], bias_weight=1.3, normalize=normalize, ahead=look_ahead(1))
    encoded = torch.randn(20, SIZE, generator=torch.Generator().manual_seed(3))
    lm = fusion(arpa if with_lm else None, **given, end_margin=1e9)
    plain = searched(lm, encoded, lm.ctc)
    phrases = (
        ["so we", "do not put", "it", "putting"] if normalize else ["So", "So WE", "WE", "-", "it."]
    )
    bias = BiasList((phrase, None) for phrase in phrases)
    lm.set_bias(bias)
    found = searched(lm, encoded, lm.ctc)
    held = [lm.bias_total(ids, bias) for ids, _ in found]
    expected = np.add(lm.text_log_probs([ids for ids, _ in found]), held)
    assert [score for _, score in found] == pytest.approx([*expected], abs=1e-4)
    assert len(found) > 1 and max(held) > 0
    lm.set_bias(None)
    assert searched(lm, encoded, lm.ctc) == plain


def search_of(lm, ctc, *, beam_size=6):
    """Return ESPnet's search with the LM and a CTC."""
    end = len(TOKENS) - 1
    return BatchBeamSearch(
        scorers={"lm": lm, "ctc": CTCPrefixScorer(ctc=CTC(ctc), eos=end)},
        weights={"lm": 0.4, "ctc": 0.6},
        beam_size=beam_size,
        vocab_size=len(TOKENS),
        sos=end,
        eos=end,
        pre_beam_score_key=None,
    )


def test_a_word_that_the_search_finds_by_its_list_alone(arpa):
    """CTC hears another word a little better, in each place, and keeps a beam of two."""
    lm = fusion(None, bias=[], bias_weight=6.0)
    torch.nn.init.zeros_(lm.ctc.projection.bias)
    torch.nn.init.zeros_(lm.ctc.projection.weight)
    lm.ctc.projection.weight.data[:SIZE] = torch.eye(SIZE)
    frames, heard = torch.full((9, SIZE), -3.0), [2, 0, 3, 0, 4, 0, 4, 0, 2]
    frames[range(9), heard] = 6.0
    frames[[2, 4, 6], 7] = 5.0  # ▁put is nearly as likely
    search = search_of(lm, lm.ctc, beam_size=2)
    with torch.no_grad():
        plain = [hyp.yseq.tolist() for hyp in search(frames)]
        lm.set_bias(BiasList([("put put", None)]))
        (best, *_) = search(frames)
    assert best.yseq.tolist().count(7) == 2
    assert not any(hyp.count(7) == 2 for hyp in plain)


def test_hypotheses_of_utterances_with_lists_of_their_own(arpa, caplog):
    """Each row of a batch has the scores that it has alone, and beams of one utterance its list."""
    lists = [BIAS, OTHER, BiasList(), OTHER]
    lm = fusion(arpa, bias=PHRASES, normalize=STEPS, ahead=look_ahead(1), end_margin=1e9)
    rng = np.random.default_rng(0)
    rows = [[len(TOKENS) - 1, *rng.integers(2, len(TOKENS) - 1, 5).tolist()] for _ in range(8)]

    def scored(rows):
        states, found = [None] * len(rows), []
        for n in range(1, len(rows[0]) + 1):
            ys = torch.tensor([row[:n] for row in rows])
            scores, states = lm.batch_score(ys, states, None)
            found.append(scores)
        return torch.stack(found, 1)

    alone = []
    for n, row in enumerate(rows):
        lm.set_bias(lists[n // 2])
        alone.append(scored([row]))
    lm.set_bias(lists)
    torch.testing.assert_close(scored(rows), torch.cat(alone), atol=1e-4, rtol=0)
    found = scored(rows[:3])
    assert "3 hypotheses begin, and there are bias lists of 4 utterances" in caplog.text
    lm.set_bias(BiasList())
    torch.testing.assert_close(found, scored(rows[:3]))
    lm.set_bias(None)
    torch.testing.assert_close(scored(rows[:1]), alone[0], atol=1e-4, rtol=0)


def test_a_batched_search_with_lists_of_each_utterance(arpa):
    if not hasattr(BatchBeamSearch, "_n_utt"):
        pytest.skip("this ESPnet searches one utterance at a time")
    lists = [BIAS, OTHER, BiasList(), OTHER, BIAS, BIAS, OTHER, BiasList()]
    lm = fusion(arpa, bias=[], bias_weight=1.3, normalize=STEPS, end_margin=1e9)
    encoded = torch.randn(8, 24, SIZE, generator=torch.Generator().manual_seed(3))
    lm.set_bias(lists)
    search, num_held = search_of(lm, lm.ctc), 0
    with torch.no_grad():
        every = search(encoded, x_lengths=torch.full((8,), 24))
    for bias, hyps in zip(lists, every, strict=True):
        for hyp in (hyp for hyp in hyps if len(hyp.yseq) < 24):
            ids = hyp.yseq[1:-1].tolist()
            held = lm.bias_total(ids, bias)
            num_held += held > 0
            expected = lm.text_log_probs([ids])[0] + held
            assert float(hyp.scores["lm"]) == pytest.approx(expected, abs=1e-4)
    assert num_held > 5


@pytest.mark.parametrize(
    "bias, message",
    [
        (["anna"], r"1 of the 1 phrases .* no token has, as 'anna' .a."),
        ("lists.jsonl", "bias lists of 1 utterances, and one list for all was expected"),
        ({"so": -1.0}, "'so' has the weight -1"),
    ],
)
def test_bad_lists(bias, message, arpa, tmp_path):
    if bias == "lists.jsonl":
        (tmp_path / bias).write_text('{"utt": "u", "words": ["so"]}\n')
        bias = tmp_path / bias
    with pytest.raises(InputError, match=message):
        fusion(arpa, bias=bias)

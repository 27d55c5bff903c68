"""Scores of given texts, against those of the search that has found them."""

import itertools

import numpy as np
import pytest
import soundfile
import torch
from test_nbest_tool import asr, audio, trained_lm

from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.recognisers.espnet_asr import BeamSearch
from espnet_bayeslm.recognisers.given_tokens import _ctc

__all__ = ["asr", "audio", "trained_lm"]


@pytest.mark.parametrize("with_lm", [False, True])
def test_texts_that_the_search_has_found_have_its_scores(with_lm, asr, audio, trained_lm):
    """All of those that have ended; the longest ones may have been cut off."""
    lm = trained_lm if with_lm else None
    search = BeamSearch(asr, lm=lm, lm_weight=0.4, ctc_weight=0.3, penalty=0.2, size=6)
    pairs = []
    for name in ("u1.flac", "u2.wav"):
        samples, _ = soundfile.read(audio / name, dtype="float32")
        found = search.with_tokens(samples)
        scored = search.scored_tokens(samples, [*found])
        assert [row.hypothesis.words for row in scored] == [hyp.words for hyp in found.values()]
        longest = max(map(len, found))
        pairs += [
            (old, new.hypothesis)
            for ids, old, new in zip(found, found.values(), scored, strict=True)
            if len(ids) < longest
        ]
    assert len(pairs) > 2
    for old, new in pairs:
        assert new.am_score == pytest.approx(old.am_score, abs=1e-4)
        assert new.lm_score == (pytest.approx(old.lm_score, abs=1e-4) if with_lm else None)
        for name, value in old.extra.items():
            assert new.extra[name] == pytest.approx(value, abs=1e-4)


def test_texts_of_near_words_stand_among_the_others(asr, audio):
    """In the order of the totals; those with a letter that no token has are left out."""
    search = BeamSearch(asr, lm_weight=0.3, ctc_weight=0.3, size=3)
    samples, _ = soundfile.read(audio / "u1.flac", dtype="float32")
    plain = search(samples)
    words = ("a", "b", "a")
    given = []

    def near_texts(hypotheses, bias):
        given.append(([*hypotheses], bias))
        return {words: ("a phrase",), ("strange",): ("strange",)}

    search.near_texts, bias = near_texts, BiasList([("a phrase", None)])
    assert search(samples) == plain and not given  # no list
    found = search(samples, bias)
    assert given == [(plain, bias)] and len(found) == len(plain) + 1
    (new,) = [hyp for hyp in found if hyp.extra.get("near_words") == ["a phrase"]]
    assert words not in [hyp.words for hyp in plain] and new.words == words
    assert [hyp for hyp in found if hyp is not new] == plain
    scores = [hyp.am_score for hyp in found]
    assert scores == pytest.approx(sorted(scores, reverse=True), abs=1e-3)
    search.near_texts = lambda hypotheses, bias: {("strange",): ("strange",)}
    assert search(samples, bias) == plain


def test_ln_p_by_ctc_is_that_of_all_alignments():
    torch.manual_seed(0)
    log_probs = torch.randn(1, 4, 3).log_softmax(-1)
    rows = [[], [1], [1, 2], [1, 1], [2, 1, 2], [1, 1, 1]]
    expected = dict.fromkeys(map(tuple, rows), -np.inf)
    for path in itertools.product(range(3), repeat=4):
        said = tuple(token for token, _ in itertools.groupby(path) if token)
        total = float(log_probs[0, range(4), path].sum())
        expected[said] = np.logaddexp(expected.get(said, -np.inf), total)
    assert _ctc(log_probs, rows) == pytest.approx([expected[tuple(row)] for row in rows])

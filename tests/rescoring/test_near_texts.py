"""Texts of near words that a recogniser is to score, and lists that hold them."""

import dataclasses

import numpy as np

from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.bias import bias_features, decoys_of
from espnet_bayeslm.rescoring.near_texts import near_texts, with_phrases

STEPS = Normalization("lower,punct")
HYPS = [Hypothesis(tuple(text.split())) for text in ("Mister Mendelson, came", "Mendelson came in")]
BIAS = BiasList((w, None) for w in ("mendelssohn", "kamen", "zebra"))


def test_the_best_text_of_each_phrase_comes_first():
    found = near_texts(HYPS, BIAS, normalised=STEPS.words, most=10)
    texts = [*map(" ".join, found)]
    firsts = ["Mister mendelssohn came", "Mister Mendelson, kamen", "Mister mendelssohn kamen"]
    assert sorted(texts[:3]) == sorted(firsts) and "mendelssohn came in" in texts[3:]
    for words, phrases in found.items():
        assert {*phrases} == {*words} & {*BIAS.weights}
    fewer = near_texts(HYPS, BIAS, normalised=STEPS.words, most=2)
    assert [*map(" ".join, fewer)] == texts[:2]
    assert not near_texts(HYPS, BiasList(), normalised=STEPS.words, most=10)
    assert not near_texts([], BIAS, normalised=STEPS.words, most=10)


def test_a_decoy_has_no_text_that_was_made_of_what_was_said():
    """Not by the recogniser either; other hypotheses with the phrase stay."""
    hyps = [dataclasses.replace(HYPS[0], words=tuple(t.split())) for t in ("a b", "zebra", "kamen")]
    hyps = (*hyps[:2], with_phrases(hyps[1], ["zebra"]), with_phrases(hyps[2], ["kamen"]))
    nbest, lists = NBest("u", hyps), BiasLists(shared=BIAS)
    own = bias_features(BIAS, nbest)
    found = decoys_of([own], [np.arange(4)], [nbest], {"u": ["a", "zebra"]}, lists, 0.5)
    assert found["decoy_errors"][0].tolist() == [0, 1, 3]

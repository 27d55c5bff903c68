"""Near words: hypotheses with a listed name in place of words that are spelled nearly so."""

import dataclasses
import math

import numpy as np
import pytest
import yaml
from scipy.optimize import minimize

import espnet_bayeslm
from espnet_bayeslm.bin.rescore import get_parser
from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists
from espnet_bayeslm.evaluation.near_spellings import Near
from espnet_bayeslm.evaluation.wer import ALL_WORDS
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.bias import bias_features, decoys_of
from espnet_bayeslm.rescoring.features import hypothesis_features, totals
from espnet_bayeslm.rescoring.near_odds import KNOWN, NearWords, OddsWeights, WordRun, map_weights
from espnet_bayeslm.rescoring.near_words import OddsTuning, with_near_words

COMMON = {"the": 500, "we": 300, "saw": 100, "and": 200}


def bias_of(*phrases):
    return BiasList((phrase, None) for phrase in phrases)


def list_of(*texts, **more):
    hyps = (Hypothesis(tuple(t.split()), -float(n)) for n, t in enumerate(texts))
    return NBest("u", tuple(hyps), **more)


def texts_of(nbest):
    return [" ".join(hyp.words) for hyp in nbest.hypotheses]


def test_names_stand_for_words_that_are_near():
    nbest = list_of("we saw oh reilly and the cat", "we saw oh riley and the cat")
    odds = NearWords(counts=COMMON)
    found = with_near_words(nbest, bias_of("o'reilly", "katharina", "unlike"), odds)
    assert texts_of(found)[:2] == texts_of(nbest)
    new = found.hypotheses[2:]
    assert "we saw o'reilly and the cat" in [" ".join(hyp.words) for hyp in new]
    assert len({hyp.words for hyp in found.hypotheses}) == len(found.hypotheses)
    for hyp in new:
        origin = nbest.hypotheses[hyp.rewriting.origin]
        assert hyp.am_score == origin.am_score and hyp.rewriting.ln_odds >= odds.least
        assert set(hyp.rewriting.phrases) <= set(hyp.words)
        assert hyp.extra == {"near_words": list(hyp.rewriting.phrases)}


def test_words_of_the_list_and_common_ones_stay():
    nbest = list_of("we saw anna")
    assert with_near_words(nbest, bias_of("anna", "hanna"), NearWords(counts=COMMON)) is nbest
    assert with_near_words(nbest, bias_of(), NearWords(counts=COMMON)) is nbest
    often = NearWords(counts={"anna": 10**6, **COMMON})
    rarely = NearWords(counts=COMMON)
    run = WordRun(("anna",), often.ln_frequency(("anna",), {}), 1.0, 4)
    rare = run._replace(ln_frequency=rarely.ln_frequency(("anna",), {}))
    near = Near("hanna", 5, 1)
    assert often.ln_odds(run, near, 100) < rarely.ln_odds(rare, near, 100) - 3


def test_longer_lists_cost_more():
    run, near = WordRun(("riley",), 1.0, 1.0, 5), Near("reilly", 6, 2)
    odds = NearWords()
    loss = odds.ln_odds(run, near, 100) - odds.ln_odds(run, near, 10_000)
    assert loss == pytest.approx(0.5 * math.log(100))


def test_the_list_as_it_came_gets_the_same_hypotheses():
    source = list_of("WE SAW OH REILLY")
    nbest = dataclasses.replace(
        source.with_words(lambda w: tuple(map(str.lower, w))), source=source
    )
    found = with_near_words(nbest, bias_of("o'reilly"), NearWords(counts=COMMON))
    assert "we saw o'reilly" in texts_of(found)
    assert [text.lower() for text in texts_of(found.source)] == texts_of(found)
    assert all(text.isupper() for text in texts_of(found.source))


def test_features_are_those_of_the_hypothesis_it_comes_from():
    bias = bias_of("o'reilly", "anna")
    nbest = list_of("we saw oh reilly", "anna saw oh reilly")
    found = with_near_words(nbest, bias, NearWords(counts=COMMON))
    features = hypothesis_features(found, {}) | bias_features(bias, found)
    for place, hyp in enumerate(found.hypotheses):
        origin = place if hyp.rewriting is None else hyp.rewriting.origin
        for name in ("am_score", "rank", "is_first", "bias", "words", "chars"):
            assert features[name][place] == features[name][origin]
        assert features["rewritten"][place] == (hyp.rewriting is not None)
    # without a weight of near words they are never chosen
    without = totals(features, {"words": -1.0})
    assert np.isneginf(without.values[2:]).all() and without.best() == 0
    assert found.hypotheses[totals(features, {"near_words": 1.0}).best()].rewriting is not None


def test_a_decoy_has_no_hypothesis_of_what_was_said():
    bias, said = bias_of("o'reilly", "o'rilley"), frozenset(["o'reilly"])
    nbest = list_of("we saw oh reilly")
    odds = NearWords(counts=COMMON)
    found = with_near_words(nbest, bias, odds, ((), said))
    alone = with_near_words(nbest, bias.without(said), odds)
    features = [hypothesis_features(found, {}) | bias_features(bias, found)]
    errors = [np.arange(len(found.hypotheses))]
    refs = {"u": ("we", "saw", "o'reilly")}
    how = decoys_of(features, errors, [found], refs, BiasLists(shared=bias), 0.5)
    [decoy], [counts] = how["decoys"], how["decoy_errors"]
    kept = [texts_of(found)[k] for k in counts]
    assert kept == texts_of(alone) and len(kept) < len(found.hypotheses)
    assert decoy["near_words"].tolist() == pytest.approx(
        [hyp.rewriting.ln_odds if hyp.rewriting else 0 for hyp in alone.hypotheses], abs=0.5
    )


def test_weights_have_the_highest_posterior_probability():
    rng = np.random.default_rng(0)
    values = np.column_stack([np.ones(200), rng.normal(size=(200, len(KNOWN) - 1))])
    offsets = rng.normal(size=200)
    labels = (rng.random(200) < 0.3).astype(float)

    def loss(weights):
        ln_odds = values @ weights + offsets
        likelihood = labels @ ln_odds - np.logaddexp(0, ln_odds).sum()
        return 0.5 * ((weights - np.array(KNOWN)) ** 2).sum() - likelihood

    found = map_weights(values, offsets, labels, KNOWN)
    best = minimize(loss, np.array(KNOWN), method="BFGS", options={"gtol": 1e-8})
    assert np.allclose(found, best.x, atol=1e-4)
    nothing = map_weights(values[:0], offsets[:0], labels[:0], KNOWN)
    assert np.allclose(nothing, KNOWN)


def simulated(num_lists=60, seed=0):
    """Return lists whose names are misspelled, with a common word that is near a listed one."""
    rng = np.random.default_rng(seed)
    names = {"katharina": "katherine", "mendelssohn": "mendelson", "worcestershire": "wustershire"}
    lists, refs, bias = [], {}, {}
    for n in range(num_lists):
        name = [*names][n % 3]
        words = [*rng.choice(["the", "we", "saw", "and", "market", "marked"], size=6)]
        texts = [[*words, names[name]], [*words[1:], names[name]]]
        hyps = tuple(Hypothesis(tuple(t), -float(k)) for k, t in enumerate(texts))
        lists.append(NBest(f"u{n}", hyps, recording=f"r{n}", ref=(*words, name)))
        refs[f"u{n}"], bias[f"u{n}"] = (*words, name), bias_of(name, "marker", "sauna")
    return lists, refs, BiasLists(bias)


def test_odds_are_found_on_lists_with_references():
    lists, refs, bias = simulated()
    bias = BiasLists({**bias.lists, "u5": bias_of()})
    odds = OddsTuning(lists, refs, bias, ALL_WORDS).odds()
    assert odds.weights != KNOWN
    for nbest in lists:
        found = with_near_words(nbest, bias.of(nbest.utt), odds, is_counted=True)
        by_odds = {h.words: h.rewriting.ln_odds for h in found.hypotheses[2:]}
        right = by_odds.pop(refs[nbest.utt], None)
        if nbest.utt == "u5":  # its list is empty
            assert right is None and not by_odds
            continue
        assert right > 0 and all(right >= other for other in by_odds.values())


def test_names_that_no_hypothesis_has_are_found(tmp_path):
    """From tuning lists to other ones, by scales.yaml; decoys stay as they came."""
    lists, refs, bias = simulated(120)
    dev, rest = lists[:80], lists[80:]
    tuned = espnet_bayeslm.rescore(dev, bias=bias, tune=True)
    assert all(item.words == refs[item.nbest.utt] for item in tuned)
    assert tuned.scales.uses_near_words and not tuned.scales.unbiased.uses_near_words
    without, with_it, decoys = tuned.tuned.decoys.values()
    assert with_it == 0 and without == decoys == len(dev)
    path = tmp_path / "scales.yaml"
    path.write_text(yaml.safe_dump(tuned.scales.settings(tuned.mixture)))
    for item in espnet_bayeslm.rescore(rest, bias=bias, scales=path):
        assert item.words == refs[item.nbest.utt]
        assert item.nbest.hypotheses[item.unbiased].words == item.nbest.hypotheses[0].words
    decoys = BiasLists({utt: own.without(own.said(refs[utt])) for utt, own in bias.lists.items()})
    for item in espnet_bayeslm.rescore(rest, bias=decoys, scales=path):
        assert item.words == item.nbest.hypotheses[0].words
    off = espnet_bayeslm.rescore(rest, bias=bias, scales=path, near_words=False)
    assert all(item.words == item.nbest.hypotheses[0].words for item in off)


def test_the_command_line_takes_true_and_false():
    given = ["--nbest", "n", "--output", "o", "--near_words"]
    assert get_parser().parse_args([*given, "false"]).near_words is False
    assert get_parser().parse_args([*given, "true"]).near_words is True


def test_odds_in_a_file():
    odds = NearWords(OddsWeights(intercept=2.0), {"the": 5, "we": 3, "anna": 1}, 0.5)
    again = NearWords.of(yaml.safe_load(yaml.safe_dump(odds.content())))
    assert again.weights == odds.weights and again.least == 0.5 and again.total == 9
    for word in ("the", "we"):
        assert again.ln_frequency((word,), {}) == odds.ln_frequency((word,), {})
    # rare words are not kept
    assert again.ln_frequency(("anna",), {}) == odds.ln_frequency(("bert",), {})

"""Errors by the weight of a bias list, against rescoring with each weight."""

import json

import numpy as np
import pytest
from test_bias import bias_of, simulated, write

from espnet_bayeslm.bin import report, rescore
from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.biased_words import part_errors
from espnet_bayeslm.evaluation.wer import word_errors
from espnet_bayeslm.rescoring.bias import bias_features, decoys_of
from espnet_bayeslm.rescoring.bias_sweep import bias_sweep
from espnet_bayeslm.rescoring.decision import ScoredList
from espnet_bayeslm.rescoring.feature_tuning import validate
from espnet_bayeslm.rescoring.features import FIRST_WINS
from espnet_bayeslm.rescoring.scales import Scales, read_scales

IGNORED = frozenset("a")


def swept(lists, refs, bias, weights, ignored=IGNORED):
    nbests = [item.nbest for item in lists]
    features = [
        item.features({}) | bias_features(bias.of(item.nbest.utt), item.nbest) for item in lists
    ]
    errors = [
        np.array([word_errors(ref, counted(hyp.words, ignored)).errors for hyp in x.hypotheses])
        for x, ref in ((x, counted(refs[x.utt], ignored)) for x in nbests)
    ]
    how = decoys_of(features, errors, nbests, refs, bias, 0.5)
    every = validate(features, errors, groups=[x.utt for x in nbests], num_folds=2, **how)
    return bias_sweep(every, nbests, refs, bias, weights, ignored)


def counted(words, ignored):
    return [word for word in words if word not in ignored]


@pytest.mark.parametrize("chosen", [0.0, 0.7, 5.0])
def test_rates_are_those_of_rescoring_with_each_weight(chosen):
    lists, refs, bias = simulated(20, held=0.5, harm=0.5)
    found = swept(lists, refs, bias, {"am_score": 1.0, "bias": chosen})
    assert found.chosen == chosen and chosen in found.weights and found.weights[0] == 0
    assert found.weights[-1] >= 2 * chosen and [*found.weights] == sorted({*found.weights})
    for n, weight in enumerate(found.weights):
        scales = Scales(features=(("am_score", 1.0), ("bias", weight)))
        counts, words, harmed = np.zeros(2), np.zeros(2), 0
        for item in lists:
            nbest, ref = item.nbest, refs[item.nbest.utt]
            with_bias = ScoredList(nbest, (), given=bias_features(bias.of(nbest.utt), nbest))
            best = with_bias.choice(with_bias.features({}), scales)
            hyp = counted(nbest.hypotheses[best].words, IGNORED)
            parts = part_errors(counted(ref, IGNORED), hyp, bias.of(nbest.utt).words)
            counts += [part.errors for part in parts]
            words += [part.words for part in parts]
            own = bias.of(nbest.utt)
            given = bias_features(own.without(own.said(ref)), nbest)
            decoy = ScoredList(nbest, (), given=given)
            hyp = nbest.hypotheses[decoy.choice(decoy.features({}), scales)].words
            harmed += word_errors(counted(ref, IGNORED), counted(hyp, IGNORED)).errors
        rates = {name: values[n] for name, values in found.rates.items()}
        assert rates["U-WER"] == pytest.approx(100 * counts[0] / words[0])
        assert rates["B-WER"] == pytest.approx(100 * counts[1] / words[1])
        # no alignment of these texts has more errors than the fewest
        assert rates["WER"] == pytest.approx(100 * counts.sum() / words.sum())
        assert rates["WER with decoys"] == pytest.approx(100 * harmed / words.sum())


def test_most_lists_have_changed_at_the_end():
    """Also where the lists stay as they came."""
    lists, refs, bias = simulated(40, held=1.0)
    for weights in ({"am_score": 1.0}, {"am_score": 100.0}, dict(FIRST_WINS)):
        rates = swept(lists, refs, bias, weights).rates
        assert rates["B-WER"][0] == 100 and rates["B-WER"][-1] <= 15


def test_lists_that_change_nothing_have_no_sweep():
    lists, refs, _ = simulated(10)
    weights = {"am_score": 1.0}
    assert swept(lists, refs, BiasLists(), weights) is None
    assert swept(lists, refs, BiasLists(shared=bias_of("nobody")), weights) is None
    # without biased words there is no B-WER
    found = swept(lists, refs, BiasLists(shared=bias_of("xxxx", "yyyy")), {"is_first": 1.0})
    assert found is None or "B-WER" not in found.rates
    found = swept(lists, refs, BiasLists(shared=bias_of("yyyy")), weights)
    assert {*found.rates} == {"WER", "U-WER", "WER with decoys"}


def test_files_of_a_tuning_and_the_report(tmp_path, fails):
    """The chosen weight stands in the data; the report marks words, and has the curve."""
    lists, refs, bias = simulated()
    write(tmp_path, lists, refs, bias)
    given = ["--nbest", str(tmp_path / "lists.jsonl"), "--bias", str(tmp_path / "bias")]
    for name, folds in (("tuned", []), ("folds", ["--folds", "2"])):
        rescore.main([*given, *folds, "--output", str(tmp_path / name)])
        content = json.loads((tmp_path / name / "bias.json").read_text())
        scales = read_scales(tmp_path / name / "scales.yaml")
        assert content["chosen"] == pytest.approx(dict(scales.features)["bias"])
        place = content["weights"].index(content["chosen"])
        assert content["rates"]["B-WER"][0] > 50 and content["rates"]["B-WER"][place] == 0
        assert (tmp_path / name / "bias.png").exists()
    page = tmp_path / "page.html"
    shown = ["--rescored", str(tmp_path / "tuned"), "--output", str(page)]
    report.main([*shown, *given[2:]])
    text = page.read_text()
    assert "Bias lists" in text and '<span class="b">in the bias list' in text
    (tmp_path / "tuned" / "bias.json").unlink()  # as of older outputs
    report.main(shown)
    text = page.read_text()
    assert "Bias lists" not in text and '<span class="b">' not in text
    assert "--bias without lists" in fails(report.main, [*given[2:], "--output", str(page)])
    (tmp_path / "other").write_text('{"utt": "u999", "words": []}\n')
    problem = fails(report.main, [*shown, "--bias", str(tmp_path / "other")])
    assert "none of its 1 utterances (first: 'u999') is among the 60" in problem

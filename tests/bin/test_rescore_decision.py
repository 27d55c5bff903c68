"""`bayeslm rescore --decision mbr`: choices, confidences, what is written and read again."""

import kaldialign
import numpy as np
import pytest
from command_lines import json_lines, run, settings

import espnet_bayeslm
from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.decision import ScoredList
from espnet_bayeslm.rescoring.scales import read_scales
from espnet_bayeslm.utils.errors import InputError


def confidences(output):
    return {item["utt"]: item for item in json_lines(output / "confidence.ndjson")}


def naive(scored, scales):
    """Least expected errors and posterior masses of a list, by their definition."""
    totals = scored.totals(scales) * scales.posterior.sharpness
    posterior = np.exp(totals - totals.max())
    posterior /= posterior.sum()
    hyps = [hyp.words for hyp in scored.nbest.hypotheses]
    pairs = list(zip(hyps, posterior, strict=True))
    risks = [
        sum(p * kaldialign.edit_distance(ref, hyp)["total"] for ref, p in pairs) for hyp in hyps
    ]
    best = hyps[int(np.argmin(risks))]
    masses = np.zeros(len(best))
    for hyp, p in pairs:
        places = [pair for pair in kaldialign.align(best, hyp, "*") if pair[0] != "*"]
        masses += [p * (a == b) for a, b in places]
    return best, min(risks), masses


@pytest.fixture(scope="module")
def tuned(tuning, ngram, tmp_path_factory):
    """Return the output of a rescoring by least risk that was tuned on dev."""
    output = tmp_path_factory.mktemp("mbr") / "dev"
    return run(**tuning, ngram=ngram, decision="mbr", output=output)


def test_the_choice_is_that_of_the_definition(tuned, nbest):
    scales = read_scales(tuned / "scales.yaml")
    costs = dict(line.split() for line in (tuned / "lmwt.nn").read_text().splitlines())
    best, known = read_transcripts(tuned / "text"), confidences(tuned)
    for item in read_nbest(nbest / "dev", "kaldi"):
        keys = [f"{item.utt}-{rank}" for rank in range(1, len(item.hypotheses) + 1)]
        scored = ScoredList(item, {"log_prob": np.array([-float(costs[key]) for key in keys])})
        words, risk, masses = naive(scored, scales)
        line = known[item.utt]
        assert best[item.utt] == words == tuple(line["words"])
        assert line["expected_errors"] == pytest.approx(risk, abs=1e-5)
        np.testing.assert_allclose(line["posterior"], np.clip(masses, 0, 1), atol=1e-5)
        inner = np.clip(masses, 1e-4, 1 - 1e-4)
        logits = scales.posterior.slope * np.log(inner / (1 - inner)) + scales.posterior.offset
        np.testing.assert_allclose(line["confidence"], 1 / (1 + np.exp(-logits)), atol=1e-5)
    assert set(known) == set(best)


def test_the_settings_say_what_both_decisions_do(tuned):
    found = settings(tuned)
    errors = found["tuning"]["errors"]
    assert errors["mbr"] <= errors["first pass"]
    rate = 100 * errors["mbr"] / found["tuning"]["words"]
    assert found["wer"]["rescored"] == pytest.approx(rate, abs=1e-3)
    assert found["decision"] == "mbr"
    assert set(found["posterior"]) == {"sharpness", "slope", "offset"}
    measures = found["confidence"]
    assert measures["ece_of_confidence"] <= measures["ece_of_posterior"]


def test_scales_of_one_set_decide_on_another_and_in_memory(tuned, nbest, ngram, tmp_path):
    # the decision is that of the scales
    options = {"scales": tuned / "scales.yaml"}
    output = run(nbest=nbest / "test", ngram=ngram, **options, output=tmp_path / "test")
    best, known = read_transcripts(output / "text"), confidences(output)
    lists = read_nbest(nbest / "test", "kaldi")
    found = espnet_bayeslm.rescore(lists, ngrams=[ngram], **options)
    for item in found:
        assert item.words == best[item.nbest.utt]
        line = known[item.nbest.utt]
        np.testing.assert_allclose(item.confidences, line["confidence"], atol=1e-6)
        assert item.expected_errors == pytest.approx(line["expected_errors"], abs=1e-6)
        assert item.masses is not None and len(item.masses) == len(item.words)
    assert "posterior" in settings(output) and settings(output)["decision"] == "mbr"


def test_where_least_risk_is_worse_than_the_first_pass_max_decides(ngram, tmp_path, caplog):
    repaired = (Hypothesis(("a", "x"), am_score=-9.0), Hypothesis(("a", "b"), am_score=-1.0))
    # no score tells these apart, of words that no LM knows, and two of three agree on most words
    equal = [Hypothesis(tuple(words), am_score=-9.0) for words in ("qrs", "xyz", "xyw")]
    lists = [NBest(f"a{n}", repaired, ref=("a", "b")) for n in range(30)]
    lists += [NBest(f"b{n}", tuple(equal), ref=("q", "r", "s")) for n in range(30)]
    options = {"ngrams": [ngram], "tune": True, "max_oov_rate": 1}
    by_max = espnet_bayeslm.rescore(lists, **options)
    by_risk = espnet_bayeslm.rescore(lists, **options, decision="mbr")
    assert by_risk.weighting.scales.decision == "max"
    assert by_risk.tuned.risk_errors > by_risk.tuned.found.errors["first pass"]
    assert "max decides" in caplog.text
    for a, b in zip(by_max, by_risk, strict=True):
        assert a.words == b.words and b.confidences is not None


def test_a_decision_that_is_none(nbest, ngram):
    with pytest.raises(InputError, match="decision is 'vote', not one of max, mbr"):
        espnet_bayeslm.rescore(read_nbest(nbest / "test"), ngrams=[ngram], decision="vote")

"""`--utt2lm`: an LM for each utterance; scales that give the LM no weight, and LMs not read."""

import shutil

import numpy as np
import pytest
import yaml
from command_lines import costs, run, settings
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import interpolate, rescore
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.scoring.interpolation import em_weights


@pytest.fixture(scope="module")
def own_lms(point, bayes, nbest, tmp_path_factory):
    """LMs of two halves of the lists, both named `mine`, and which scores which utterance."""
    folder = tmp_path_factory.mktemp("own")
    lms = [folder / name / "mine" for name in "ab"]
    for lm, source in zip(lms, (point, bayes), strict=True):
        shutil.copytree(source, lm)
    utts = [item.utt for item in read_nbest(nbest / "dev")]
    of = {utt: lms[n % 3 > 0] for n, utt in enumerate(utts)}
    (folder / "utt2lm").write_text("".join(f"{utt} {lm}\n" for utt, lm in of.items()))
    return {"lms": lms, "of": of, "file": folder / "utt2lm"}


def test_each_list_is_scored_by_its_own_lm(own_lms, point, tuning, ngram, tmp_path):
    common = {**tuning, "ngram": ngram, "weights": "0.6,0.4", "token_scores": "true"}
    each = [run(**common, lm=lm, output=tmp_path / lm.parent.name) for lm in own_lms["lms"]]
    own = run(
        **common, lm=own_lms["lms"][0], utt2lm=own_lms["file"], folds=2, output=tmp_path / "own"
    )
    expected = [costs(folder / "lmwt.nn.words") for folder in each]
    found = costs(own / "lmwt.nn.words")
    assert [*found] == [*expected[0]]
    for key, row in found.items():
        lm = own_lms["of"][key.rpartition("-")[0]]
        assert row == expected[own_lms["lms"].index(lm)][key]
    # weights go by name, and no digest says that they belong to one of the two
    scales = yaml.safe_load((own / "scales.yaml").read_text())
    assert {*scales["components"]} == {"mine", "bigram"} and {*scales["fingerprints"]} == {"bigram"}
    # LMs beside the first one stay
    both = [own_lms["lms"][0], point]
    given = {**tuning, "lm": both, "weights": "0.6,0.4"}
    more = run(**given, utt2lm=own_lms["file"], output=tmp_path / "more")
    assert {*settings(more)["components"]} == {"mine", point.name}
    # what is not named is scored by the first
    some = tmp_path / "some"
    some.write_text("".join(own_lms["file"].read_text().splitlines(keepends=True)[:1]))
    first = run(**common, lm=own_lms["lms"][1], utt2lm=some, output=tmp_path / "some_out")
    (utt,) = (line.split()[0] for line in some.read_text().splitlines())
    for key, row in costs(first / "lmwt.nn.words").items():
        assert row == expected[key.rpartition("-")[0] != utt][key]


def test_in_context_each_lm_reads_whole_recordings(own_lms, tuning, segments, tmp_path):
    common = {"nbest": tuning["nbest"], "lmwt": 10, "context": "previous", "segments": segments}
    lms = own_lms["lms"]
    each = [run(**common, lm=lm, output=tmp_path / lm.parent.name) for lm in lms]
    own = run(**common, lm=lms[0], utt2lm=own_lms["file"], output=tmp_path / "own")
    expected = [costs(folder / "lmwt.nn") for folder in each]
    for key, row in costs(own / "lmwt.nn").items():
        assert row == expected[lms.index(own_lms["of"][key.rpartition("-")[0]])][key]


def test_weights_are_those_of_all_sentences_each_by_its_own_lm(own_lms, nbest, ngram, tmp_path):
    text = {"text": nbest / "dev.ref", "keyed": "true", "lm": own_lms["lms"][0], "ngram": ngram}
    output = tmp_path / "weights.yaml"
    interpolate.main(words(**text, utt2lm=own_lms["file"], output=output))
    refs = [line.split() for line in (nbest / "dev.ref").read_text().splitlines()]
    lms = {lm: espnet_bayeslm.load(lm) for lm in own_lms["lms"]}
    scorer = espnet_bayeslm.scoring.ngram_scorer.NgramScorer(ngram)
    rows = []
    for utt, *said in refs:
        pair = [lms[own_lms["of"][utt]].word_scores([said])[0], scorer.word_scores([said])[0]]
        known = ~np.logical_or(*(scores.oov for scores in pair))
        rows.append(np.stack([scores.log_probs[known] for scores in pair], axis=1))
    expected = em_weights(np.concatenate(rows))
    content = yaml.safe_load(output.read_text())
    assert [row["name"] for row in content["components"]] == ["mine", "bigram"]
    found = [row["weight"] for row in content["components"]]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    mixed = np.log(np.exp(np.concatenate(rows)) @ expected).mean()
    assert content["mixture"]["perplexity_without_oov"] == pytest.approx(np.exp(-mixed), rel=1e-4)
    assert not content["components"][0]["fingerprint"]


def test_wrong_uses_are_refused(own_lms, point, nbest, ngram, tmp_path, refused):
    names = tmp_path / "names"
    lines = own_lms["file"].read_text().splitlines()
    lines[0] = f"{lines[0].split()[0]} {point}"
    names.write_text("\n".join(lines) + "\n")
    common = ["--nbest", nbest / "dev", "--tune_ref", nbest / "dev.ref", "--output", tmp_path / "o"]
    lm = ["--lm", own_lms["lms"][0], "--utt2lm"]
    refused(rescore.main, [*common, *lm, names], "names mine and point", "one name")
    only = [*common, "--ngram", ngram, "--utt2lm", own_lms["file"]]
    refused(rescore.main, only, "--utt2lm without --lm")
    (tmp_path / "empty").write_text("utt\n")
    refused(rescore.main, [*common, *lm, tmp_path / "empty"], "empty:1: expected `utterance LM`")
    (tmp_path / "other").write_text("another mine\n")
    problem = "other: none of its 1 utterances is in the lists"
    refused(rescore.main, [*common, *lm, tmp_path / "other"], problem)
    (tmp_path / "scales").write_text("features: {am_score: 0.1, log_prob: 1.0}\n")
    bare = ["--nbest", nbest / "dev", "--scales", tmp_path / "scales", "--output", tmp_path / "o"]
    refused(rescore.main, bare, "no LM. Give --lm EXP")
    text = ["--text", nbest / "dev.ref", *lm, own_lms["file"], "--output", tmp_path / "w"]
    refused(interpolate.main, text, "--utt2lm is for a --keyed text")


@pytest.mark.parametrize("features", [{"is_first": 1.0}, {"am_score": 0.1, "words": 0.5}])
def test_an_lm_of_weight_0_is_neither_read_nor_scored(features, nbest, ngram, tmp_path, caplog):
    """Of an adapted folder; the choice is that of its scales beside an LM that is named."""
    lists, scales = {"nbest": nbest / "test", "ref": nbest / "test.ref"}, tmp_path / "scales.yaml"
    (tmp_path / "adapted.yaml").write_text("lm: [no/such/lm]\nscales: scales.yaml\n")
    for number, zero in enumerate(({}, {"log_prob": 0.0})):
        scales.write_text(yaml.safe_dump({"features": {**features, **zero}}))
        found = run(**lists, adapted=tmp_path, output=tmp_path / f"out{number}")
        scored = run(**lists, ngram=ngram, scales=scales, output=tmp_path / f"scored{number}")
        assert caplog.text.count("no LM is used: its weight is 0") == 2 * number + 2
        assert (found / "text").read_text() == (scored / "text").read_text()
        assert not (found / "lmwt.nn").exists() and (scored / "lmwt.nn").exists()


def test_uncertainty_is_measured_at_weight_0(bayes, nbest, tmp_path):
    (tmp_path / "scales.yaml").write_text("features: {is_first: 1.0}\n")
    given = {"nbest": nbest / "test", "lm": bayes, "scales": tmp_path / "scales.yaml"}
    found = run(**given, uncertainty="true", num_samples=2, output=tmp_path / "out")
    assert (found / "uncertainty.ndjson").stat().st_size

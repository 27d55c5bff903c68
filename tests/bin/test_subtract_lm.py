"""Subtracted LMs: exact by Bayes' rule, never a weight above zero, never worse than without."""

import itertools
import math
import random

import numpy as np
import pytest
from command_lines import costs, run, same_files, settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from oracles.alignments import edit_distance
from oracles.lattice_paths import random_lattice, write_htk
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import lattice
from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.report.nbest_section import make_view
from espnet_bayeslm.report.rescored_lists import read_rescored
from espnet_bayeslm.rescoring.feature_tuning import chosen_errors, validate
from espnet_bayeslm.rescoring.scales import Scales

# the source prefers a and b, the target a and c: no weight of the target alone mends that
WORDS = "abcd"
SOURCE = {"a": 0.4, "b": 0.4, "c": 0.05, "d": 0.05, "</s>": 0.1}
TARGET = {"a": 0.4, "b": 0.04, "c": 0.4, "d": 0.06, "</s>": 0.1}


def write_unigram(path, probs):
    """Write a unigram ARPA file whose ln p are exact to its digits."""
    rows = [f"{math.log10(p):.12f}\t{word}" for word, p in probs.items()]
    rows += ["-99\t<s>", "-99\t<unk>"]
    body = "\n".join(rows)
    path.write_text(f"\\data\\\nngram 1={len(rows)}\n\n\\1-grams:\n{body}\n\n\\end\\\n")
    return path


@pytest.fixture(scope="module")
def unigrams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unigrams")
    return {
        "source": write_unigram(folder / "source.arpa", SOURCE),
        "target": write_unigram(folder / "target.arpa", TARGET),
    }


def log_prob(probs, hyp):
    return sum(math.log(probs[word]) for word in (*hyp, "</s>"))


def recognised(num_lists, *, seed):
    """Return lists whose score is ln p(audio | words) + ln p_source(words), with references.

    The audio of a word is a sound of known probability, and a list has all hypotheses of its
    length, so its posterior is exact.
    """
    rng = random.Random(seed)
    lists, likelihoods = [], {}
    for number in range(num_lists):
        ref = rng.choices(WORDS, [TARGET[w] for w in WORDS], k=rng.randint(1, 3))
        sounds = [w if rng.random() < 0.5 else rng.choice(WORDS) for w in ref]
        right, wrong = 0.5 + 0.5 / 4, 0.5 / 4
        rows = []
        for hyp in itertools.product(WORDS, repeat=len(ref)):
            pairs = zip(hyp, sounds, strict=True)
            am = sum(math.log(right if word == sound else wrong) for word, sound in pairs)
            rows.append((am + log_prob(SOURCE, hyp), hyp, am))
        rows.sort(key=lambda row: (-row[0], row[1]))
        utt = f"u{number:03d}"
        hyps = tuple(Hypothesis(hyp, score) for score, hyp, _ in rows)
        lists.append(NBest(utt, hyps, ref=tuple(ref)))
        likelihoods[utt] = np.array([am for *_, am in rows])
    return lists, likelihoods


def test_bayes_rule_is_exact(unigrams):
    """Score - ln p_source + ln p_target is ln p(audio, words) under the target's prior."""
    lists, likelihoods = recognised(40, seed=0)
    found = espnet_bayeslm.rescore(
        lists,
        ngrams=[unigrams["target"]],
        subtract_lms=[unigrams["source"]],
        subtract_weights=[-1.0],
        scales=Scales(lmwt=1.0),
        confidence=True,
    )
    scales = found.scales
    assert scales.subtracted == {"source": -1.0}
    changed = 0
    for item in found:
        hyps = [hyp.words for hyp in item.nbest.hypotheses]
        joint = likelihoods[item.nbest.utt] + [log_prob(TARGET, hyp) for hyp in hyps]
        assert joint[item.best] == pytest.approx(joint.max(), abs=1e-5)
        posterior = np.exp(joint - np.logaddexp.reduce(joint))
        risk = sum(
            p * edit_distance(item.words, hyp) for p, hyp in zip(posterior, hyps, strict=True)
        )
        # costs have six digits
        assert item.expected_errors == pytest.approx(risk, abs=1e-5)
        expected = [log_prob(SOURCE, hyp) for hyp in hyps]
        np.testing.assert_allclose(item.subtracted["source"], expected, atol=1e-5)
        changed += item.best != 0
    assert changed > 10


def test_tuning_subtracts_where_it_helps(unigrams):
    """Tuned with the source subtracted there are fewer errors, on other lists too."""
    lists, _ = recognised(150, seed=1)
    others, _ = recognised(150, seed=2)
    errors = {}
    for name, more in {"without": {}, "with": {"subtract_lms": [unigrams["source"]]}}.items():
        lms = {"ngrams": [unigrams["target"]], **more}
        tuned = espnet_bayeslm.rescore(lists, tune=True, tune_folds=2, **lms)
        scales = tuned.scales
        found = espnet_bayeslm.rescore(others, scales=scales, **lms)
        errors[name] = sum(
            a != b for item in found for a, b in zip(item.words, item.nbest.ref, strict=True)
        )
    (weight,) = scales.subtracted.values()
    assert weight < -0.3 and "subtracted" in tuned.tuned.chosen.kept
    assert errors["with"] < errors["without"]


def simulated(seed, *, num_lists=36):
    """Return features and errors of lists; a source LM that knows something, nothing or less."""
    rng = np.random.default_rng(seed)
    knows = rng.choice([-0.5, 0.0, 0.5])
    lists, errors = [], []
    known = {"am_score": 1.0, "log_prob": 0.5, "subtracted.source": knows}
    for _ in range(num_lists):
        wrong, rank = rng.integers(0, 5, 6), np.arange(6.0)
        features = {name: rng.normal(size=6) - k * wrong for name, k in known.items()}
        features |= {"words": rng.integers(3, 9, 6) * 1.0, "rank": -np.log(rank + 1)}
        lists.append({**features, "is_first": (rank == 0) * 1.0})
        errors.append(wrong)
    return lists, errors


@hypothesis_settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_tuning_is_never_worse_than_without_and_never_adds(seed):
    lists, errors = simulated(seed)
    groups = [f"u{n}" for n in range(len(lists))]
    found = validate(lists, errors, groups=groups, num_folds=2).chosen()
    plain = [{n: v for n, v in item.items() if n != "subtracted.source"} for item in lists]
    without = validate(plain, errors, groups=groups, num_folds=2).chosen()
    assert found.errors["tuned"] <= without.errors["tuned"] <= found.errors["first pass"]
    weights = dict(found.weights)
    assert weights.get("subtracted.source", 0.0) <= 0
    assert chosen_errors(lists, errors, weights).sum() == found.errors["tuned"]
    assert "am_score, LM, words, subtracted" in found.held_out


@pytest.fixture
def options(unigrams, tmp_path):
    path = tmp_path / "dev.jsonl"
    write_nbest(recognised(48, seed=3)[0], path, format="jsonl")
    lms = {"ngram": unigrams["target"], "subtract_lm": unigrams["source"]}
    return {"nbest": path, "nbest_format": "jsonl", "tune_folds": 2, **lms}


def test_files_hold_the_weight_and_the_costs(options, tmp_path, capsys):
    tuned = run(**options, output=tmp_path / "tuned")
    content = settings(tuned)
    weight = content["subtracted"]["source"]
    assert weight < 0 and "source" in content["fingerprints"]
    assert f"subtracted.source {weight:.4g}" in capsys.readouterr().out
    own = costs(tuned / "lmwt.subtracted")
    for nbest in read_nbest(options["nbest"], "jsonl"):
        for rank, hyp in enumerate(nbest.hypotheses, 1):
            expected = pytest.approx([-log_prob(SOURCE, hyp.words)], abs=1e-5)
            assert own[f"{nbest.utt}-{rank}"] == expected
    again = run(**options, scales=tuned / "scales.yaml", output=tmp_path / "again")
    assert same_files(tuned, again, "text", "lmwt.nn", "lmwt.subtracted")
    # the report's totals are what was maximised, and it shows the subtracted LM in a column
    item = read_rescored("x", tuned, None)
    for nbest in item.nbests:
        totals = item.scores[nbest.utt]["total"]
        assert totals[item.best[nbest.utt]] == pytest.approx(max(totals), abs=1e-5)
    columns = make_view(item, {}, {}).data["lists"][0]["scores"]
    assert {"new LM", "subtracted source", "total"} <= columns.keys()


def test_bad_scales(options, tmp_path, fails):
    path, source = tmp_path / "scales.yaml", {"subtract_lm": options.pop("subtract_lm")}
    content = "lmwt: 1.0\nword_penalty: 0.0\nsubtracted: {{source: {}}}\n"
    options |= {"scales": path, "output": tmp_path / "out"}
    for weight, lm, said in (
        (0.25, source, f"{path}: the weight of the subtracted LM source is 0.25"),
        (-0.25, {}, "--scales were tuned with the subtracted LM source"),
        (-0.25, {"subtract_lm": options["ngram"]}, "--scales, subtracted LMs: "),
    ):
        path.write_text(content.format(weight))
        assert said in fails(main, words(**options, **lm))
    # a weight of zero needs no LM
    path.write_text(content.format(0.0))
    assert "subtracted" not in settings(run(**options))


def test_lattices_subtract_as_lists_do(unigrams, tmp_path):
    lattices = [
        random_lattice(np.random.default_rng(n), words=WORDS, utt=f"u{n}") for n in range(6)
    ]
    write_htk(lattices, tmp_path / "lattices")
    formula = {"lmwt": 5, "word_penalty": 0.5, "subtract_weight": -0.7}
    lms = {"ngram": unigrams["target"], "subtract_lm": unigrams["source"]}
    exact = {"beam": "inf", "prune": "inf", "nbest_size": 500}
    command = {"lattices": tmp_path / "lattices", **lms, **formula}
    lattice.main(words(**command, **exact, merge_order=1, output=tmp_path / "out"))
    for item in read_nbest(tmp_path / "out" / "nbest", "jsonl"):
        for hyp in item.hypotheses:
            expected = log_prob(TARGET, hyp.words) - 0.7 * log_prob(SOURCE, hyp.words)
            assert hyp.lm_score == pytest.approx(expected, abs=1e-4)

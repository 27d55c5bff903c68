"""`bayeslm compare`: any text, to a table of perplexities with intervals over seeds."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.bin.compare import main
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.workflows.compare import CompareOptions, Work, compare
from espnet_bayeslm.workflows.compare_table import ROWS, TWO, Dropout, Results, over_seeds

# Options of the point-estimate LMs that are those of the Bayesian one
SAME = ("init_param", "optim_conf", "scheduler_conf", "max_epoch", "batch_bins", "seed")


@pytest.fixture
def texts(plain_text, tmp_path):
    """Options that name the three texts; the test text has a word that no LM knows."""
    test = tmp_path / "test.txt"
    test.write_text("a b c d\nx c d\n\na b b c\n")
    return dict(
        train_text=plain_text / "train.txt", valid_text=plain_text / "valid.txt", test_text=test
    )


def options(**given):
    conf = dict(size="tiny", lm="transformer", token_type="word", vocab_size=None, epochs=1, ngpu=0)
    return CompareOptions(**{**conf, **given})


def short(words):
    """Run a command line, without the many passes that a training makes of a little text."""
    passes = ["--model_conf", "min_iters_per_epoch=0"]  # a shipped configuration has many
    bayeslm.main([*words, *passes] if words[0] == "train" else words)


def stopped(words):
    """Run a command line of all but the last stage."""
    if words[0] == "interpolate":
        raise SystemExit("bayeslm interpolate: error: stopped")
    short(words)


def test_a_stopped_run_goes_on_to_the_table(texts, tmp_path):
    """What was done before the stop is not done again; start and steps are the same for both."""
    exp = tmp_path / "exp"
    what = options(**texts, exp=exp, seeds="1 2", dropout_rates="0.0 0.1")

    with pytest.raises(InputError, match="status 1: bayeslm interpolate: error: stopped"):
        compare(what, tool=stopped)
    assert not list(exp.glob("[Rr]esults*")) and not list(exp.glob("RESULTS*"))
    before = {path.name: path.stat().st_mtime_ns for path in (exp / "log").glob("*.done")}
    assert len(before) == 1 + 2 * 5
    text = compare(what, tool=short)
    assert before.items() <= {p.name: p.stat().st_mtime_ns for p in (exp / "log").iterdir()}.items()
    assert (exp / "RESULTS.md").read_text() == text
    assert [row.split(" | ")[0][2:].strip() for row in text.splitlines()[2:9]] == list(ROWS)
    assert "1 of 11 words are unknown" in text
    assert "of the 3 of 4 sentences without unknown words" in text

    results = json.loads((exp / "results.json").read_text())
    for figure in ("perplexity", "perplexity_of_known_sentences"):
        assert results[figure].keys() == set(ROWS)
        assert sum(map(len, results[figure].values())) == 2 * len(ROWS) - 1  # one pair of two seeds
    for seed in "12":
        tuned = results["dropout"][seed]
        assert tuned["valid"][str(tuned["chosen"])] == min(tuned["valid"].values())
        folder = exp / f"seed{seed}"
        conf = {p.parent.name: yaml.safe_load(p.read_text()) for p in folder.glob("*/config.yaml")}
        bayes = conf["bayes"]
        for rate in (0.0, 0.1):
            point = conf[f"point_{rate}"]
            expected = {**bayes["lm_conf"], "uncertainty": {}, "dropout_rate": rate}
            assert point["lm_conf"] == expected
            assert all(point[key] == bayes[key] for key in SAME)
        assert bayes["seed"] == int(seed)
        assert str(folder / "half") in bayes["init_param"][0]
        assert bayes["lm_conf"]["dropout_rate"] == 0.0  # as of size small
        assert bayes["model_conf"]["prior"] == "zero"
        # alone, an LM's figure leaves out the mixtures' words
        alone = json.loads((exp / "perplexity" / f"seed{seed}_bayes_point_3gram.json").read_text())
        assert [Path(row["name"]).name for row in alone["components"]][:3] == [
            "bayes",
            "half" if tuned["chosen"] == "half" else f"point_{tuned['chosen']}",
            "3gram",
        ]

    trained = {path: path.stat().st_mtime_ns for path in exp.glob("seed*/*/*.pth")}
    for other in ({"autocast": "bfloat16"}, {"epochs": 2}, {"size": "small"}):
        with pytest.raises(
            InputError, match=r"half: was made with another .*half\.yaml than there"
        ):
            compare(dataclasses.replace(what, **other), tool=bayeslm.main)
    # another test text is scored
    texts["test_text"].write_text("a b\n")
    assert "0 of 2 words are unknown" in compare(what, tool=short)
    assert trained == {path: path.stat().st_mtime_ns for path in trained}


def test_the_lstm_has_the_same_steps_too(texts, tmp_path):
    """Point estimate and Bayesian LM are one configuration, with and without uncertainty."""
    what = options(**texts, lm="lstm", token_type="bpe", autocast="bfloat16", exp=tmp_path)
    stages = Work(what, [1, 2], [0.2]).stages()
    (_, (_, half, _)), (_, lms) = next(stages), next(stages)
    assert "--token_type bpe" in half.script() and "--from" not in half.script()
    for step, conf in ((half, None), (lms[0], ""), (lms[1], "uncertainty={} dropout_rate=0.2")):
        script = step.script().splitlines()[0].replace("'", "")
        assert "--model_conf autocast=bfloat16" in script
        if conf is not None:
            command, *given = script.split(" --lm_conf ")
            assert "--config bayes_lstm " in command and f"--from {tmp_path}/seed1/half" in command
            assert " ".join(given) == conf


@pytest.mark.parametrize("num_seeds", [3, 4, 5, 8])
@pytest.mark.parametrize("of_pairs", [0.0, 0.01], ids=["parts alone", "with parts of pairs"])
def test_intervals_of_overlapping_pairs_cover(num_seeds, of_pairs):
    rng, num_trials = np.random.default_rng(num_seeds), 1500
    missed = 0
    for parts in rng.normal(0, 0.01, (num_trials, num_seeds)):
        noise = rng.normal(0, of_pairs, num_seeds)
        _, low, high, _ = over_seeds(np.exp((parts + np.roll(parts, -1)) / 2 + noise), ring=True)
        missed += low > 1 or high < 1
    # 5 % with four standard errors of 1500 trials; what pairs have by themselves widens it
    assert missed / num_trials < 0.0725
    assert of_pairs or missed / num_trials > 0.0275


def results_of(perplexity, known=None, **changes):
    content = dict(sentences=2, words=4, excluded=0, known_sentences=2, dropout={})
    content["perplexity_of_known_sentences"] = known or perplexity
    return Results(**{**content, "seeds": [1, 2, 3], "perplexity": perplexity, **changes})


def test_pairs_are_taken_in_the_order_of_the_ring():
    seeds, values = [3, 1, 2, 4], {3: 100.0, 1: 101.0, 2: 104.0, 4: 99.0}
    base = dict.fromkeys(seeds, 100.0)
    found = [
        results_of({"a": base, TWO: two}, seeds=seeds).change(TWO, "a")[:3]
        for two in (values, dict(sorted(values.items())))
    ]
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("logs, half", [((4.0, 4.2), 1.27062), ((4.0, 4.1, 4.2), 0.248414)])
def test_intervals(logs, half):
    """t(0.975) is 12.706 of one degree of freedom, 4.303 of two."""
    found = over_seeds([math.exp(value) for value in logs])
    expected = [4.1, 4.1 - half, 4.1 + half]
    assert [math.log(value) for value in found[:3]] == pytest.approx(expected, abs=1e-5)
    assert over_seeds([5.0])[0] == pytest.approx(5) and math.isnan(over_seeds([5.0])[1])


def test_what_hurts_is_said():
    figures = dict.fromkeys(ROWS, (100.0, 101.0, 102.0)) | {
        "Bayesian + 3-gram": (110.0, 111.5, 112.0),
        "Bayesian + point + 3-gram": (95.0, 96.0, 97.0),
    }
    perplexity = {k: dict(zip((1, 2, 3), v, strict=True)) for k, v in figures.items()}
    # all of the gain is what follows unknown words
    known = dict.fromkeys(ROWS, perplexity["3-gram"])
    dropout = {
        1: Dropout(0.1, {0.0: 9.0, 0.1: 8.0}),
        2: Dropout(0.1, {"half": 9.0, 0.1: 8.0, 0.3: 9.0}),
        3: Dropout(0.0, {0.0: 8.0, 0.1: 9.0}),
    }
    results = results_of(perplexity, known, dropout=dropout)
    text = results.markdown()
    assert "known sentences" not in text
    assert re.search(r"Bayesian \+ 3-gram against point \+ 3-gram: .*%: HIGHER\.", text)
    assert re.search(r"point \+ 3-gram against point \+ 3-gram: .*%: lower\.", text)
    assert "Seed 1: the largest rate of dropout was the best" in text
    assert "Seed 2: the smallest rate of dropout was the best; try 0 too." in text
    text = dataclasses.replace(results, excluded=1, known_sentences=1).markdown()
    assert "; 0.0 [0.0, 0.0] %: no certain difference in known sentences." in text
    assert "of the 1 of 2 sentences without unknown words" in text


@pytest.mark.parametrize(
    "words, message",
    [
        (["--seeds", "1"], "--seeds [1]: expected two or more, for an interval over them"),
        (["--seeds", "one two"], "--seeds 'one two': expected numbers"),
        (["--dropout_rates", ""], "--dropout_rates '': expected numbers"),
        (["--dropout_rates", "0.5 1"], "--dropout_rates [0.5, 1.0]: expected one or more of"),
        (["--valid_text", "empty.txt"], "empty.txt: no sentences"),
        (["--test_text", "blank.txt"], "blank.txt: no words"),
        (["--valid_text", "keyed.txt"], "keyed.txt: the first words of all lines are unknown"),
        (["--train_text", "ids.txt"], "ids.txt: the first words of all lines are unknown"),
        (["--size", "huge"], "argument --size: invalid choice: 'huge'"),
        (["--ngpu", "1"], "--ngpu 1, and torch finds no GPU"),
    ],
)
def test_bad_input_is_one_line(words, message, texts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("")
    Path("blank.txt").write_text("\n \n")
    Path("keyed.txt").write_text("".join(f"u{n} a b\n" for n in range(10)))
    Path("ids.txt").write_text("".join(f"u{n} a b\n" for n in range(100)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    given = [word for name, path in texts.items() for word in (f"--{name}", str(path))]
    with pytest.raises(SystemExit) as stop:
        main([*given, "--size", "tiny", *words])
    assert stop.value.code in (1, 2)
    assert f"bayeslm compare: error: {message}" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "exp").exists()

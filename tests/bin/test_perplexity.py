"""`bayeslm perplexity` against ESPnet's own program, and by hand."""

import inspect
import json
import math

import numpy as np
import pytest
from espnet2.bin import lm_calc_perplexity

import espnet_bayeslm
from espnet_bayeslm.bin.perplexity import get_parser, main, perplexity
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.rescoring import token_log_probs
from espnet_bayeslm.scoring.running_text import running_log_probs
from espnet_bayeslm.training.load import load_lm


def run(*command):
    main([str(part) for part in command])


def figures(path):
    """Return {name: figures} of what --output wrote."""
    return {row["name"]: row for row in json.loads(path.read_text())["components"]}


def test_options_are_the_parameters_of_the_function():
    known = {action.dest for action in get_parser()._actions}
    expected = set(inspect.signature(perplexity).parameters)
    assert known - {"help", "config", "log_level"} == expected


@pytest.mark.parametrize("lm", ["point", "bayes", "seq_rnn"])
def test_agrees_with_espnets_program(corpus, request, tmp_path, lm):
    exp = request.getfixturevalue(lm)
    espnet_bayeslm.register()
    lm_calc_perplexity.main(
        [
            *["--output_dir", f"{tmp_path}/espnet", "--batch_size", "7", "--num_workers", "0"],
            *["--data_path_and_name_and_type", f"{corpus}/valid.txt,text,text"],
            *["--train_config", f"{exp}/config.yaml"],
            *["--model_file", f"{exp}/valid.loss.ave.pth"],
        ]
    )
    run(
        "--text",
        corpus / "valid.txt",
        "--keyed",
        "true",
        "--lm",
        exp,
        "--max_tokens",
        50,
        "--output",
        tmp_path / "out.json",
        "--per_sentence",
        tmp_path / "table",
    )
    expected = float((tmp_path / "espnet" / "ppl").read_text())
    found = figures(tmp_path / "out.json")[lm]
    assert found["perplexity"]["token"] == pytest.approx(expected, abs=1e-4)
    assert found["perplexity"]["word"] == pytest.approx(expected, abs=1e-4)
    assert 2 < expected < 13  # it has learnt something, of 10 letters
    header, *rows = [row.split("\t") for row in (tmp_path / "table").read_text().splitlines()]
    sentences = dict(map(str.split, (tmp_path / "espnet" / "utt2ppl").read_text().splitlines()))
    assert [row[header.index("key")] for row in rows] == list(sentences)
    for row in rows:
        value = float(row[header.index("perplexity")])
        assert value == pytest.approx(float(sentences[row[header.index("key")]]), rel=1e-4)


def test_keys_and_no_keys_are_the_same_text(corpus, plain_text, point, ngram, tmp_path):
    for name, text, keyed in (
        ("a", corpus / "valid.txt", "true"),
        ("b", plain_text / "valid.txt", "false"),
    ):
        run(
            "--text",
            text,
            "--keyed",
            keyed,
            "--lm",
            point,
            "--ngram",
            ngram,
            "--output",
            tmp_path / name,
        )
    assert figures(tmp_path / "a") == figures(tmp_path / "b")


def test_mixture_of_an_lm_and_an_ngram_by_hand(plain_text, point, ngram, tmp_path, capsys):
    text = plain_text / "valid.txt"
    run(
        "--text",
        text,
        "--lm",
        point,
        "--ngram",
        ngram,
        "--weights",
        "0.3,0.7",
        "--output",
        tmp_path / "out",
    )
    found = figures(tmp_path / "out")
    assert list(found) == ["point", "bigram", "mixture"]
    trained, total, count = load_lm(point), 0.0, 0
    for line in text.read_text().splitlines():
        words = line.split()
        (neural,) = token_log_probs(trained.lm, [trained.ids(words)])
        (counts,) = NgramScorer(ngram).word_scores([words])
        total += np.log(0.3 * np.exp(neural) + 0.7 * np.exp(counts.log_probs)).sum()
        count += len(words) + 1
    assert found["mixture"]["perplexity"]["word"] == pytest.approx(math.exp(-total / count))
    assert found["mixture"]["log_prob"] == pytest.approx(total)
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()[1:4]] == list(found)


def test_samples_are_repeatable_and_not_the_mean(plain_text, bayes, tmp_path):
    values = {}
    for name, samples in (("mean", 0), ("a", 2), ("b", 2)):
        run(
            "--text",
            plain_text / "valid.txt",
            "--lm",
            bayes,
            "--num_samples",
            samples,
            "--output",
            tmp_path / name,
        )
        values[name] = figures(tmp_path / name)["bayes"]["log_prob"]
    assert values["a"] == values["b"] and abs(values["a"] - values["mean"]) > 1e-3


def test_unknown_words_are_counted_and_left_out_of_one_figure(point, ngram, tmp_path):
    (tmp_path / "text").write_text("a b zebra c\nd e f\n")
    run("--text", tmp_path / "text", "--lm", point, "--ngram", ngram, "--output", tmp_path / "out")
    for row in figures(tmp_path / "out").values():
        assert (row["words"], row["oovs"], row["excluded"], row["sentences"]) == (7, 1, 1, 2)
        assert row["oov_rate"] == pytest.approx(1 / 7)
        assert row["characters"] == len("a b zebra c") + len("d e f") + 2
        assert row["perplexity_without_oov"]["word"] != row["perplexity"]["word"]


def test_two_lms_of_one_name_are_told_apart(plain_text, point, tmp_path):
    run(
        "--text",
        plain_text / "valid.txt",
        "--lm",
        point,
        "--lm",
        point / "valid.loss.best.pth",
        "--output",
        tmp_path / "out",
    )
    assert list(figures(tmp_path / "out")) == ["point", "point#2"]


def test_config_file(plain_text, point, tmp_path):
    (tmp_path / "c.yaml").write_text(f"lm: [{point}]\nmax_tokens: 20\noutput: {tmp_path}/out\n")
    run("--config", tmp_path / "c.yaml", "--text", plain_text / "valid.txt")
    assert list(figures(tmp_path / "out")) == ["point"]


BAD = {
    "no lm": ([], "no LM. Give --lm EXP and/or --ngram ARPA"),
    "missing lm": (["--lm", "nosuch"], "nosuch"),
    "missing ngram": (["--ngram", "nosuch.arpa"], "nosuch.arpa: no such n-gram file"),
    "weights": (["--lm", "{point}", "--weights", "0.5,0.5"], "2 weights for 1 components"),
    "no weights": (["--lm", "{point}", "--weights", "nosuch"], "neither a file nor numbers"),
    "samples": (["--lm", "{seq_rnn}", "--num_samples", "2"], "num_samples is 2, but Sequential"),
    "oov": (["--lm", "{point}", "--max_oov_rate", "0.1"], "does not know 1 of 7 words (14.29 %"),
    "missing text": (["--lm", "{point}", "--text", "nosuch"], "nosuch: cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_writes_nothing(name, point, seq_rnn, tmp_path, fails):
    options, message = BAD[name]
    (tmp_path / "text").write_text("a b zebra c\nd e f\n")
    options = [part.format(point=point, seq_rnn=seq_rnn) for part in options]
    outputs = ["--output", tmp_path / "out" / "json", "--per_sentence", tmp_path / "out" / "table"]
    error = fails(main, ["--text", tmp_path / "text", *options, *outputs])
    assert error.startswith("bayeslm perplexity: error: ") and message in error
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_keys_that_were_not_declared_are_noticed(corpus, point, tmp_path, fails):
    command = ["--text", corpus / "valid.txt", "--lm", point, "--max_oov_rate", "1"]
    assert "say --keyed true" in fails(main, [*command, "--output", tmp_path / "out"])
    assert not (tmp_path / "out").exists()


def test_running_text(corpus, point, tmp_path):
    trained = load_lm(point)
    rows = [line.split()[1:] for line in (corpus / "valid.txt").read_text().splitlines()]
    scores = running_log_probs(trained.lm, [trained.ids(words) for words in rows], context=3)
    expected = math.exp(-np.concatenate(scores).mean())
    command = ["--text", corpus / "valid.txt", "--keyed", "true", "--lm", point]
    command += ["--output", tmp_path / "out.json", "--cache", tmp_path / "cache"]
    found = []
    for context in (0, 3, 3):
        run(*command, "--context", context)
        found.append(figures(tmp_path / "out.json")["point"]["perplexity"]["word"])
    assert found[1] == found[2] == pytest.approx(expected, abs=1e-4)
    assert abs(found[0] - found[1]) > 1e-3
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 2


def test_context_of_less_than_no_sentence(corpus, point, fails):
    command = ["--text", corpus / "valid.txt", "--keyed", "true", "--lm", point, "--context", "-1"]
    assert "--context -1: expected 0 or more sentences" in fails(main, command)

"""`bayeslm perplexity` against ESPnet's own program, and by hand."""

import math

import numpy as np
import pytest
from command_lines import espnet_perplexity, words
from command_lines import perplexities as figures

from espnet_bayeslm.bin.perplexity import main
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.rescoring import token_log_probs
from espnet_bayeslm.scoring.sequences import running_log_probs


@pytest.mark.parametrize("lm", ["point", "bayes", "seq_rnn"])
def test_agrees_with_espnets_program(corpus, request, tmp_path, lm):
    exp = request.getfixturevalue(lm)
    expected = espnet_perplexity(corpus / "valid.txt", exp, folder=tmp_path / "espnet")
    text = {"text": corpus / "valid.txt", "keyed": "true", "per_sentence": tmp_path / "table"}
    found = figures(**text, lm=exp, max_tokens=50, output=tmp_path / "out.json")[lm]
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
    lms = {"lm": point, "ngram": ngram, "output": tmp_path / "out"}
    keyed = figures(text=corpus / "valid.txt", keyed="true", **lms)
    assert keyed == figures(text=plain_text / "valid.txt", keyed="false", **lms)


def test_mixture_of_an_lm_and_an_ngram_by_hand(plain_text, point, ngram, tmp_path, capsys):
    text = plain_text / "valid.txt"
    mixture = {"lm": point, "ngram": ngram, "weights": "0.3,0.7"}
    found = figures(text=text, **mixture, output=tmp_path / "out")
    assert list(found) == ["point", "bigram", "mixture"]
    trained, total, count = load_lm(point), 0.0, 0
    for line in text.read_text().splitlines():
        (neural,) = token_log_probs(trained.lm, [trained.ids(line.split())])
        (counts,) = NgramScorer(ngram).word_scores([line.split()])
        total += np.log(0.3 * np.exp(neural) + 0.7 * np.exp(counts.log_probs)).sum()
        count += len(neural)
    assert found["mixture"]["perplexity"]["word"] == pytest.approx(math.exp(-total / count))
    assert found["mixture"]["log_prob"] == pytest.approx(total)
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()[1:4]] == list(found)


def test_samples_are_repeatable_and_not_the_mean(plain_text, bayes, tmp_path):
    lm = {"text": plain_text / "valid.txt", "lm": bayes, "output": tmp_path / "out"}
    mean, a, b = (figures(**lm, num_samples=n)["bayes"]["log_prob"] for n in (0, 2, 2))
    assert a == b and abs(a - mean) > 1e-3


def test_unknown_words_are_counted_and_left_out_of_one_figure(point, ngram, tmp_path, capsys):
    (tmp_path / "text").write_text("a b zebra c\nd e f\n")
    lms = {"lm": point, "ngram": ngram, "output": tmp_path / "out"}
    row_of = figures(text=tmp_path / "text", **lms)
    for row in row_of.values():
        assert (row["words"], row["oovs"], row["excluded"], row["sentences"]) == (7, 1, 1, 2)
        assert row["oov_rate"] == pytest.approx(1 / 7)
        assert row["characters"] == len("a b zebra c") + len("d e f") + 2
        assert row["perplexity_without_oov"]["word"] != row["perplexity"]["word"]
    out = capsys.readouterr().out.splitlines()[-1]
    (tmp_path / "text").write_text("d e f\n")
    for name, known in figures(text=tmp_path / "text", **lms).items():
        # A batch of another size rounds otherwise on some CPUs.
        alone = pytest.approx(known["perplexity"], rel=1e-5)
        assert row_of[name]["perplexity_of_known_sentences"] == alone
        assert f" {name} {known['perplexity']['word']:.2f}" in out
    assert "in the 1 sentences without" in out and "without such" not in capsys.readouterr().out


def test_two_lms_of_one_name_are_told_apart(plain_text, point, tmp_path):
    lms = [point, point / "valid.loss.best.pth"]
    found = figures(text=plain_text / "valid.txt", lm=lms, output=tmp_path / "out")
    assert list(found) == ["point", "point#2"]


def test_config_file(plain_text, point, tmp_path):
    (tmp_path / "c.yaml").write_text(f"lm: [{point}]\nmax_tokens: 20\n")
    text = {"text": plain_text / "valid.txt", "output": tmp_path / "out"}
    assert list(figures(config=tmp_path / "c.yaml", **text)) == ["point"]


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


@pytest.mark.parametrize("options, message", BAD.values(), ids=BAD)
def test_bad_input(tmp_path, refused, options, message):
    (tmp_path / "text").write_text("a b zebra c\nd e f\n")
    outputs = ["--output", tmp_path / "out" / "json", "--per_sentence", tmp_path / "out" / "table"]
    refused(main, ["--text", tmp_path / "text", *options, *outputs], message)


def test_keys_that_were_not_declared_are_noticed(corpus, point, tmp_path, refused):
    command = ["--text", corpus / "valid.txt", "--lm", point, "--max_oov_rate", "1"]
    refused(main, [*command, "--output", tmp_path / "out"], "say --keyed true")


def test_running_text(corpus, point, tmp_path, refused):
    trained = load_lm(point)
    rows = [line.split()[1:] for line in (corpus / "valid.txt").read_text().splitlines()]
    scores = running_log_probs(trained.lm, [trained.ids(row) for row in rows], context=3)
    expected = math.exp(-np.concatenate(scores).mean())
    lm = {"text": corpus / "valid.txt", "keyed": "true", "lm": point, "output": tmp_path / "out"}
    found = [
        figures(**lm, cache=tmp_path / "cache", context=context)["point"]["perplexity"]["word"]
        for context in (0, 3, 3)
    ]
    assert found[1] == found[2] == pytest.approx(expected, abs=1e-4)
    assert abs(found[0] - found[1]) > 1e-3
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 2
    # a sentence that is said again is scored where it stands
    (tmp_path / "twice").write_text("".join(f"{' '.join(row)}\n" for row in [*rows, *rows[::-1]]))
    ids = [trained.ids(row) for row in [*rows, *rows[::-1]]]
    expected = math.exp(-np.concatenate(running_log_probs(trained.lm, ids, context=1)).mean())
    twice = figures(text=tmp_path / "twice", lm=point, context=1, output=tmp_path / "twice.json")
    assert twice["point"]["perplexity"]["word"] == pytest.approx(expected, abs=1e-4)
    refused(main, words(**lm, context=-1), "--context -1: expected 0 or more sentences")

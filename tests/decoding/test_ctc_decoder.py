"""`build_ctcdecoder`: its arguments, and letters that several tokens write."""

import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from espnet_bayeslm import build_ctcdecoder
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.logits import log_probs_of
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.errors import InputError

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "oracles"))

from ctc_paths import all_texts
from test_ctc_search import ALPHABET, spoken


@pytest.mark.parametrize(
    "arguments, part",
    [
        ({"labels": [0, 1]}, "labels: expected a list of texts, got '0'"),
        ({"labels": {"a": 0, "b": 2}}, "labels: no token has the id 1"),
        ({"labels": {"a": "b"}}, "expected a list of texts, got \"{'a': 'b'}\""),
        ({"labels": "tokens.txt"}, "labels: expected a list of texts, got 'tokens.txt'"),
        ({"labels": Path("tokens.txt")}, "labels: expected a list of texts, got 'tokens.txt'"),
        ({"labels": None}, "labels: expected a list of texts, got 'None'"),
        ({"unigrams": []}, "the search knows no words"),
        ({"unigrams": [("a", 0.5)]}, "unigrams: expected a list of texts, got \"('a', 0.5)\""),
        ({"unigrams": "the red"}, "unigrams: no file 'the red'"),
    ],
)
def test_bad_arguments_of_pythons_decoder(arguments, part):
    with pytest.raises(InputError) as error:
        build_ctcdecoder(**{"labels": ALPHABET, **arguments})
    assert part in str(error.value)


@pytest.mark.parametrize(
    "hotwords, part",
    [
        ([3], "hotwords: expected a list of texts, got '3'"),
        ([("a", "b")], "expected a list of texts"),
        ({"a": 5.0}, "hotwords: expected a list of texts, got \"{'a': 5.0}\""),
    ],
)
def test_bad_hotwords_of_pythons_decoder(hotwords, part):
    with pytest.raises(InputError) as error:
        build_ctcdecoder(ALPHABET).decode(spoken("a", ALPHABET), hotwords=hotwords)
    assert part in str(error.value)


def test_arrays_of_numpy_are_lists():
    logits = spoken("ab", ALPHABET)
    ids = {label: np.int64(n) for n, label in enumerate(ALPHABET)}
    for labels in (ids, {n: label for label, n in ids.items()}, np.array(ALPHABET)):
        decoder = build_ctcdecoder(labels, unigrams=np.array(["ab", "b"]))
        beams = decoder.decode_beams(logits, hotwords=np.array(["ab", "b a"]))
        assert (beams[0].text, beams[0].hotword_score) == ("ab", 10.0)


def test_unigrams_that_no_lm_knows(tmp_path, caplog):
    (tmp_path / "text").write_text("a b\nb a\n" * 3)
    build_ngram(tmp_path / "text", tmp_path / "2.arpa", order=2, discount_fallback=True)
    with pytest.raises(InputError, match="2: all 2 words are unknown, as 'ab'"):
        build_ctcdecoder(ALPHABET, tmp_path / "2.arpa", unigrams=["ab", "ba"])
    build_ctcdecoder(ALPHABET, tmp_path / "2.arpa", unigrams=["a", "b", "ba"])
    assert "unigrams" not in caplog.text
    build_ctcdecoder(ALPHABET, tmp_path / "2.arpa", unigrams=["a", "ab", "ba"])
    assert "2 of 3 unigrams are left out, as 'ab': no LM knows them" in caplog.text


ACUTE, GRAVE = "\u0301", "\u0300"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_that_are_letters_of_their_own(form, tmp_path, caplog):
    """Words are found and written as the LM writes them, and hotwords in either form."""
    labels = ["<pad>", "|", *"acefhlmpt", ACUTE, GRAVE]
    text = "the cafe\u0301 lamp"
    logits = spoken(text, labels, margin=12.0)
    rows = logits.argmax(1) == labels.index(ACUTE)
    logits[rows, labels.index(GRAVE)] = logits[rows].max(1) + 1.0
    plain = build_ctcdecoder(labels)
    assert plain.decode(logits) == text.replace(ACUTE, GRAVE)
    for accent in (text.split()[1], "café"):
        assert plain.decode(logits, hotwords=[accent]) == text
    expected = unicodedata.normalize(form, text)
    (tmp_path / "text").write_text(f"{expected}\nthe lamp\n" * 3)
    build_ngram(tmp_path / "text", tmp_path / "2.arpa", order=2, discount_fallback=True)
    decoder = build_ctcdecoder(labels, tmp_path / "2.arpa", alpha=1.0)
    best = decoder.decode_beams(logits)[0]
    scorer = NgramScorer(tmp_path / "2.arpa")
    assert best.text == expected
    assert best.lm_score == pytest.approx(best.logit_score + best.log_prob + 3 * 1.5)
    assert best.log_prob == pytest.approx(scorer.word_scores([expected.split()])[0].log_probs.sum())
    assert "no token has" not in caplog.text


def test_letters_of_several_bytes(tmp_path):
    """Tokens of whole letters and of their bytes write one text, which the LM scores."""
    labels = ["<blk>", "\u2581the", "\u2581caf", "é", "<0xC3>", "<0xA9>", "<0xA8>"]
    (tmp_path / "text").write_text("the café\nthe the\n" * 3)
    build_ngram(tmp_path / "text", tmp_path / "2.arpa", order=2, discount_fallback=True)
    logits = np.full((6, len(labels)), -3.0)
    for frame, label in enumerate([1, 2, 0, 4, 0, 6]):
        logits[frame, label] = 9.0
    logits[3, 3] = 8.5
    logits[5, [0, 5]] = 8.0
    plain = build_ctcdecoder(labels)
    assert plain.decode(logits) == "the cafè"
    assert plain.decode(logits, hotwords=["café"]) == "the café"
    beams = plain.decode_beams(logits, beam_prune_logp=-50, token_min_logp=-50)
    assert len({beam.text for beam in beams}) == len(beams)
    known = CTCTokens(labels)
    paths = all_texts(log_probs_of(logits), known.blank, known.words.opens, known.words.texts)
    ways = [p for words, p in paths.items() if [*map(known.words.word, words)] == ["the", "café"]]
    (found,) = [beam for beam in beams if beam.text == "the café"]
    assert found.logit_score == pytest.approx(np.logaddexp.reduce(ways), abs=1e-3)
    best = build_ctcdecoder(labels, tmp_path / "2.arpa", alpha=1.0).decode_beams(logits)[0]
    assert best.lm_score == pytest.approx(best.logit_score + best.log_prob + 2 * 1.5)
    (scores,) = NgramScorer(tmp_path / "2.arpa").word_scores([["the", "café"]])
    assert best.text == "the café" and best.log_prob == pytest.approx(scores.log_probs.sum())

"""PocketSphinx: dictionaries, and lists of spoken sentences."""

import wave

import pytest

from espnet_bayeslm.bin import nbest
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.recognition import recognisers as sphinx
from espnet_bayeslm.utils.errors import InputError

SENTENCE = "we will work together for peace"


def test_dictionary_has_all_pronunciations_and_only_known_words(tmp_path, monkeypatch):
    entries = {"a": [("a", "AH"), ("a(2)", "EY")], "b": [("b", "B IY")]}
    monkeypatch.setattr(sphinx, "cmudict", lambda: entries)
    assert sphinx.write_dictionary(tmp_path / "d", ["a", "zz"]) == 1
    assert (tmp_path / "d").read_text() == "a AH\na(2) EY\n"
    with pytest.raises(InputError, match="no word"):
        sphinx.write_dictionary(tmp_path / "d", ["zz"])


def test_words_of_an_arpa_file(tmp_path):
    (tmp_path / "lm").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-1 <unk>\n-1\t<s>\t-1\n-1\tit's\t0\n-2\tb\t0\n\n"
        "\\2-grams:\n-1\tb c\n\\end\\\n"
    )
    assert sphinx.arpa_words(tmp_path / "lm") == ["it's", "b"]
    (tmp_path / "lm").write_text("nothing\n")
    with pytest.raises(InputError, match="the file ends before"):
        sphinx.arpa_words(tmp_path / "lm")


@pytest.mark.parametrize("with_lm", [True, False])
def test_a_spoken_sentence_is_recognised(with_lm, tmp_path):
    pytest.importorskip("pocketsphinx", reason="the recogniser is the package pocketsphinx")
    engine = pytest.importorskip("ttspico", reason="the voice is that of the package ttspico")
    parts = []
    engine.TtsEngine("en-US").speak(SENTENCE, callback=lambda form, audio, end: parts.append(audio))
    with wave.open(str(tmp_path / "u1.wav"), "wb") as f:
        f.setparams((1, 2, sphinx.RATE, 0, "NONE", ""))
        f.writeframes(b"".join(parts))
    (tmp_path / "text").write_text(f"{SENTENCE}\n" + "we work for peace\nthey will go\n" * 9)
    command = f"--recogniser pocketsphinx --audio {tmp_path} --output {tmp_path}/out --nbest 3"
    if with_lm:
        build_ngram(tmp_path / "text", tmp_path / "lm", order=2, discount_fallback=True)
        command += f" --lm {tmp_path}/lm"
    nbest.main(command.split())
    (found,) = read_nbest(tmp_path / "out")
    assert found.utt == "u1" and 1 < len(found.hypotheses) <= 3
    assert len({hyp.words for hyp in found.hypotheses}) == len(found.hypotheses)
    # acoustic log-likelihoods of some seconds of speech, in nats
    assert all(-5000 < hyp.am_score < -100 for hyp in found.hypotheses)
    if with_lm:
        assert " ".join(found.hypotheses[0].words) == SENTENCE
        (scores,) = NgramScorer(tmp_path / "lm").word_scores([SENTENCE.split()])
        assert found.hypotheses[0].lm_score == pytest.approx(scores.log_probs.sum(), abs=1e-4)
    else:
        assert {"work", "together"} & set(found.hypotheses[0].words)
        assert found.hypotheses[0].lm_score is None

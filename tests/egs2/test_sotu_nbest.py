"""N-best lists of the recipe: choice of sentences, archives."""

import numpy as np
import pytest

from espnet_bayeslm.nbest.kaldi import read_kaldi
from espnet_bayeslm.utils.errors import InputError


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


class FakeLM:
    """Gives each word -1, `</s>` -0.5."""

    def word_scores(self, sentences):
        from espnet_bayeslm.evaluation.word_scores import WordScores

        return [
            WordScores(np.array([-1.0] * len(words) + [-0.5]), np.zeros(len(words) + 1, dtype=bool))
            for words in sentences
        ]


def test_archives_hold_unscaled_acoustic_and_first_pass_costs(nbest, tmp_path):
    part = tmp_path / "part"
    part.write_text('["us_u-1", [[["a", "b"], -10.123456], [[], -20.0]]]\n')
    nbest.write_lists(tmp_path / "out", [part], [("us_u-1", ["a", "c"])], FakeLM())
    read = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert read["text"] == "us_u-1 a c\n"
    assert read["words_text"] == "us_u-1-1 a b\nus_u-1-2\n"
    for name, costs in (
        ("acwt", [10.1235, 20]),
        ("lmwt.nolm", [0, 0]),
        ("lmwt.withlm", [2.5, 0.5]),
    ):
        fields = read[name].split()
        assert fields[::2] == ["us_u-1-1", "us_u-1-2"]
        assert list(map(float, fields[1::2])) == costs
    (item,) = read_kaldi(tmp_path / "out")
    assert item.hypotheses[0].lm_score == -2.5


def test_a_spoken_sentence_is_recognised_and_a_stopped_run_goes_on(nbest, tmp_path):
    pytest.importorskip("ttspico", reason="the voices are those of the package ttspico")
    pytest.importorskip("pocketsphinx", reason="the recogniser is the package pocketsphinx")
    from espnet_bayeslm.bin import ngram

    sentence = "we will work together for peace"
    (tmp_path / "plain").write_text(f"{sentence}\n" + "we work for peace\nthey will go\n" * 9)
    (tmp_path / "text").write_text(f"x_1 {sentence}\n")
    ngram.main(
        f"--text {tmp_path}/plain --arpa {tmp_path}/lm --order 2 --discount_fallback true".split()
    )
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

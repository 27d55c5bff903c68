"""`bayeslm nbest`: lists from recordings, with ESPnet's scores apart; bad input."""

import argparse
import shutil
import sys

import pytest
from random_recogniser import write_noise, write_recogniser
from tiny_training import words

from espnet_bayeslm.bin import nbest, rescore
from espnet_bayeslm.bin.nbest import find_recordings
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.recognition.recognisers import _rate
from espnet_bayeslm.rescoring import score_hypotheses

SIZE = 4


def run(recogniser, audio, output, **options):
    """Run the tool."""
    values = {"recogniser": recogniser, "audio": audio, "output": output, "nbest": SIZE, **options}
    nbest.main(words(**values))


def results(asr, path, **options):
    """ESPnet's own results of a recording."""
    import soundfile
    from espnet2.bin.asr_inference import Speech2Text

    files = {"asr_train_config": f"{asr}/config.yaml", "asr_model_file": f"{asr}/valid.acc.ave.pth"}
    decode = Speech2Text(**files, beam_size=SIZE, nbest=SIZE, **options)
    return decode(soundfile.read(path, dtype="float32")[0])


def test_espnets_scores_are_written_apart(asr, audio, tmp_path):
    run("espnet", audio, tmp_path / "out", model=asr, ctc_weight=0.4)
    lists = list(read_nbest(tmp_path / "out"))
    assert [item.utt for item in lists] == ["u1", "u2"]
    expected = results(asr, audio / "u2.wav", ctc_weight=0.4)
    assert len(expected) == SIZE == len(lists[1].hypotheses)
    for hyp, (text, _, _, theirs) in zip(lists[1].hypotheses, expected, strict=True):
        assert " ".join(hyp.words) == text and hyp.lm_score is None
        assert hyp.am_score == pytest.approx(float(theirs.score), abs=1e-4)
        for name in ("decoder", "ctc"):
            assert hyp.extra[f"{name}_score"] == pytest.approx(float(theirs.scores[name]))


def test_lists_of_a_fused_search_are_rescored(asr, trained_lm, audio, tmp_path):
    run("espnet", audio, tmp_path / "out", model=asr, lm=trained_lm, lm_weight=0.5)
    lists = list(read_nbest(tmp_path / "out"))
    lm = load_lm(trained_lm)
    ids = [[[lm.tokens.index(word) for word in h.words] for h in x.hypotheses] for x in lists]
    for item, scores in zip(lists, score_hypotheses(lm.lm, ids), strict=True):
        assert [hyp.lm_score for hyp in item.hypotheses] == pytest.approx(scores, abs=1e-4)
    # the tokens are letters and <unk>
    command = f"--nbest {tmp_path}/out --lm {trained_lm} --max_oov_rate 1"
    rescore.main([*command.split(), "--output", f"{tmp_path}/rescored"])
    assert len((tmp_path / "rescored" / "text").read_text().splitlines()) == 2


def test_kaldis_archives_can_be_written(asr, trained_lm, audio, tmp_path):
    options = dict(model=asr / "valid.acc.ave.pth", lm=trained_lm)
    run("espnet", audio, tmp_path / "out", **options, nbest_format="kaldi")
    run("espnet", audio, tmp_path / "out.jsonl", **options)
    archives, lines = (
        [(x.utt, [(h.words, h.am_score) for h in x.hypotheses]) for x in read_nbest(path)]
        for path in (tmp_path / "out", tmp_path / "out.jsonl")
    )
    assert archives == lines


def test_a_wav_scp_names_the_utterances(audio, tmp_path):
    scp = tmp_path / "wav.scp"
    scp.write_text(f"b {audio}/u1.flac\na {audio}/u2.wav\n")
    assert find_recordings(scp) == {"a": audio / "u2.wav", "b": audio / "u1.flac"}


@pytest.mark.parametrize(
    "conf, rate", [({"fs": "8k"}, 8000), ({"fs": 44100}, 44100), ({}, 16000), (None, 16000)]
)
def test_the_rate_is_that_of_the_training(conf, rate):
    assert _rate(argparse.Namespace(frontend_conf=conf)) == rate


def test_bad_recordings(asr, fails, tmp_path):
    """Each is one line, and nothing is written."""

    def error(path, **options):
        values = {"recogniser": "espnet", "model": asr, "audio": path, **options}
        values["output"] = tmp_path / "out"
        message = fails(nbest.main, words(**values))
        assert not (tmp_path / "out").exists()
        return message

    folder = tmp_path / "bad"
    folder.mkdir()
    assert "no audio found" in error(folder)
    write_noise(folder / "a.wav", rate=8000)
    assert "8000 samples a second" in error(folder) and "sox" in error(folder)
    write_noise(folder / "a.wav", channels=2)
    assert "2 channels" in error(folder)
    write_noise(folder / "a.wav", seconds=0)
    assert "0.0 seconds of audio" in error(folder)
    (folder / "a.wav").write_bytes(b"nothing")
    assert "no audio that can be read" in error(folder)
    write_noise(folder / "a.wav")
    write_noise(folder / "a.flac")
    assert "two recordings have the name 'a'" in error(folder)
    scp = tmp_path / "wav.scp"
    scp.write_text("u1 sox in.wav -t wav - |\n")
    assert f"{scp}:1: " in error(scp) and "Commands are not run" in error(scp)
    scp.write_text("u1 none.wav\n")
    assert "none.wav: no such audio file" in error(scp)


def test_bad_options(asr, trained_lm, audio, fails, tmp_path, monkeypatch):
    def error(recogniser, **options):
        values = {"recogniser": recogniser, "audio": audio, "output": tmp_path / "out", **options}
        return fails(nbest.main, words(**values))

    assert "--model is needed" in error("espnet")
    assert "--model has no meaning" in error("pocketsphinx", model=asr)
    assert "whose search takes none" in error("whisper", model=asr, lm=trained_lm)
    assert "--nbest 0" in error("espnet", model=asr, nbest=0)
    assert "found no valid.acc.ave.pth" in error("espnet", model=tmp_path)
    assert "no Whisper model that can be read" in error("whisper", model=asr)
    transducer = tmp_path / "transducer"
    shutil.copytree(asr, transducer)
    config = (asr / "config.yaml").read_text()
    (transducer / "config.yaml").write_text(
        config.replace("decoder: transformer", "decoder: transducer")
    )
    assert "does not tell its scores apart" in error("espnet", model=transducer, lm=trained_lm)
    other = write_recogniser(tmp_path / "other", ["<blank>", "<unk>", "z", "<sos/eos>"])
    assert "ids stand for other tokens" in error("espnet", model=other, lm=trained_lm)
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    assert "pip install pocketsphinx" in error("pocketsphinx")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "transformers, which is not installed" in error("whisper", model=asr)
    assert not (tmp_path / "out").exists()

"""`asr_inference_streaming`: blocks of speech, and a search that goes back where it went wrong."""

import wave

import homophones
import pytest

from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.rescoring import score_hypotheses

CHUNK = 8000  # samples
OPTIONS = {"beam_size": 5, "nbest": 5, "ctc_weight": 0.3, "lm_weight": 0.8}


@pytest.fixture(scope="session")
def long_recording(speech, tmp_path_factory):
    """Return the list of one recording, of several sentences: longer than the search's blocks."""
    folder = tmp_path_factory.mktemp("long")
    frames = b""
    for number in range(5):
        with wave.open(f"{speech}/u{number:02d}.wav") as f:
            frames += f.readframes(f.getnframes())
            parameters = f.getparams()
    with wave.open(f"{folder}/long.wav", "wb") as f:
        f.setparams(parameters)
        f.writeframes(frames)
    (folder / "wav.scp").write_text(f"long {folder}/long.wav\n")
    return folder / "wav.scp"


@pytest.fixture
def hypotheses(monkeypatch):
    """Return the list of all hypotheses that ESPnet's program makes results of."""
    from espnet2.bin.asr_inference_streaming import Speech2TextStreaming

    kept, assemble = [], Speech2TextStreaming.assemble_hyps

    def keep(self, hyps):
        kept.extend(hyps)
        return assemble(self, hyps)

    monkeypatch.setattr(Speech2TextStreaming, "assemble_hyps", keep)
    return kept


@pytest.mark.parametrize("name, chunk", [("bayes_lstm", 0), ("mixture", CHUNK)])
def test_streaming(name, chunk, lm, decode, recogniser, hypotheses, long_recording, tmp_path):
    experiment = lm(name)
    options = {**OPTIONS, "lm": experiment, "sim_chunk_length": chunk}
    decode("asr_inference_streaming", tmp_path / "short", recogniser, **options)
    data = f"{long_recording},speech,sound"
    options["data_path_and_name_and_type"] = data
    decode("asr_inference_streaming", tmp_path / "long", recogniser, **options)
    end = len(homophones.TOKENS) - 1
    complete = [hyp for hyp in hypotheses if int(hyp.yseq[-1]) == end]
    assert len(complete) > 5 * len(homophones.SENTENCES)
    assert max(len(hyp.yseq) for hyp in complete) > 12
    ids = [hyp.yseq[1:-1].tolist() for hyp in complete]
    expected = score_hypotheses(load_lm(experiment).lm, [ids])[0]
    assert [float(hyp.scores["lm"]) for hyp in complete] == pytest.approx(expected, abs=1e-4)

"""Word-level fusion in ESPnet's searches: a finished hypothesis has the LMs' ln P of its text."""

import itertools

import homophones
import models
import numpy as np
import pytest
import soundfile
from test_asr_fusion import CHUNK, OPTIONS, SEARCH, best

from espnet_bayeslm.decoding.fusion_lm import FusionLM
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.scoring.interpolation import combined
from espnet_bayeslm.utils.files import read_lines

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def expected(lm):
    """Return a function: token ids of hypotheses -> ln P of their texts, as rescoring has it."""
    fusion = load_lm(lm(models.FUSION)).lm
    mixture = fusion._mixture()

    def scores(hypotheses):
        texts = [[homophones.TOKENS[token] for token in ids] for ids in hypotheses]
        of_components = [component.scorer.word_scores(texts) for component in mixture.components]
        return [
            combined(np.stack([s.log_probs for s in own]), mixture.weights).sum()
            for own in zip(*of_components, strict=True)
        ]

    return scores


@pytest.mark.parametrize("batch_size", [1, 8])
def test_batch_beam_search(batch_size, lm, expected, recogniser, speech):
    from espnet2.bin.asr_inference import Speech2Text

    if batch_size > 1 and not hasattr(Speech2Text, "batch_decode"):
        pytest.skip("the installed ESPnet decodes one utterance at a time")
    files = models.files_of("asr", recogniser) | models.files_of("lm", lm(models.FUSION))
    more = {"batch_size": batch_size} if batch_size > 1 else {}
    decode = Speech2Text(**files, **SEARCH, lm_weight=0.8, **more)
    paths = sorted(line.split()[1] for _, line in read_lines(speech / "wav.scp"))
    recordings = [soundfile.read(path)[0] for path in paths]
    batches = [recordings[n : n + batch_size] for n in range(0, len(recordings), batch_size)]
    if batch_size > 1:
        lists = [found for batch in batches for found in decode.batch_decode(batch)]
    else:
        lists = [decode(recording) for recording in recordings]
    assert [" ".join(found[0][1]) for found in lists] == homophones.SENTENCES
    found = [(ids, float(hyp.scores["lm"])) for _, _, ids, hyp in itertools.chain(*lists)]
    assert len(found) >= 5 * len(recordings)
    ids, parts = zip(*found, strict=True)
    assert parts == pytest.approx(expected(ids), abs=1e-4)


def test_streaming(lm, expected, decode, recogniser, hypotheses, tmp_path):
    options = {**OPTIONS, "lm": lm(models.FUSION), "sim_chunk_length": CHUNK}
    decode("asr_inference_streaming", tmp_path / "out", recogniser, **options)
    end = len(homophones.TOKENS) - 1
    complete = [hyp for hyp in hypotheses if int(hyp.yseq[-1]) == end]
    assert len(complete) > 5 * len(homophones.SENTENCES)
    found = [float(hyp.scores["lm"]) for hyp in complete]
    assert found == pytest.approx(expected([h.yseq[1:-1].tolist() for h in complete]), abs=1e-4)


def test_a_program_asks_for_ends_once_a_search(lm, decode, recogniser, tmp_path, monkeypatch):
    from espnet2.bin.asr_inference import Speech2Text

    before, searches, rests = Speech2Text.__init__, [], FusionLM.end_rests
    monkeypatch.setattr(FusionLM, "end_rests", lambda *how: searches.append(how) or rests(*how))
    options = {**OPTIONS, "lm": lm(models.FUSION)}
    assert best(decode("asr_inference", tmp_path / "out", recogniser, **options)) == (
        homophones.SENTENCES
    )
    assert len(searches) == len(homophones.SENTENCES)
    assert Speech2Text.__init__ is before


@pytest.mark.parametrize("name", [models.FUSION, "bayes_lstm"])
def test_tuning_by_decoding(name, lm, recogniser, speech, tmp_path, decode, capsys):
    from tiny_training import words

    from espnet_bayeslm.bin import tune_fusion

    files = {"asr_exp": recogniser, "lm": lm(name), "audio": speech / "wav.scp"}
    output = tmp_path / "tuned"
    tune_fusion.main(words(**files, ref=speech / "text", output=output, num_rounds=1))
    table = capsys.readouterr().out
    assert "no LM" in table and "round 1" in table and " 0.00" in table
    assert "\ncounted: words; normalisation none; ignored none; " in table
    assert f"; tuned on {speech / 'text'}; espnet_bayeslm " in table
    options = {"config": output / "decode.yaml", "lm": output, "nbest": 3}
    assert best(decode("asr_inference", tmp_path / "out", recogniser, **options)) == (
        homophones.SENTENCES
    )

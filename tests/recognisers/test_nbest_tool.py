"""`bayeslm nbest`: lists from recordings by ESPnet, PocketSphinx and Whisper; bad input."""

import functools
import shutil
import sys
import wave
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
import yaml
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import nbest, rescore, tune_fusion
from espnet_bayeslm.bin.nbest import find_recordings
from espnet_bayeslm.decoding.fusion_export import recogniser_config
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.recognisers import espnet_asr, pocketsphinx, recordings, whisper
from espnet_bayeslm.recognisers.espnet_asr import _rate
from espnet_bayeslm.rescoring import score_hypotheses
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.errors import InputError

sys.path.insert(0, str(Path(__file__).parent.parent / "espnet"))

from models import write_noise, write_recogniser

SIZE = 4


@pytest.fixture
def audio(tmp_path):
    folder = tmp_path / "audio"
    folder.mkdir()
    for seed, name in enumerate(("u2.wav", "u1.flac")):
        write_noise(folder / name, seed=seed)
    return folder


@pytest.fixture(scope="session")
def asr(corpus, tmp_path_factory):
    """Experiment of an ESPnet recogniser of random weights."""
    tokens = (corpus / "tokens.txt").read_text().split()
    return write_recogniser(tmp_path_factory.mktemp("asr") / "exp", tokens)


@pytest.fixture(scope="session")
def trained_lm(train_lm, tmp_path_factory):
    """Experiment of a Bayesian LM over the recogniser's tokens."""
    conf = ["unit=8", "uncertainty.cell_input@1=bayes", "dropout_rate=0.0"]
    lm = words(lm="bayes_lstm", lm_conf=conf)
    return train_lm(tmp_path_factory.mktemp("lm") / "exp", *lm)


def command(recogniser, audio, output, **options):
    options = {"nbest": SIZE, **options}
    return words(recogniser=recogniser, audio=audio, output=output, **options)


@pytest.fixture
def error(fails, audio, tmp_path):
    """Return a function that runs the tool, which must write nothing, and returns its error."""

    def error(recogniser, audio=audio, **options):
        message = fails(nbest.main, command(recogniser, audio, tmp_path / "out", **options))
        assert not (tmp_path / "out").exists()
        return message

    return error


def test_espnets_scores_are_written_apart(asr, audio, tmp_path):
    from espnet2.bin.asr_inference import Speech2Text

    weights = {"ctc_weight": 0.4, "penalty": 0.5}
    nbest.main(command("espnet", audio, tmp_path / "out", model=asr, **weights))
    lists = list(read_nbest(tmp_path / "out"))
    assert [item.utt for item in lists] == ["u1", "u2"]
    files = {"asr_train_config": f"{asr}/config.yaml", "asr_model_file": f"{asr}/valid.acc.ave.pth"}
    decode = Speech2Text(**files, beam_size=SIZE, nbest=SIZE, **weights)
    expected = decode(soundfile.read(audio / "u2.wav", dtype="float32")[0])
    assert len(expected) == SIZE == len(lists[1].hypotheses)
    for hyp, (text, _, _, theirs) in zip(lists[1].hypotheses, expected, strict=True):
        assert " ".join(hyp.words) == text and hyp.lm_score is None
        bonus = 0.5 * float(theirs.scores["length_bonus"])
        assert bonus > 0
        assert hyp.am_score == pytest.approx(float(theirs.score) - bonus, abs=1e-4)
        for name in ("decoder", "ctc"):
            assert hyp.extra[f"{name}_score"] == pytest.approx(float(theirs.scores[name]))


def test_lists_of_a_fused_search_are_rescored(asr, trained_lm, audio, tmp_path):
    nbest.main(command("espnet", audio, tmp_path / "out", model=asr, lm=trained_lm, lm_weight=0.5))
    lists = list(read_nbest(tmp_path / "out"))
    lm = load_lm(trained_lm)
    ids = [[[lm.tokens.index(word) for word in h.words] for h in x.hypotheses] for x in lists]
    for item, scores in zip(lists, score_hypotheses(lm.lm, ids), strict=True):
        assert [hyp.lm_score for hyp in item.hypotheses] == pytest.approx(scores, abs=1e-4)
    given = {"nbest": tmp_path / "out", "lm": trained_lm, "output": tmp_path / "rescored"}
    rescore.main(words(**given, max_oov_rate=1))  # the tokens are letters and <unk>
    assert len((tmp_path / "rescored" / "text").read_text().splitlines()) == 2


def test_espnets_recogniser_in_python_knows_our_lms(asr, trained_lm, audio):
    files = {"asr_train_config": f"{asr}/config.yaml", "asr_model_file": f"{asr}/valid.acc.ave.pth"}
    lm = {"lm_train_config": f"{trained_lm}/config.yaml"}
    lm["lm_file"] = f"{trained_lm}/valid.loss.ave.pth"
    decode = espnet_bayeslm.speech2text(**files, **lm, lm_weight=0.5, beam_size=SIZE, nbest=2)
    found = decode(soundfile.read(audio / "u2.wav", dtype="float32")[0])
    scores = score_hypotheses(load_lm(trained_lm).lm, [[ids for _, _, ids, _ in found]])[0]
    assert [float(hyp.scores["lm"]) for *_, hyp in found] == pytest.approx(scores, abs=1e-4)


def test_recordings_to_tune_on_have_transcripts(audio, tmp_path, fails):
    (tmp_path / "ref").write_text("u1 a b\n")
    files = {"asr_exp": tmp_path, "lm": tmp_path, "audio": audio, "ref": tmp_path / "ref"}
    error = fails(tune_fusion.main, words(**files, output=tmp_path / "out"))
    assert error.endswith("ref: no transcript of 1 of 2 recordings, such as u2")


def test_kaldis_archives_can_be_written(asr, trained_lm, audio, tmp_path):
    options = dict(model=asr / "valid.acc.ave.pth", lm=trained_lm)
    nbest.main(command("espnet", audio, tmp_path / "out", **options, nbest_format="kaldi"))
    nbest.main(command("espnet", audio, tmp_path / "out.jsonl", **options))
    archives, lines = (
        [(x.utt, [(h.words, h.am_score) for h in x.hypotheses]) for x in read_nbest(path)]
        for path in (tmp_path / "out", tmp_path / "out.jsonl")
    )
    assert archives == lines


def test_a_wav_scp_names_the_utterances(audio, tmp_path):
    scp = tmp_path / "wav.scp"
    scp.write_text(f"b {audio}/u1.flac\na {audio}/u2.wav\n")
    assert find_recordings(scp) == {"a": audio / "u2.wav", "b": audio / "u1.flac"}
    assert find_recordings(audio / "u2.wav") == {"u2": audio / "u2.wav"}


@pytest.mark.parametrize(
    "conf, rate", [({"fs": "8k"}, 8000), ({"fs": 44100}, 44100), ({}, 16000), (None, 16000)]
)
def test_the_rate_is_that_of_the_training(conf, rate):
    assert _rate({"frontend_conf": conf}) == rate


def test_bad_recordings(asr, error, tmp_path):
    refused = functools.partial(error, "espnet", model=asr)
    folder = tmp_path / "bad"
    folder.mkdir()
    assert "no audio found" in refused(audio=folder)
    write_noise(folder / "a.wav", rate=8000)
    assert "8000 samples a second" in refused(audio=folder) and "sox" in refused(audio=folder)
    write_noise(folder / "a.wav", channels=2)
    assert "2 channels" in refused(audio=folder)
    write_noise(folder / "a.wav", seconds=0)
    assert "0.0 seconds of audio" in refused(audio=folder)
    (folder / "a.wav").write_bytes(b"nothing")
    assert "no audio that can be read" in refused(audio=folder)
    write_noise(folder / "a.wav")
    write_noise(folder / "a.flac")
    assert "two recordings have the name 'a'" in refused(audio=folder)
    scp = tmp_path / "wav.scp"
    scp.write_text("u1 sox in.wav -t wav - |\n")
    assert f"{scp}:1: " in refused(audio=scp) and "Commands are not run" in refused(audio=scp)
    scp.write_text("u1 none.wav\n")
    assert "none.wav: no such audio file" in refused(audio=scp)


@pytest.fixture(scope="session")
def asr_of_frames(corpus, tmp_path_factory):
    """Experiment whose encoder needs several frames, as most do."""
    conf = {"output_size": 32, "attention_heads": 2, "linear_units": 32, "num_blocks": 1}
    encoder = {"encoder": "transformer", "encoder_conf": {**conf, "input_layer": "conv2d"}}
    decoder = {"decoder_conf": {"attention_heads": 2, "linear_units": 32, "num_blocks": 1}}
    tokens = (corpus / "tokens.txt").read_text().split()
    return write_recogniser(tmp_path_factory.mktemp("frames") / "exp", tokens, **encoder, **decoder)


FAULTS = {
    "short": "is too short for subsampling",
    "none": "0.0 seconds of audio",
    "rate": "8000 samples a second",
    "stereo": "2 channels",
    "torn": "no audio that can be read",
    "cut": "no audio that can be read",
    "nan": "4 of 8000 samples are no numbers",
}


def write_faulty(folder):
    """Write a recording for each of `FAULTS`."""
    write_noise(folder / "short.wav", seconds=0.05)
    write_noise(folder / "none.wav", seconds=0)
    write_noise(folder / "rate.wav", rate=8000)
    write_noise(folder / "stereo.wav", channels=2)
    (folder / "torn.wav").write_bytes(b"nothing")
    soundfile.write(folder / "nan.wav", [np.nan] * 3 + [0.1] * 7996 + [np.inf], 16000, "FLOAT")
    write_noise(folder / "cut.flac")
    whole = (folder / "cut.flac").read_bytes()
    (folder / "cut.flac").write_bytes(whole[: len(whole) // 2])  # its header is whole


def test_a_faulty_recording_does_not_lose_the_others(asr_of_frames, audio, error, tmp_path, caplog):
    write_faulty(audio)
    nbest.main(command("espnet", audio, tmp_path / "lists", model=asr_of_frames))
    assert [item.utt for item in read_nbest(tmp_path / "lists")] == ["u1", "u2"]
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    for utt, cause in FAULTS.items():
        (line,) = [line for line in warnings if line.startswith(f"{utt} is left out: ")]
        assert cause in line and f"{audio / utt}." in line
    assert (
        "7 of 9 recordings are left out: none, rate, stereo, torn, cut, nan, short" in warnings[-1]
    )
    for name in ("u1.flac", "u2.wav"):
        (audio / name).unlink()
    found = error("espnet", audio=audio, model=asr_of_frames)
    assert "none of the 7 recordings can be used, the first, none: " in found


def test_tuning_leaves_faulty_recordings_out(
    asr_of_frames, trained_lm, audio, tmp_path, capsys, caplog, fails
):
    write_faulty(audio)
    utts = ["u1", "u2", *FAULTS]
    (tmp_path / "ref").write_text("".join(f"{utt} a b c\n" for utt in utts))
    options = {"asr_exp": asr_of_frames, "lm": trained_lm, "audio": audio, "num_rounds": 1}
    files = {"ref": tmp_path / "ref", "output": tmp_path / "out"}
    tune_fusion.main(words(**options, **files, beam_size=2))
    scp = tmp_path / "wav.scp"
    scp.write_text(f"u1 {audio}/u1.flac\nu2 {audio}/u2.wav\n")
    good = {**options, "audio": scp, **files, "output": tmp_path / "good"}
    tables = [capsys.readouterr().out]
    tune_fusion.main(words(**good, beam_size=2))
    tables.append(capsys.readouterr().out)
    rows, expected = ([x.split()[:-1] for x in t.splitlines() if "LM" in x] for t in tables)
    assert rows == expected and rows[0][:2] == ["no", "LM"]
    assert "7 of 9 recordings are left out: none" in caplog.text
    (tmp_path / "ref").write_text("".join(f"{utt} -\n" for utt in utts))
    files["output"] = tmp_path / "none"
    found = fails(tune_fusion.main, words(**options, **files))
    assert f"{tmp_path / 'ref'}: no words in the transcripts" in found


def test_a_folder_has_all_that_soundfile_reads(audio, tmp_path, caplog, fails):
    noise = np.random.default_rng(0).uniform(-0.2, 0.2, 8000)
    soundfile.write(audio / "u3.ogg", noise, 16000)
    soundfile.write(audio / "u4.mp3", noise, 16000, format="MP3")
    (audio / "u5.m4a").write_bytes(b"\0\0\0 ftypM4A \0\0\0\0M4A mp42isom")
    (audio / "u1.txt").write_text("a transcript\n")
    (audio / ".DS_Store").write_bytes(b"\0\0")
    assert [*find_recordings(audio)] == ["u1", "u2", "u3", "u4"]
    (line,) = caplog.messages
    assert "left out as no audio that can be read (1): u5.m4a. soundfile reads " in line
    assert [*find_recordings(audio / "u4.mp3")] == ["u4"]
    with pytest.raises(InputError, match=r"u5\.m4a: neither audio .* soundfile reads .*WAV"):
        find_recordings(audio / "u5.m4a")


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"model": "pit_espnet"}, "model: pit_espnet"),
        ({"encoder": "transformer_multispkr"}, "encoder: transformer_multispkr"),
        ({"model_conf": {"num_inf": 2}}, "num_inf: 2"),
    ],
)
def test_a_recogniser_of_two_speakers_is_refused(changes, named, asr, error, tmp_path):
    config = shutil.copytree(asr, tmp_path / "pit") / "config.yaml"
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **changes}))
    assert f"config.yaml: a recogniser of several speakers at once ({named})" in error(
        "espnet", model=config.parent
    )
    with pytest.raises(InputError, match="of several speakers at once"):
        recogniser_config(config.parent)


def test_bad_options(asr, trained_lm, audio, error, tmp_path, monkeypatch):
    assert "--model is needed" in error("espnet")
    assert "--model has no meaning" in error("pocketsphinx", model=asr)
    assert "--nbest 0" in error("espnet", model=asr, nbest=0)
    assert "found no valid.acc.ave.pth" in error("espnet", model=tmp_path)
    assert "no Whisper model that can be read" in error("whisper", model=asr)
    config = shutil.copytree(asr, tmp_path / "transducer") / "config.yaml"
    config.write_text(config.read_text().replace("decoder: transformer", "decoder: transducer"))
    assert "does not tell its scores apart" in error("espnet", model=config.parent, lm=trained_lm)
    other = write_recogniser(tmp_path / "other", ["<blank>", "<unk>", "z", "<sos/eos>"])
    assert "ids stand for other tokens" in error("espnet", model=other, lm=trained_lm)
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    assert "pip install pocketsphinx" in error("pocketsphinx")
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "transformers is not installed" in error("whisper", model=asr)


def test_a_transducers_hypotheses_have_one_score(asr):
    search = espnet_asr.BeamSearch(asr, lm_weight=0.0, ctc_weight=0.3, size=2)
    search._search = lambda _: [("a b", ["a", "b"], [2, 3], SimpleNamespace(score=-1.5))]
    assert search(np.zeros(10)) == [Hypothesis(("a", "b"), -1.5)]


class NoResult:
    """A decoder of PocketSphinx that recognises nothing."""

    def __getattr__(self, name):
        return lambda *_, **__: None


def test_a_recording_without_a_result_has_an_empty_hypothesis():
    search = pocketsphinx.SphinxSearch.__new__(pocketsphinx.SphinxSearch)
    search.decoder, search.scorer, search.size = NoResult(), None, 3
    assert search(np.zeros(16000)) == [Hypothesis((), 0.0)]


SENTENCE = "we will work together for peace"


def test_dictionaries_have_the_words_of_an_arpa_file(tmp_path, monkeypatch):
    entries = {"a": [("a", "AH"), ("a(2)", "EY")], "b": [("b", "B IY")]}
    monkeypatch.setattr(pocketsphinx, "cmudict", lambda: entries)
    assert pocketsphinx.write_dictionary(tmp_path / "d", ["a", "zz"]) == 1
    assert (tmp_path / "d").read_text() == "a AH\na(2) EY\n"
    with pytest.raises(InputError, match="no word"):
        pocketsphinx.write_dictionary(tmp_path / "d", ["zz"])
    (tmp_path / "lm").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-1 <unk>\n-1\t<s>\t-1\n-1\tit's\t0\n-2\tb\t0\n\n"
        "\\2-grams:\n-1\tb c\n\\end\\\n"
    )
    assert pocketsphinx.arpa_words(tmp_path / "lm") == ["it's", "b"]
    (tmp_path / "lm").write_text("nothing\n")
    with pytest.raises(InputError, match="the file ends before"):
        pocketsphinx.arpa_words(tmp_path / "lm")


@pytest.mark.parametrize("with_lm", [True, False])
def test_a_spoken_sentence_is_recognised(with_lm, tmp_path):
    pytest.importorskip("pocketsphinx", reason="the recogniser is the package pocketsphinx")
    engine = pytest.importorskip("ttspico", reason="the voice is that of the package ttspico")
    parts = []
    engine.TtsEngine("en-US").speak(SENTENCE, callback=lambda form, audio, end: parts.append(audio))
    with wave.open(str(tmp_path / "u1.wav"), "wb") as f:
        f.setparams((1, 2, recordings.RATE, 0, "NONE", ""))
        f.writeframes(b"".join(parts))
    (tmp_path / "text").write_text(f"{SENTENCE}\n" + "we work for peace\nthey will go\n" * 9)
    options = {}
    if with_lm:
        build_ngram(tmp_path / "text", tmp_path / "lm", order=2, discount_fallback=True)
        options = {"lm": tmp_path / "lm"}
    nbest.main(command("pocketsphinx", tmp_path, tmp_path / "out", nbest=3, **options))
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


transformers = pytest.importorskip("transformers", reason="transformers is not installed")
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>"]
SPECIAL += ["<|transcribe|>", "<|nospeech|>", "<|notimestamps|>"]
LENGTH = 9


@pytest.fixture(scope="module", params=[False, True], ids=["english", "multilingual"])
def model(request, tmp_path_factory):
    """Folder of a Whisper model whose words are letters."""
    folder = tmp_path_factory.mktemp("whisper")
    letters = [*"abcdĠ", "Ġa", "Ġb", "Ġc", "Ġd"]
    vocabulary = {token: n for n, token in enumerate([*letters, *SPECIAL])}
    tokenizer = transformers.WhisperTokenizer(
        vocabulary, [("Ġ", x) for x in "abcd"], additional_special_tokens=SPECIAL
    )
    features = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=2)
    transformers.WhisperProcessor(features, tokenizer).save_pretrained(folder)
    start, end = vocabulary["<|startoftranscript|>"], vocabulary["<|endoftext|>"]
    special = {"decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": end}
    config = transformers.WhisperConfig(
        **{"vocab_size": len(tokenizer), "num_mel_bins": 8, "d_model": 16, "encoder_layers": 1},
        **{"decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
        **{"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_source_positions": 100},
        **{"max_target_positions": LENGTH, "init_std": 0.5, "bos_token_id": end, **special},
        **{"suppress_tokens": None, "begin_suppress_tokens": None},
    )
    torch.manual_seed(1)
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)
    transformers.GenerationConfig(
        **special,
        is_multilingual=request.param,
        # all but letters and the end
        suppress_tokens=[vocabulary["Ġ"], *range(end + 1, len(tokenizer))],
    ).save_pretrained(folder)
    return folder


@torch.no_grad()
def log_prob(model, features, prompt, tokens):
    """ln P of tokens after a prompt, one step at a time."""
    total = 0.0
    for n, token in enumerate(tokens):
        ids = torch.tensor([[*prompt, *tokens[:n]]])
        total += model(features, decoder_input_ids=ids).logits[0, -1].log_softmax(-1)[token].item()
    return total


def test_scores_are_the_probabilities_of_the_texts(model, audio, tmp_path):
    nbest.main(command("whisper", audio, tmp_path / "out", model=model, nbest=3))
    lists = list(read_nbest(tmp_path / "out"))
    assert [item.utt for item in lists] == ["u1", "u2"]
    whisper = transformers.WhisperForConditionalGeneration.from_pretrained(model).eval()
    processor = transformers.WhisperProcessor.from_pretrained(model)
    ids = processor.tokenizer.convert_tokens_to_ids(SPECIAL)
    end, start, english, _, _, transcribe, _, no_times = ids
    multilingual = whisper.generation_config.is_multilingual
    prompt = [start, english, transcribe, no_times] if multilingual else [start, no_times]
    samples = soundfile.read(audio / "u2.wav", dtype="float32")[0]
    features = processor(samples, sampling_rate=16000, return_tensors="pt").input_features
    assert len(lists[1].hypotheses) > 1
    for hyp in lists[1].hypotheses:
        tokens = processor.tokenizer(" ".join(hyp.words), add_special_tokens=False).input_ids
        # a blank before the first word is not seen in the text, nor is the end
        letters = [tokens, [tokens[0] + 5, *tokens[1:]]] if tokens else [[]]
        possible = [[*x, end] if len(x) < LENGTH - len(prompt) else x for x in letters]
        scores = [log_prob(whisper, features, prompt, x) for x in possible]
        assert min(abs(score - hyp.am_score) for score in scores) < 1e-4


def test_a_text_of_several_token_sequences_has_their_probability(model, monkeypatch):
    """`a` with and without a blank before it."""
    search = whisper.WhisperSearch(model, language="en", size=2)
    prompt, end = search._prompt[0].tolist(), search._model.config.eos_token_id
    found = torch.tensor([[*prompt, token, end] for token in (0, 5)])
    monkeypatch.setattr(search, "_searched", lambda *_: found)
    noise = np.random.default_rng(0).uniform(-0.2, 0.2, 16000).astype(np.float32)
    (hyp,) = search(noise)
    features = search._processor(noise, sampling_rate=16000, return_tensors="pt").input_features
    parts = [log_prob(search._model, features, prompt, [token, end]) for token in (0, 5)]
    assert hyp.words == ("a",) and hyp.am_score == pytest.approx(np.logaddexp(*parts), abs=1e-4)


def test_recordings_that_are_too_long_and_unknown_languages(model, audio, error):
    write_noise(audio / "u3.wav", seconds=2.5)
    scp = audio.parent / "wav.scp"
    scp.write_text(f"u3 {audio}/u3.wav\n")
    found = error("whisper", audio=scp, model=model)
    assert "u3.wav: 2.5 seconds of audio: at most 2 were expected" in found
    (audio / "u3.wav").unlink()
    if transformers.GenerationConfig.from_pretrained(model).is_multilingual:
        assert "--language Elbish" in error("whisper", model=model, language="Elbish")

"""Fusion over tokens whose start and end are not the last, and marks among them: s2t, Whisper."""

from types import SimpleNamespace

import models
import pytest
import sentencepiece
import torch
from tiny_training import words

from espnet_bayeslm import register
from espnet_bayeslm.bin import export, nbest, ngram
from espnet_bayeslm.loading import trained_lm
from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.nbest.formats import read_nbest

TEXT = "so we could put it there\nwe do not put it there\nputting it there café\ndo so\nit is so\n"
OWSM_MARKS = ["<na>", "<nolang>", "<deu>", "<eng>", "<asr>", "<notimestamps>", "<0.00>", "<0.50>"]
PIECES = "Ġso Ġwe Ġcould ! Ġput ting Ġit Ġthere Ġdo Ġnot".split()  # noqa: SIM905
WHISPER = ["!", *PIECES[:3], *PIECES[4:], "<|endoftext|>", "<|startoftranscript|>", "<|en|>"]
WHISPER += ["<|transcribe|>", "<|notimestamps|>", "<|0.00|>"]
SECONDS = 2


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a text, and the word n-gram of it."""
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT * 3)
    how = {"text": path, "order": 2, "discount_fallback": "true"}
    ngram.main(words(**how, arpa=path.with_name("words.arpa")))
    return path


def pieces(folder, text):
    """Train word pieces with byte fallback; return their file and tokens, but for the special."""
    how = {"vocab_size": 290, "byte_fallback": True, "character_coverage": 0.98, "bos_id": -1}
    how |= {"eos_id": -1, "model_prefix": f"{folder}/bpe", "model_type": "bpe"}
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), user_defined_symbols=OWSM_MARKS, **how
    )
    model = sentencepiece.SentencePieceProcessor(f"{folder}/bpe.model")
    return f"{folder}/bpe.model", [model.id_to_piece(n) for n in range(1, len(model))]


def likelier(exp, ids):
    """Make tokens of a recogniser more likely, and return its folder."""
    state = torch.load(exp / "valid.acc.ave.pth")
    state["decoder.output_layer.bias"][ids] += 3
    torch.save(state, exp / "valid.acc.ave.pth")
    return exp


@pytest.fixture(scope="module")
def s2t(text, tmp_path_factory):
    """Return the experiment of a model of the task s2t, of random weights."""
    from espnet2.tasks.s2t import S2TTask

    folder = tmp_path_factory.mktemp("s2t")
    bpemodel, found = pieces(folder, text)
    conf = {"notime_symbol": "<notimestamps>", "first_time_symbol": "<0.00>"}
    conf |= {"last_time_symbol": "<0.50>", "fs": models.RATE, "speech_length": SECONDS}
    conf |= {"text_prev_name": "text_prev", "text_ctc_name": "text_ctc", "na_symbol": "<na>"}
    special = {"preprocessor": "s2t", "preprocessor_conf": conf, "bpemodel": bpemodel}
    tokens = ["<blank>", "<unk>", *found, "<sos>", "<eos>", "<sop>"]
    how = {"task": S2TTask, "end": "<eos>", "token_type": "bpe"}
    exp = models.write_recogniser(folder / "exp", tokens, **how, **special)
    # few bytes and marks
    return likelier(exp, [n for n, x in enumerate(tokens) if "<" not in x or x == "<eos>"])


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """Return the experiment of a recogniser with tokens as ESPnet's Whisper has them."""
    conf = {**models.ATTENTION_CTC["model_conf"], "ctc_weight": 0.0}
    conf |= {"sym_sos": "<|startoftranscript|>", "sym_eos": "<|endoftext|>"}
    folder = tmp_path_factory.mktemp("whisper") / "exp"
    how = {"token_type": "whisper_en", "model_conf": conf, "end": "<|endoftext|>"}
    exp = models.write_recogniser(folder, WHISPER, **how)
    return likelier(exp, [0, WHISPER.index("<|endoftext|>")])


def fusion(asr, text, folder, **options):
    """Return the folder of a fusion of the word n-gram, with a look-ahead that is taken back."""
    files = {"asr_exp": asr, "ngram": text.with_name("words.arpa"), "text": text, **options}
    how = {"format": "fusion", "ahead_weight": 0.5, "max_oov_rate": 1}
    export.main(words(**files, **how, output=folder / "fusion"))
    return folder / "fusion"


def expected(text, sentences):
    """Return ln P of each sentence by the n-gram of words, as rescoring has it."""
    options = ComponentOptions(ngrams=[str(text.with_name("words.arpa"))], max_oov_rate=1.0)
    (component,) = load_components(options)
    return [float(s.log_probs.sum()) for s in component.scorer.word_scores(sentences)]


def test_lists_of_an_s2t_model(s2t, text, tmp_path):
    """Marks are no words, their tokens cost nothing, and each list has rescoring's scores."""
    how = {"text": text, "asr_exp": s2t, "order": 2, "discount_fallback": "true"}
    ngram.main(words(**how, arpa=tmp_path / "tokens.arpa"))
    lm = fusion(s2t, text, tmp_path, ahead=tmp_path / "tokens.arpa")
    audio = tmp_path / "audio"
    audio.mkdir()
    for seed in range(3):
        models.write_noise(audio / f"u{seed}.wav", seed=seed, seconds=SECONDS)
    models.write_noise(audio / "long.wav", seconds=2 * SECONDS)
    how = {"recogniser": "espnet", "model": s2t, "audio": audio, "nbest": 6}
    nbest.main(words(**how, lm=lm, lm_weight=0.5, penalty=1.5, output=tmp_path / "lists"))
    lists = list(read_nbest(tmp_path / "lists"))
    assert [found.utt for found in lists] == ["u0", "u1", "u2"]  # the window is too short for long
    found = [hypothesis for own in lists for hypothesis in own.hypotheses]
    assert not any("<" in word or "\u2581" in word for hyp in found for word in hyp.words)
    assert max(len(hyp.words) for hyp in found) > 1
    scores = [hyp.lm_score for hyp in found]
    assert scores == pytest.approx(expected(text, [hyp.words for hyp in found]), abs=1e-4)


class WhisperPieces:
    """Cuts text as Whisper does, for its few tokens; an exclamation mark follows `we`."""

    def text2tokens(self, text):
        known = [f"Ġ{word}" for word in text.replace("putting", "put").split()]
        known = [token for token in known if token in WHISPER]
        return " ".join(known).replace("Ġwe", "Ġwe !").split()


def test_tokens_as_of_espnets_whisper(whisper, text, tmp_path, monkeypatch):
    """The first token is text, and a hypothesis begins with marks."""
    from espnet2.bin import asr_inference

    names = SimpleNamespace(ids2tokens=lambda ids: [WHISPER[n] for n in ids])
    monkeypatch.setattr(asr_inference, "TokenIDConverter", lambda token_list: names)
    monkeypatch.setattr(trained_lm, "_whisper_tokenizer", lambda _: WhisperPieces())
    tokens = {token: n for n, token in enumerate(WHISPER)}
    how = {"text": text, "asr_exp": whisper, "order": 2, "discount_fallback": "true"}
    ngram.main(words(**how, arpa=tmp_path / "tokens.arpa"))
    lm = fusion(whisper, text, tmp_path, ahead=tmp_path / "tokens.arpa")
    files = models.files_of("asr", whisper) | models.files_of("lm", lm)
    files["asr_model_file"] = f"{whisper}/valid.acc.ave.pth"
    weights = {"ctc_weight": 0.0, "lm_weight": 0.5, "penalty": 3.0}
    register()
    decode = asr_inference.Speech2Text(**files, **weights, beam_size=8, nbest=8, token_type="char")
    primer = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    decode.beam_search.set_hyp_primer([tokens[mark] for mark in primer])
    samples = models.write_noise(tmp_path / "a.wav", seconds=SECONDS)
    speech = torch.tensor(samples, dtype=torch.float32)
    frames = decode.asr_model.encode(speech[None], torch.tensor([len(samples)]))[0].size(1)
    fused = decode.beam_search.scorers["lm"]
    assert fused.blank is None and fused.sos == tokens[primer[0]] != fused.ids.eos
    for ends_wait in (False, True):
        # ESPnet pays no end of those that it cuts off
        found = [hyp for *_, hyp in decode(speech) if len(hyp.yseq) - len(primer) < frames]
        texts = [[*fused.payments.words(hyp.yseq.tolist())] for hyp in found]
        assert any(0 in hyp.yseq for hyp in found)
        assert ends_wait or max(map(len, texts)) > 1
        scores = [float(hyp.scores["lm"]) for hyp in found]
        assert scores == pytest.approx(expected(text, texts), abs=1e-4)
        fused.attach_to(decode.beam_search)

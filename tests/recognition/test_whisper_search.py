"""Whisper's lists: a tiny model of random weights, against a search and scores of our own."""

import pytest
import soundfile
import torch
from random_recogniser import write_noise

from espnet_bayeslm.bin import nbest
from espnet_bayeslm.nbest.formats import read_nbest

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>"]
SPECIAL += ["<|transcribe|>", "<|nospeech|>", "<|notimestamps|>"]
SIZE = 3
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
    config = transformers.WhisperConfig(
        **{"vocab_size": len(tokenizer), "num_mel_bins": 8, "d_model": 16, "encoder_layers": 1},
        **{"decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
        **{"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_source_positions": 100},
        **{"max_target_positions": LENGTH, "decoder_start_token_id": start, "init_std": 0.5},
        **{"bos_token_id": end, "eos_token_id": end, "pad_token_id": end},
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(1)
    whisper = transformers.WhisperForConditionalGeneration(config)
    whisper.save_pretrained(folder)
    transformers.GenerationConfig(
        **{"decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": end},
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
    command = f"--recogniser whisper --model {model} --audio {audio} --output {tmp_path}/out"
    nbest.main([*command.split(), "--nbest", str(SIZE)])
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


def test_recordings_that_are_too_long_and_unknown_languages(model, audio, fails, tmp_path):
    command = ["--recogniser", "whisper", "--model", model, "--audio", audio]
    command += ["--output", tmp_path / "out"]
    write_noise(audio / "u3.wav", seconds=2.5)
    error = fails(nbest.main, command)
    assert "u3.wav: 2.5 seconds of audio: at most 2 were expected" in error
    (audio / "u3.wav").unlink()
    if transformers.GenerationConfig.from_pretrained(model).is_multilingual:
        assert "--language Elbish" in fails(nbest.main, [*command, "--language", "Elbish"])
    assert not (tmp_path / "out").exists()

"""Tiny Whisper models of random weights, whose tokens are pieces of words, as bytes are written."""

import torch
import transformers

MARKS = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>"]
MARKS += ["<|translate|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
PIECES = "so we Ġso Ġwe Ġcould Ġp ut Ġit Ġthe re Ġ y es Ġremote Ġis Ġon Ġtable".split()  # noqa: SIM905
SIGNS = "Ġ, , . S ĠThe ĠWe Ġ- Ã © ĠÃ".split()  # noqa: SIM905
TIMES = [f"<|{n / 50:.2f}|>" for n in range(11)]
FEATURES = 8


def tiny_tokenizer(pieces=(*PIECES, *SIGNS)):
    """Tokenizer of pieces, whose marks come after them and timestamps last."""
    vocabulary = {token: n for n, token in enumerate(dict.fromkeys([*pieces, *MARKS]))}
    tokenizer = transformers.WhisperTokenizer(vocabulary, [], additional_special_tokens=MARKS)
    tokenizer.add_tokens([transformers.AddedToken(time, special=False) for time in TIMES])
    return tokenizer


def tiny_whisper(tokenizer, *, length=30, seed=3, end_bonus=5.0):
    """Model of some tokens; its texts have at most `length` tokens, and the likelier an end."""
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    end = ids["<|endoftext|>"]
    special = {"eos_token_id": end, "pad_token_id": end, "bos_token_id": end}
    special["decoder_start_token_id"] = ids["<|startoftranscript|>"]
    config = transformers.WhisperConfig(
        **{"vocab_size": len(tokenizer), "num_mel_bins": FEATURES, "d_model": 16},
        **{"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "init_std": 0.5},
        **{"max_source_positions": 100, "max_target_positions": length + 4, **special},
        **{"suppress_tokens": None, "begin_suppress_tokens": None},
    )
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(config).eval().requires_grad_(False)
    row = model.proj_out.weight[end].normal_(0, 0.5)  # that of padding is 0
    model.model.decoder.layer_norm.bias += end_bonus * row / row.square().sum()
    model.generation_config = transformers.GenerationConfig(
        **special,
        **{"is_multilingual": True, "no_timestamps_token_id": ids["<|notimestamps|>"]},
        **{"lang_to_id": {mark: ids[mark] for mark in ("<|en|>", "<|de|>")}, "max_length": length},
        task_to_id={task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        suppress_tokens=[n for mark, n in ids.items() if n != end],
        max_initial_timestamp_index=5,
    )
    return model


def features(count, seed=3):
    """Features of some utterances."""
    return torch.randn(count, FEATURES, 200, generator=torch.Generator().manual_seed(seed))

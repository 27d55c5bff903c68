"""`generate` with an n-gram and a bias list, of other models than Whisper."""

import json
import random

import pytest
import sentencepiece
import tokenizers
import torch
import transformers
from test_fusion_lm import SENTENCES
from test_generate import PHRASES, STEPS, WEIGHTS, check_sums, searched
from tiny_training import words

from espnet_bayeslm.bin import ngram
from espnet_bayeslm.generation import WordFusion
from espnet_bayeslm.mixture import Mixture, MixtureOptions

LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
LAYERS |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
MARKS = ["<unk>", "<s>", "</s>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with pieces of sentencepiece, and an n-gram."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "text").write_text("\n".join(SENTENCES * 10) + "\n")
    ngram.main(words(text=folder / "text", order=2, arpa=folder / "arpa", discount_fallback="true"))
    how = {"vocab_size": 34, "model_type": "bpe", "model_prefix": f"{folder}/spm"}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES), **how)
    return folder


def numbered(folder, *before, after=()):
    """Return {token: id}: marks before the pieces of sentencepiece, and tokens after them."""
    model = sentencepiece.SentencePieceProcessor(f"{folder}/spm.model")
    pieces = [model.id_to_piece(n) for n in range(len(MARKS), len(model))]
    return {token: n for n, token in enumerate([*before, *pieces, *after])}


def moonshine(folder):
    """Return a Moonshine, its tokenizer, the shape of its input, its prompt, and who writes it.

    Some tokens are bytes, several blanks, and marks of which only the list of tokens knows.
    """
    odd = ["▁▁", "\u3000", "▁\xa0", *(f"<0x{byte:02X}>" for byte in " sé灯".encode())]
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE(numbered(folder, *MARKS, after=odd), [], byte_fallback=True)
    )
    inner.add_special_tokens(["<<ST_0>>", "<<ST_1>>"])
    steps = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback()]
    inner.decoder = tokenizers.decoders.Sequence([*steps, tokenizers.decoders.Fuse()])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MoonshineConfig(
        **{f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in layers.items()},
        **{"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 16},
    )
    return transformers.MoonshineForConditionalGeneration(config), tokenizer, (16000,), ["<s>"], {}


def speech2text(folder):
    """Return a Speech2Text, and so on."""
    vocabulary = numbered(folder, "<s>", "<pad>", "</s>", "<unk>")
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    files = [f"{folder}/vocab.json", f"{folder}/spm.model"]
    tokenizer = transformers.Speech2TextTokenizer(*files, lang_codes="mustc", do_upper_case=True)
    config = transformers.Speech2TextConfig(
        **{"vocab_size": len(tokenizer), "d_model": 16, "conv_channels": 16, **LAYERS},
        **{"input_feat_per_channel": 8, "max_source_positions": 200},
    )
    model = transformers.Speech2TextForConditionalGeneration(config)
    language = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids("<lang:fr>")}
    return model, tokenizer, (80, 8), ["</s>", "<lang:fr>"], language


def seamless(folder):
    """Return a SeamlessM4T, and so on."""
    marks = ["__eng__", "__deu__", "<MINED_DATA>"]
    tokenizer = transformers.SeamlessM4TTokenizer(
        numbered(folder, "<pad>", *MARKS), tgt_lang="deu", additional_special_tokens=marks
    )
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id")}
    config = transformers.SeamlessM4TConfig(
        **{"vocab_size": len(tokenizer), "hidden_size": 16, "feature_projection_input_dim": 8},
        **{"speech_encoder_layers": 1, "speech_encoder_attention_heads": 2},
        **{"speech_encoder_intermediate_size": 16, "num_conv_pos_embedding_groups": 2},
        **{"num_adapter_layers": 1, "max_position_embeddings": 64, "pad_token_id": 0},
        **{**LAYERS, **special, "decoder_start_token_id": tokenizer.eos_token_id},
    )
    model = transformers.SeamlessM4TForSpeechToText(config)
    language = {"eng": tokenizer.convert_tokens_to_ids("__eng__")}
    model.generation_config.text_decoder_lang_to_code_id = language
    return model, tokenizer, (40, 8), ["</s>", "__eng__"], {"tgt_lang": "eng"}


def randomised(model):
    """Return the model with random weights."""
    torch.manual_seed(3)
    model = model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(0, 0.3) if parameter.dim() > 1 else None
    return model


def rule_of_places(tokenizer):
    """Return a rule that leaves each place a few tokens of all sorts, and one place only a mark."""
    draw, end = random.Random(3), tokenizer.eos_token_id
    ids = [n for token, n in tokenizer.get_vocab().items() if token != tokenizer.pad_token]
    begin = [n for token, n in tokenizer.get_vocab().items() if token[:1] == "▁" != token]
    allowed = [[draw.choices(ids, k=3) + draw.choices(begin, k=3) for n in range(10)] for _ in "ab"]
    for own in allowed:
        own[4], own[6:] = [len(tokenizer) - 1], [[*place, end] for place in own[6:]]
    return lambda utt, tokens: [*allowed[utt], [end]][len(tokens)]


@pytest.mark.parametrize("build", [moonshine, speech2text, seamless])
def test_sums_of_finished_hypotheses(build, folder):
    """Of a batch, with the prompt given, and with the one that the model's `generate` begins."""
    model, tokenizer, shape, prompt, language = build(folder)
    model, given = randomised(model), torch.randn(2, *shape)
    mixture = Mixture.load(MixtureOptions(ngrams=[str(folder / "arpa")]))
    fusion = WordFusion(tokenizer, mixture, bias=[], normalize=STEPS, **WEIGHTS)
    lists = [{**PHRASES, "the": 0.5, "t": 0.25}, ["y", "we", "re on"]]
    fusion.set_bias(lists)
    prompt = tokenizer.convert_tokens_to_ids(prompt)
    rule = {"prefix_allowed_tokens_fn": rule_of_places(tokenizer)}
    found = searched(model, fusion, given, prompt=prompt, **rule)
    ended, held = check_sums(model, mixture, given, lists, prompt, found, tokenizer)
    texts = tokenizer.batch_decode(found[0], skip_special_tokens=True)
    assert ended == 12 and held > 0 and max(len(text.split()) for text in texts) > 2
    how = {"num_beams": 8, "length_penalty": 0.0, "max_new_tokens": 12, **rule, **language}
    own = model.generate(given, logits_processor=[fusion], **how)
    assert tokenizer.batch_decode(own, skip_special_tokens=True) == texts[::6]

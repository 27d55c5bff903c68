"""Tiny causal LMs of random weights, of six families, with a byte-level tokenizer."""

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM as Auto
from transformers import (
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

TEXT = ["so we could put the remote on the table", "I think that's okay . Yes\n", "the the remote"]
SMALL = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
FAMILIES = {
    "llama": lambda v: LlamaConfig(vocab_size=v, intermediate_size=24, **SMALL),
    "gpt2": lambda v: GPT2Config(vocab_size=v, n_embd=16, n_layer=2, n_head=2),
    "opt": lambda v: OPTConfig(vocab_size=v, ffn_dim=24, word_embed_proj_dim=16, **SMALL),
    "qwen2": lambda v: Qwen2Config(
        vocab_size=v, intermediate_size=24, num_key_value_heads=1, **SMALL
    ),
    "gpt_neox": lambda v: GPTNeoXConfig(vocab_size=v, intermediate_size=24, **SMALL),
    # a layer reads eight tokens
    "mistral": lambda v: MistralConfig(
        vocab_size=v, intermediate_size=24, num_key_value_heads=1, sliding_window=8, **SMALL
    ),
}


def write_model(folder, family="llama", *, scale=8.0):
    """Write a model and its tokenizer to a folder, and return the folder.

    The family is one of `FAMILIES`, or a function: size of the vocabulary -> configuration.
    """
    torch.manual_seed(0)
    merges = Tokenizer(models.BPE())
    merges.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = dict(special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False)
    merges.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=300, **options))
    marks = dict(bos_token="<|end|>", eos_token="<|end|>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=merges, **marks)
    config = FAMILIES.get(family, family)(len(tokenizer))
    config.bos_token_id = config.eos_token_id = tokenizer.eos_token_id
    model = Auto.from_config(config)
    with torch.no_grad():  # away from uniform probabilities
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_adapter(base, folder, config=None):
    """Write an adapter of a base, which changes something; return peft's model."""
    config = config or LoraConfig(r=2, target_modules=["q_proj"])
    model = get_peft_model(Auto.from_pretrained(base), config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                value.normal_(0, 0.2)
    model.save_pretrained(folder)
    return model.eval()


def own_log_prob(lm, reader, words, *before, max_context=10_000):
    """Ln P of a sentence after others, by transformers' loss, which is a mean over tokens.

    The LM sees the last `max_context` tokens of the others.
    """
    said = [token for other in before for token in reader.encode(other).ids]
    given = [*reader.start, *said[max(0, len(said) - max_context) :]]
    ids = reader.encode(words).ids
    labels = torch.tensor([[*[-100] * len(given), *ids]])
    with torch.no_grad():
        loss = lm.model(input_ids=torch.tensor([[*given, *ids]]), labels=labels).loss
    return -float(loss) * len(ids)


def assert_near(found, expected):
    """Check that the words of sentences have the expected scores."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)

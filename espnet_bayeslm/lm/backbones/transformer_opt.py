"""ESPnet's `transformer_opt`: an OPT model of Hugging Face's transformers."""

from __future__ import annotations

from typing import Any, ClassVar, Mapping, Optional

import torch
from espnet2.lm.abs_model import AbsLM
from espnet2.lm.huggingface_pretrained_opt_lm import HuggingfaceOPTModel

from espnet_bayeslm.lm.espnet import BayesESPnetLM, parameters
from espnet_bayeslm.utils.errors import InputError

LAYER = "decoder.decoder.layers.{k}"


class TransformerOPT(BayesESPnetLM):
    """`HuggingfaceOPTModel`; a hypothesis' state is its tokens, all read again at each step.

    ESPnet's `batch_score` reads them again too. ESPnet's `score` gives the model the whole prefix
    beside the prefix's keys and values, and is wrong from the second token on.
    """

    backbone = "transformer_opt"
    espnet_class = HuggingfaceOPTModel
    projection = "lm_head"
    parameters_at: ClassVar = {
        "embedding": ("decoder.decoder.embed_tokens.weight",),
        "attention": parameters(
            *(f"{LAYER}.self_attn.{name}_proj" for name in ("q", "k", "v", "out"))
        ),
        "ffn": parameters(f"{LAYER}.fc1"),
        "ffn_out": parameters(f"{LAYER}.fc2"),
        "output": ("lm_head.weight",),
    }

    @classmethod
    def build(cls, vocab_size: int, conf: Optional[Mapping[str, Any]]) -> AbsLM:
        """Build ESPnet's LM, with the pretrained weights in it."""
        try:
            lm = super().build(vocab_size, conf)
        except OSError as error:
            raise InputError(
                f"opt_name {(conf or {}).get('opt_name')!r}: {str(error).splitlines()[0]}",
                remedy="Give the local folder of the pretrained LM, or the name of one to download:"
                " ESPnet builds the LM from it before a checkpoint is read.",
            ) from error
        # ESPnet's task would do it for an LM of this name
        lm.reload_pretrained_parameters()
        del lm.pretrained_params
        return lm

    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.decoder.decoder.layers)

    def projected(self, input: torch.Tensor) -> torch.Tensor:
        """Input of the output projection, (B, L, M)."""
        result = self.decoder(input, attention_mask=input != 0, use_cache=False, return_dict=True)
        return result.last_hidden_state

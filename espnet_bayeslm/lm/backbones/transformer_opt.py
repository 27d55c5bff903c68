"""ESPnet's `transformer_opt`: an OPT model of Hugging Face's transformers."""

from __future__ import annotations

import importlib.util
from typing import Any, List, Mapping, Optional, Tuple

import torch
from espnet2.lm.abs_model import AbsLM
from espnet2.lm.huggingface_pretrained_opt_lm import HuggingfaceOPTModel
from torch import nn

from espnet_bayeslm.lm.backbones.base import Backbone
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.utils.errors import InputError

ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
FFN = {"ffn": "fc1", "ffn_out": "fc2"}
Tokens = Tuple[int, ...]


class TransformerOPT(Backbone):
    """`HuggingfaceOPTModel`; a hypothesis' state is its tokens, all read again at each step.

    ESPnet's `batch_score` reads them again too (its `score` gives the model the whole prefix beside
    the keys and values of it, and is wrong from the second token on).
    """

    name = "transformer_opt"
    prior_variance = 1e-3

    def espnet_class(self) -> Any:
        """ESPnet's class."""
        return HuggingfaceOPTModel

    def build(self, vocab_size: int, conf: Optional[Mapping[str, Any]]) -> AbsLM:
        """See `Backbone.build`; the pretrained weights are in it already.

        Raises:
            InputError: They are not to be found either.
        """
        if importlib.util.find_spec("transformers") is None:
            raise InputError(
                "backbone transformer_opt needs the package transformers",
                remedy="Install it: pip install transformers.",
            )
        try:
            lm = super().build(vocab_size, conf)
        except OSError as error:
            raise InputError(
                f"opt_name {(conf or {}).get('opt_name')!r}: {str(error).splitlines()[0]}",
                remedy="ESPnet builds the LM from the pretrained one, before a checkpoint is read:"
                " give its local folder, or its name where it can be downloaded or was before.",
            ) from error
        # ESPnet's task would do it for an LM of this name
        lm.reload_pretrained_parameters()
        del lm.pretrained_params
        return lm

    def num_layers(self, lm: Any) -> int:
        """Number of layers."""
        return len(lm.decoder.decoder.layers)

    def layers_at(
        self, lm: Any, position: str, layer: Optional[int]
    ) -> List[Tuple[nn.Module, str]]:
        """See `Backbone.layers_at`."""
        if position == "embedding":
            return [(lm.decoder.decoder, "embed_tokens")]
        if layer is None:
            return [(lm, "lm_head")]
        block = lm.decoder.decoder.layers[layer - 1]
        if position == "attention":
            return [(block.self_attn, name) for name in ATTENTION]
        return [(block, FFN[position])]

    def compute(self, lm: Any, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, None]:
        """Logits and no state: a call reads whole sequences.

        As in ESPnet, no token sees an earlier one that is 0, the padding.
        """
        return lm.lm_head(self.outputs(lm, input)), None

    def keeps_projection(self, lm: Any) -> bool:
        """See `Backbone.keeps_projection`: it is `lm_head`."""
        return False

    def outputs(self, lm: Any, input: torch.Tensor) -> torch.Tensor:
        """See `Backbone.outputs`."""
        result = lm.decoder(input, attention_mask=input != 0, use_cache=False, return_dict=True)
        return result.last_hidden_state

    def zero_state(self, lm: Any) -> Tokens:
        """See `IncrementalLM.zero_state`."""
        return ()

    def begin(self, lm: Any, tokens: torch.Tensor) -> Step:
        """See `IncrementalLM.begin`."""
        return self._read(lm, [tuple(row) for row in tokens.tolist()], tokens.device)

    def advance(self, lm: Any, tokens: torch.Tensor, states: List[Tokens]) -> Step:
        """See `IncrementalLM.advance`."""
        prefixes = [(*old, new) for old, new in zip(states, tokens.tolist(), strict=True)]
        return self._read(lm, prefixes, tokens.device)

    def _read(self, lm: Any, prefixes: List[Tokens], device: torch.device) -> Step:
        """Logits after prefixes, of any lengths, and these."""
        rows = [torch.tensor(prefix, device=device) for prefix in prefixes]
        input = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        last = torch.tensor([len(prefix) - 1 for prefix in prefixes], device=device)
        output = self.outputs(lm, input)[torch.arange(len(last), device=device), last]
        return lm.lm_head(output), prefixes

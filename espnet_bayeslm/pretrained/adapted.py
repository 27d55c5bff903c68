"""A pretrained causal LM with a LoRA adapter, trained by ESPnet's LM task."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, List, Mapping, Optional, Union

import torch
from torch import nn
from typeguard import typechecked

from espnet_bayeslm.bayes import Position, Weights
from espnet_bayeslm.lm.packing import Packing
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.pretrained.adapters import add_adapter
from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
from espnet_bayeslm.pretrained.loaded_lm import CausalLM
from espnet_bayeslm.pretrained.loaded_weights import projects_linearly
from espnet_bayeslm.pretrained.names import is_adapter
from espnet_bayeslm.pretrained.pretrained_scorer import CausalTreeLM
from espnet_bayeslm.pretrained.text_forms import Reader, training_reader
from espnet_bayeslm.utils.errors import InputError


class AdaptedLM(UncertainLM):
    """A pretrained causal LM whose own weights are frozen, with a LoRA adapter that is trained.

    Its state_dict holds the adapter and the adapter's posterior; the base model is read from where
    `model` names it, and checked by `fingerprint`.

    Args:
        vocab_size: Number of tokens of its tokenizer.
        model: The base model: hf:FOLDER, hf:NAME or a .gguf file.
        lora: Options of peft's LoRA: `r`, `alpha`, `dropout`, `target_modules` (default: 16,
            2 r, 0, all linear layers but the output projection).
        uncertainty: `{lora_a@LAYERS: bayes, lora_b@LAYERS: bayes}`.
        text_form: Form in which it reads a sentence, `FORM[,MARKS[,BLANK]]`: `as_is`, `lower` or
            `sentence`; `newline`, or `special` for the tokenizer's own marks before and after a
            sentence, as a recogniser with these tokens has them; `blank` or `no_blank` before the
            first word. `bayeslm train` chooses it by the validation text where it is `auto` or not
            given.
        fingerprint: Digest of the base model; training fills it in.
        precision: Of the base model in training: `float32` or `bfloat16`.
        gradient_checkpointing: True to compute activations again in the backward pass, which
            saves memory; not with random weights.
        prior_variance: Variance of the Gaussian prior, or `learn`, `learn_rows`: the one that makes
            the KL least, for a parameter or for each of its rows.
        init_std: Standard deviation of the weights' posterior at the start.
        init_std_unit: Unit of init_std: `absolute`, `weights` (their standard deviation) or
            `prior`.
        num_samples: Number of weight samples over which a beam search averages the probability of a
            token; 0: the posterior mean.
        context: The most tokens of consecutive sentences that training reads as one sequence; 0:
            each sentence by itself. `bayeslm train --context` sets it, and prepares the text.

    Attributes:
        base: The base model as it was loaded, with its tokenizer.
        reader: Cuts sentences into tokens.
    """

    rnn_type = "pretrained"
    computes_trees = False
    skips_padding = True
    trained = "*.lora_*"

    @typechecked
    def __init__(
        self,
        vocab_size: int,
        model: Optional[str] = None,
        lora: Any = None,
        uncertainty: Any = None,
        text_form: str = "as_is",
        fingerprint: Optional[str] = None,
        precision: str = "float32",
        gradient_checkpointing: bool = False,
        prior_variance: Union[float, str] = "learn_rows",
        init_std: float = 0.001,
        init_std_unit: str = "absolute",
        num_samples: int = 0,
        context: int = 0,
    ):
        super().__init__(vocab_size, prior_variance=prior_variance, num_samples=num_samples)
        self.context = context
        if model is None:
            raise InputError("lm pretrained: lm_conf has no `model`", remedy="Give --from hf:NAME.")
        if is_adapter(model):
            raise InputError(
                "lm_conf model: an adapter, where a base model was expected",
                path=model,
                remedy="Give the adapter by --from.",
            )
        base = load_causal_lm(model, precision=precision)
        self.fingerprint = base.fingerprint
        if fingerprint not in (None, self.fingerprint):
            raise InputError(
                f"the base model {model} has changed since the adapter was trained",
                remedy="Restore the model, or name the right one by --base or lm_conf model.",
            )
        self.reader: Reader = training_reader(base.tokenizer, text_form)
        self.sos, self.eos = self.reader.start[0], self.reader.end[0]
        self.model = add_adapter(base.model, lora)
        # a plain attribute: its model is a part of `self.model`
        self.__dict__["base"] = dataclasses.replace(base, model=self.model)
        if precision == "bfloat16":
            # faster on short sentences than the fused operator's backward pass
            self.causal.set_attn_implementation("eager")
        self._layers = _layers(self.causal)
        self._is_linear = projects_linearly(self.causal)
        self.register_load_state_dict_pre_hook(_keep_base)
        num_layers = len(self.causal.get_submodule(self._layers))
        start = {"init_std": init_std, "init_std_unit": init_std_unit}
        self.make_uncertain(uncertainty, num_layers=num_layers, **start)
        if gradient_checkpointing:
            if self.kinds:
                raise InputError("gradient_checkpointing with random weights: give one of the two")
            self.model.enable_input_require_grads()
            self.causal.gradient_checkpointing_enable({"use_reentrant": False})

    @property
    def causal(self) -> Any:
        """The model of `transformers`, with the adapter in its layers."""
        return self.model.base_model.model

    @functools.cached_property
    def longest_row(self) -> int:
        """The most tokens of a row of sentences that a 4-D mask parts; 0: no such mask is taken."""
        with self.scoring():  # without dropout
            lm = CausalTreeLM(self.causal)
        return lm.reach if lm.takes_trees else 0

    @property
    def decoder(self) -> nn.Linear:
        """The output projection."""
        return self.causal.get_output_embeddings()

    def loaded(self, name: str, *, fingerprint: str) -> CausalLM:
        """The adapted LM as a causal LM that reads text as in training."""
        base: CausalLM = self.__dict__["base"]
        sampled = self.sampled if self.posterior.blocks() else None
        own = dataclasses.replace(base, sampled=sampled, reader=self.reader)
        return dataclasses.replace(own, name=name, fingerprint=fingerprint)

    def positions(self) -> Mapping[str, Position]:
        """The two factors of the adapter in each layer."""
        path = f"model.base_model.model.{self._layers}.{{k}}"
        return {
            f"lora_{factor.lower()}": Position(weights=(Weights(f"{path}.*.lora_{factor}.*"),))
            for factor in "AB"
        }

    def projected(self, input: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Input of the output projection, (B, L, M); logits where these come otherwise."""
        if not self._is_linear:
            return self.causal(input_ids=input, use_cache=False).logits
        return self.causal.base_model(input_ids=input, use_cache=False).last_hidden_state

    def project(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits (..., V) of the tokenizer's tokens."""
        return (self.decoder(outputs) if self._is_linear else outputs)[..., : self.vocab_size]

    def keeps_projection(self) -> bool:
        """True if the logits are the output projection alone, which no kind samples."""
        return self._is_linear and super().keeps_projection()

    def packed(self, input: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Input of the output projection for the tokens of (B, L) that are no padding, (N, M)."""
        tokens, slots, seen = packing.rows
        if tokens.size(1) > self.longest_row:
            return super().packed(input, packing)
        dtype = self.causal.dtype
        mask = torch.zeros(seen.shape, dtype=dtype, device=input.device)
        states = self.causal.base_model(
            input_ids=packing.pick(input)[tokens],
            attention_mask=mask.masked_fill_(~seen, torch.finfo(dtype).min),
            position_ids=packing.positions[tokens],
            use_cache=False,
        )
        return states.last_hidden_state.flatten(0, 1).index_select(0, slots)

    def is_own(self, name: str) -> bool:
        """True for a tensor of the adapter or of its posterior, by its name in the state_dict."""
        return not name.startswith("model.") or ".lora_" in name

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """State of the adapter and its posterior, without the base model's weights."""
        prefix = kwargs.get("prefix", "")
        state = super().state_dict(*args, **kwargs)
        for key in list(state):
            if key.startswith(prefix) and not self.is_own(key[len(prefix) :]):
                del state[key]
        return state


def _keep_base(lm: AdaptedLM, state: Dict[str, Any], prefix: str, *_others: Any) -> None:
    """Add the base model's own weights to a checkpoint that is about to be loaded."""
    for key, value in nn.Module.state_dict(lm).items():
        if not lm.is_own(key):
            state[prefix + key] = value


def _layers(causal: Any) -> str:
    """Name of the list of a causal LM's layers."""
    count = causal.config.get_text_config().num_hidden_layers
    for name, module in causal.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name
    raise InputError(f"a model of the type {causal.config.model_type} has no list of layers")


def vocabulary(tokenizer: Any) -> List[str]:
    """All tokens of a tokenizer in the order of their ids, each a line of its own in a file."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    lines: Dict[str, None] = {}
    for index, token in enumerate(tokens):
        # blanks and line breaks would be lost in a file of lines
        line = "" if token is None else token
        if line != line.strip() or len(line.split()) != 1 or line in lines:
            line = f"<{index}:{ascii(line)[1:-1].replace(' ', '_')}>"
        lines[line] = None
    return list(lines)

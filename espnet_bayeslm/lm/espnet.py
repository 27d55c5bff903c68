"""Any of ESPnet's own LMs with random weights: how a trained one becomes Bayesian."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, ClassVar, Dict, Mapping, Optional, Tuple, Type, Union

import torch
from espnet2.lm.abs_model import AbsLM
from espnet2.lm.huggingface_pretrained_opt_lm import HuggingfaceOPTModel
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from torch import nn
from typeguard import TypeCheckError, typechecked

from espnet_bayeslm.bayes import Location, Place, Position, Weights
from espnet_bayeslm.layers.linear import Linear
from espnet_bayeslm.layers.lstm import GATES, LSTM, gate_weights
from espnet_bayeslm.lm.lstm import RecurrentLM
from espnet_bayeslm.lm.transformer import Attend, AttentionLM, weights_of
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.imports import quiet_imports

with quiet_imports():
    from espnet2.lm.transformer_lm import TransformerLM

# Layers of torch -> this package's with the same parameters and options.
OURS: Dict[type, Type[nn.Module]] = {nn.Linear: Linear, nn.LSTM: LSTM}
# Torch's name of a recurrent layer -> its gates, in the order of torch's rows.
GATES_OF = {"LSTM": GATES, "GRU": ("reset_gate", "update_gate", "new_gate")}
OPT_LAYER = "decoder.decoder.layers.{k}"


class BackboneLM(UncertainLM):
    """An LM with one of ESPnet's as the backbone, which it builds, makes random and runs.

    Args:
        vocab_size: Number of tokens.
        conf: Options of ESPnet's LM.
        options: Options of `BayesESPnetLM`; a `prior_variance` of None is the usual one.

    Attributes:
        backbone: ESPnet's name of the LM.
        espnet_class: ESPnet's class.
        usual_prior_variance: The prior's variance unless the configuration says otherwise.
        weights: {position: weights}, without the gates of recurrent layers.
        num_layers: Gives the number of layers.
    """

    # ESPnet's transducer search wants an LM that needs no more than the last token
    rnn_type = "espnet"
    backbone: str
    espnet_class: Any
    usual_prior_variance = 1e-3
    num_layers: Callable[[], int]
    weights: ClassVar[Mapping[str, Tuple[Weights, ...]]]

    def __init__(
        self,
        vocab_size: int,
        conf: Optional[Mapping[str, Any]],
        *,
        uncertainty: Any,
        prior_variance: Union[float, str, None],
        num_samples: int,
        **start: Any,
    ):
        prior_variance = self.usual_prior_variance if prior_variance is None else prior_variance
        super().__init__(vocab_size, prior_variance=prior_variance, num_samples=num_samples)
        self.take_over(self.build(vocab_size, conf))
        self.make_uncertain(uncertainty, num_layers=self.num_layers(), **start)

    def take_over(self, lm: nn.Module) -> None:
        """Make an LM's layers and plain attributes this LM's own."""
        torchs = vars(nn.Module())
        for name, value in vars(lm).items():
            if name not in torchs:
                setattr(self, name, value)
        for name, child in lm.named_children():
            self.add_module(name, child)
        # faster where no gradient is wanted, and trained under autocast on any CPU
        for owner in list(self.modules()):
            for name, child in list(owner.named_children()):
                if type(child) in OURS:
                    layer = OURS[type(child)].__new__(OURS[type(child)])
                    vars(layer).update(vars(child))  # the same parameters and options
                    setattr(owner, name, layer)

    @classmethod
    def build(cls, vocab_size: int, conf: Optional[Mapping[str, Any]]) -> AbsLM:
        """ESPnet's LM."""
        try:
            return cls.espnet_class(vocab_size, **(conf or {}))
        except (TypeCheckError, TypeError, ValueError, AssertionError, ImportError) as error:
            reason = str(error) or type(error).__name__
            raise InputError(f"backbone_conf: ESPnet's {cls.backbone} says: {reason}") from error

    def positions(self) -> Mapping[str, Position]:
        """Random positions of a Transformer, by name."""
        return {
            name: Position(weights=weights, layered="{k}" in weights[0].pattern)
            for name, weights in self.weights.items()
        }


class SeqRNN(RecurrentLM, BackboneLM):
    """`SequentialRNNLM`; a hypothesis' state is (h, c) or h, (nlayers, nhid) each."""

    backbone = "seq_rnn"
    espnet_class = SequentialRNNLM
    usual_prior_variance = 1.0
    weights: ClassVar = {"embedding": (Weights("encoder.weight"),), "output": weights_of("decoder")}

    def num_layers(self) -> int:
        """Number of layers."""
        return self.rnn.num_layers

    def positions(self) -> Mapping[str, Position]:
        """Positions that can be random: gates, the embedding and the output projection."""
        gates = GATES_OF.get(self.rnn.mode, ())
        layered = {g: Position(weights=gate_weights(gates, g)) for g in gates}
        if gates:
            layered["all_gates"] = dataclasses.replace(layered[gates[0]], parts=gates)
        return {**layered, **super().positions()}

    def place(self, location: Location) -> Place:
        """Place of a location in the LM."""
        if location.position == "output" and self.decoder.weight is self.encoder.weight:
            raise InputError(
                "uncertainty 'output': with tie_weights the output projection is the embedding's"
                " table, and keeps its mean",
                remedy="Make `embedding` random, or set tie_weights: false in backbone_conf.",
            )
        return super().place(location)


class Transformer(AttentionLM, BackboneLM):
    """`TransformerLM`; a hypothesis' state is its keys and values."""

    backbone = "transformer"
    espnet_class = TransformerLM
    hides_padding = True
    weights: ClassVar = {
        "embedding": (Weights("embed.weight"),),
        "attention": weights_of(
            *(f"encoder.encoders.{{k}}.self_attn.linear_{name}" for name in ("q", "k", "v", "out"))
        ),
        "ffn": weights_of("encoder.encoders.{k}.feed_forward.w_1"),
        "ffn_out": weights_of("encoder.encoders.{k}.feed_forward.w_2"),
        "output": weights_of("decoder"),
    }

    def take_over(self, lm: nn.Module) -> None:
        """Make an LM's layers this LM's own, and look up the sizes of its attention."""
        super().take_over(lm)
        own = self.encoder.encoders[0].self_attn
        self.head, self.att_unit = own.h, own.h * own.d_k
        self.attention_dropout_rate = own.dropout.p

    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.encoder.encoders)

    def embed_at(self, tokens: torch.Tensor, positions: torch.Tensor, end: int) -> torch.Tensor:
        """Input of the first layer, (..., M), for tokens (...) at positions below `end`, (...)."""
        *layers, encoding = self.encoder.embed
        x = self.embed(tokens)
        for layer in layers:
            x = layer(x)
        if isinstance(encoding, nn.Sequential):  # ESPnet's pos_enc: null
            return x
        encoding.extend_pe(x.new_empty(1, 1).expand(1, end))
        return encoding.dropout(x * encoding.xscale + encoding.pe[0, positions])

    def run_layers(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Run ESPnet's layers, (..., M) -> (..., M)."""
        for number, layer in enumerate(self.encoder.encoders):
            own, normed = layer.self_attn, layer.norm1(x)
            heads = (linear(normed) for linear in (own.linear_q, own.linear_k, own.linear_v))
            x = x + layer.dropout(own.linear_out(attend(number, *heads)))
            x = x + layer.dropout(layer.feed_forward(layer.norm2(x)))
        return self.encoder.after_norm(x)


class TransformerOPT(BackboneLM):
    """`HuggingfaceOPTModel`; a hypothesis' state is its tokens, all read again at each step.

    ESPnet's `batch_score` reads them again too. ESPnet's `score` gives the model the whole prefix
    beside the prefix's keys and values, and is wrong from the second token on.
    """

    backbone = "transformer_opt"
    espnet_class = HuggingfaceOPTModel
    projection = "lm_head"
    weights: ClassVar = {
        "embedding": (Weights("decoder.decoder.embed_tokens.weight"),),
        "attention": weights_of(
            *(f"{OPT_LAYER}.self_attn.{name}_proj" for name in ("q", "k", "v", "out"))
        ),
        "ffn": weights_of(f"{OPT_LAYER}.fc1"),
        "ffn_out": weights_of(f"{OPT_LAYER}.fc2"),
        "output": (Weights("lm_head.weight"),),
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


BACKBONES: Dict[str, Type[BackboneLM]] = {
    lm.backbone: lm for lm in (SeqRNN, Transformer, TransformerOPT)
}
"""LMs with one of ESPnet's as the backbone, by ESPnet's names."""


class BayesESPnetLM(UncertainLM):
    """An ESPnet LM with random weights at the locations that the configuration names.

    The parameters have the names of ESPnet's LM. A checkpoint of ESPnet's LM is therefore a start
    (`--init_param`) and a prior (`model_conf: prior`), and the posterior mean is such a checkpoint.
    A call makes an LM of the class that `BACKBONES` has for the backbone. ESPnet's registry and
    `--print_config` want a class, and its options.

    Args:
        vocab_size: Number of tokens.
        backbone: ESPnet's name of the LM: `seq_rnn`, `transformer` or `transformer_opt`;
            `bayeslm train --from` takes it, and its options, from a trained one.
        backbone_conf: Options of the backbone, as in ESPnet's `lm_conf`.
        uncertainty: `{POSITION@LAYERS: bayes}`; positions of `seq_rnn`: `input_gate`,
            `forget_gate`, `cell_input`, `output_gate` (GRU: `reset_gate`, `update_gate`,
            `new_gate`) or `all_gates`; positions of any other backbone: `attention` (query, key,
            value and output projections), `ffn`, `ffn_out` (the feed-forward net's two layers);
            positions of every backbone, without layers: `embedding` (the look-up: with tied weights
            the output projection keeps the mean) and `output` (the output projection, where it is
            not tied).
        prior_variance: Variance of the Gaussian prior, or `learn`, `learn_rows`: the one that makes
            the KL least, for a parameter or for each of its rows (default: as in the paper, IV-A:
            1 for `seq_rnn`, else 1e-3).
        init_std: Standard deviation of the weights' posterior at the start.
        init_std_unit: Unit of init_std: `absolute`, `weights` (their standard deviation) or
            `prior`.
        num_samples: Number of weight samples over which a beam search averages the probability of a
            token; 0: the posterior mean.
    """

    @typechecked
    def __new__(  # type: ignore[misc]  # an LM of another class
        cls,
        vocab_size: int,
        backbone: Optional[str] = None,
        backbone_conf: Any = None,
        uncertainty: Any = None,
        prior_variance: Union[float, str, None] = None,
        init_std: float = 0.01,
        init_std_unit: str = "absolute",
        num_samples: int = 0,
    ) -> BackboneLM:
        """Build the LM of a backbone."""
        if backbone not in BACKBONES:
            raise InputError(
                f"backbone {backbone!r}: valid are {', '.join(BACKBONES)}",
                remedy="" if backbone else "`bayeslm train --from EXP` takes it from a trained LM.",
            )
        return BACKBONES[backbone](
            vocab_size,
            backbone_conf,
            uncertainty=uncertainty,
            prior_variance=prior_variance,
            num_samples=num_samples,
            init_std=init_std,
            init_std_unit=init_std_unit,
        )

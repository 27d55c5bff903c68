"""Transformer LM (Xue et al. 2022, II-B) with uncertain locations, and the base of such LMs."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn
from typeguard import typechecked

from espnet_bayeslm.bayes import Position, Weights
from espnet_bayeslm.bayes.weights import Function
from espnet_bayeslm.layers.transformer import TransformerBlock, attention, sinusoids
from espnet_bayeslm.lm.beam_search import Step
from espnet_bayeslm.lm.tree import TokenTree, TreeAttention
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import check_least

if TYPE_CHECKING:
    from espnet_bayeslm.layers.key_value_cache import Prefix
    from espnet_bayeslm.lm.packing import Packing

# Maps (layer from 0, query, key, value) to the attention of all heads, (..., M) each
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class AttentionLM(UncertainLM):
    """A Transformer LM; a hypothesis' state is its keys and values.

    Attributes:
        head: Number of attention heads.
        att_unit: M, the width.
        attention_dropout_rate: Dropout of the attention weights.
        hides_padding: True if no token sees an earlier one that is 0.
    """

    embed: nn.Embedding
    head: int
    att_unit: int
    attention_dropout_rate: float
    hides_padding = False
    skips_padding = True

    @abstractmethod
    def num_layers(self) -> int:
        """Number of layers."""

    @abstractmethod
    def embed_at(self, tokens: torch.Tensor, positions: torch.Tensor, end: int) -> torch.Tensor:
        """Input of the first layer, (..., M), for tokens (...) at positions below `end`, (...)."""

    @abstractmethod
    def run_layers(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Run all layers, (..., M) -> (..., M)."""

    def projected(self, input: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Input of the output projection, (B, L, M)."""
        length, mask = input.size(1), None
        if self.hides_padding:
            causal = torch.ones(length, length, dtype=torch.bool, device=input.device).tril()
            mask = causal & _is_visible(input)
        positions = torch.arange(length, device=input.device)
        x = self.embed_at(input, positions, length)
        return self.run_layers(x, functools.partial(self._attend, mask=mask))

    def packed(self, input: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Input of the output projection for the tokens of (B, L) that are no padding, (N, M)."""
        tokens, slots, mask = packing.rows
        input = packing.pick(input)
        if self.hides_padding:
            mask = mask & _is_visible(input[tokens])

        def attend(layer: int, *heads: torch.Tensor) -> torch.Tensor:
            rows = (x.index_select(0, tokens.flatten()).view(*tokens.shape, -1) for x in heads)
            return self._attend(layer, *rows, mask=mask).flatten(0, 1).index_select(0, slots)

        end = tokens.size(1)
        return self.run_layers(self.embed_at(input, packing.positions, end), attend)

    def _attend(
        self, layer: int, *heads: torch.Tensor, mask: Optional[torch.Tensor]
    ) -> torch.Tensor:
        """Attention of a forward pass, (B, L, M)."""
        rate = self.attention_dropout_rate if self.training else 0.0
        return attention(*heads, heads=self.head, mask=mask, dropout_rate=rate)

    def tree_outputs(self, tree: TokenTree) -> torch.Tensor:
        """Input of the output projection at each node of prefix trees, (T, M).

        Computed with the mean or the sample of `drawn`, in evaluation mode. A node's position is
        its depth.
        """
        x = self.embed_at(tree.tokens, tree.depths, len(tree.levels))
        nodes = TreeAttention(tree, x.dtype, self.head)
        return self.run_layers(x[nodes.order], nodes.attend)[nodes.rows]

    def zero_state(self) -> Prefix:
        """State of a hypothesis without a token, in a cache of its own."""
        from espnet_bayeslm.layers.key_value_cache import KeyValueCache

        like = self.embed.weight.detach()
        return KeyValueCache(self.num_layers(), self.head, self.att_unit, like).empty()

    def advance(self, tokens: torch.Tensor, states: List[Any]) -> Step:
        """Read one more token of each hypothesis; token 0, which no prefix has, is visible here."""
        from espnet_bayeslm.layers.key_value_cache import CachedStep

        step = CachedStep(states)
        x = self.embed_at(tokens, step.positions, step.end)
        return self.project(self.run_layers(x, step.attend)), step.prefixes


def _is_visible(tokens: torch.Tensor) -> torch.Tensor:
    """True for the tokens (B, L) that are not 0, as keys of an attention mask, (B, 1, 1, L)."""
    return (tokens != 0)[:, None, None]


def weights_of(*layers: str) -> Tuple[Weights, ...]:
    """Weight and bias of some layers, as a table of positions has them."""
    return tuple(Weights(f"{layer}.{name}") for layer in layers for name in ("weight", "bias"))


POSITIONS = {
    "embedding": Position(weights=(Weights("embed.weight"),), layered=False),
    "attention": Position(
        weights=weights_of("blocks.{k}.attention.in_proj", "blocks.{k}.attention.out_proj")
    ),
    "ffn": Position(
        weights=weights_of("blocks.{k}.linear1"),
        function=Function("gelu", "blocks.{k}", weights_of("blocks.{k}.linear1")),
    ),
    "ffn_out": Position(weights=weights_of("blocks.{k}.linear2")),
    "hidden_output": Position(output="blocks.{k}"),
}


class BayesTransformerLM(AttentionLM):
    """Transformer LM, post-norm with GELU as in the paper, or pre-norm.

    Args:
        vocab_size: Number of tokens.
        pos_enc: `sinusoidal`, or None for no position encodings.
        embed_unit: Size of the embedding (default att_unit, as tied weights need it).
        att_unit: Size of queries, keys, values and of the residual stream.
        head: Number of attention heads.
        unit: Hidden size of the feed-forward nets.
        layer: Number of layers.
        dropout_rate: Dropout of sub-layer outputs and hidden activations.
        positional_dropout_rate: Dropout after the position encodings (default dropout_rate).
        attention_dropout_rate: Dropout of the attention weights (default dropout_rate).
        tie_weights: True if the output projection is the embedding table's mean.
        norm_first: Pre-norm blocks, with a LayerNorm after the last.
        uncertainty: `{POSITION@LAYERS: kind}`; positions `embedding`, `attention` (Theta_q,
            Theta_k, Theta_v, Theta_h), `ffn` (Theta_1), `ffn_out` (Theta_2) (`bayes`; `gp` for
            `ffn`); `hidden_output` (`variational`).
        prior_variance: Variance of the Gaussian prior, or `learn`, `learn_rows`: the one that makes
            the KL least, for a parameter or for each of its rows (paper, IV-A: 1e-3).
        init_std: Standard deviation of the weights' posterior at the start.
        init_std_unit: Unit of init_std: `absolute`, `weights` (their standard deviation) or
            `prior`.
        num_samples: Number of weight samples over which a beam search averages the probability of a
            token; 0: the posterior mean.
    """

    # ESPnet's transducer search wants an LM that needs no more than the last token
    rnn_type = "transformer"

    @typechecked
    def __init__(
        self,
        vocab_size: int,
        pos_enc: Optional[str] = "sinusoidal",
        embed_unit: Optional[int] = None,
        att_unit: int = 512,
        head: int = 8,
        unit: int = 4096,
        layer: int = 6,
        dropout_rate: float = 0.2,
        positional_dropout_rate: Optional[float] = None,
        attention_dropout_rate: Optional[float] = None,
        tie_weights: bool = True,
        norm_first: bool = False,
        uncertainty: Any = None,
        prior_variance: Union[float, str] = 1e-3,
        init_std: float = 0.01,
        init_std_unit: str = "absolute",
        num_samples: int = 0,
    ):
        super().__init__(vocab_size, prior_variance=prior_variance, num_samples=num_samples)
        check_least(1, att_unit=att_unit, head=head, unit=unit, layer=layer)
        check_least(0, below=1, dropout_rate=dropout_rate)
        embed_unit = embed_unit or att_unit
        _check_sizes(pos_enc, embed_unit, att_unit, head, tie_weights)
        self.embed = nn.Embedding(vocab_size, embed_unit)
        self.embed_proj = (
            nn.Identity() if embed_unit == att_unit else nn.Linear(embed_unit, att_unit)
        )
        self.pos_enc, self.head, self.att_unit = pos_enc, head, att_unit
        self.attention_dropout_rate, positional = (
            dropout_rate if rate is None else rate
            for rate in (attention_dropout_rate, positional_dropout_rate)
        )
        # No buffer: DistributedDataParallel would broadcast it, and its length differs by rank.
        self.encodings = torch.empty(0, att_unit)
        self.drop = nn.Dropout(positional)
        self.blocks = nn.ModuleList(
            TransformerBlock(att_unit, unit, dropout_rate=dropout_rate, norm_first=norm_first)
            for _ in range(layer)
        )
        self.after_norm = nn.LayerNorm(att_unit) if norm_first else nn.Identity()
        self.decoder = nn.Linear(att_unit, vocab_size)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tie_weights:
            self.decoder.weight = self.embed.weight
        start = {"init_std": init_std, "init_std_unit": init_std_unit}
        self.make_uncertain(uncertainty, num_layers=layer, **start)

    def positions(self) -> Mapping[str, Position]:
        """The positions of a Transformer LM, by name."""
        return POSITIONS

    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.blocks)

    def embed_at(self, tokens: torch.Tensor, positions: torch.Tensor, end: int) -> torch.Tensor:
        """Input of the first layer, (..., M), for tokens (...) at positions below `end`, (...)."""
        x = self.embed_proj(self.embed(tokens))
        if self.pos_enc is None:
            return self.drop(x)
        known = self.encodings
        if end > len(known) or (known.device, known.dtype) != (x.device, x.dtype):
            # Doubled, so that decoding token by token does not build it anew each time.
            self.encodings = sinusoids(torch.arange(2 * end), x.size(-1)).to(x)
        return self.drop(x * math.sqrt(x.size(-1)) + self.encodings[positions])

    def run_layers(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Run all blocks, (..., M) -> (..., M)."""
        for layer, block in enumerate(self.blocks):
            x = block(x, functools.partial(attend, layer))
        return self.after_norm(x)


def _check_sizes(
    pos_enc: Optional[str], embed_unit: int, att_unit: int, head: int, tie_weights: bool
) -> None:
    """Raise an InputError where the options do not fit together."""
    if pos_enc not in ("sinusoidal", None):
        raise InputError(f"pos_enc {pos_enc!r}: valid are 'sinusoidal' and None")
    if att_unit % head:
        raise InputError(f"att_unit {att_unit} is not a multiple of head {head}")
    if tie_weights and embed_unit != att_unit:
        raise InputError(
            f"tie_weights needs embed_unit equal to att_unit, got {embed_unit} and {att_unit}"
        )

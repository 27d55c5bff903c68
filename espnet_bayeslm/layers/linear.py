"""Linear layer and embedding with optional random weights."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import UncertainModule
from espnet_bayeslm.bayes.gaussian import draw_weights
from espnet_bayeslm.layers.product import linear


class PathLayer(UncertainModule):
    """A layer that belongs to one location."""

    def make_all_random(self, *, location: str, copy: bool = False, **posterior: Any) -> None:
        """Make weight and, where it has one, bias random.

        Args:
            location: The location it belongs to.
            copy: As `own`.
            **posterior: As `make_random`.
        """
        for parameter in ("weight", "bias"):
            if getattr(self, parameter, None) is not None:
                name = self.own(parameter, location=location, kind="bayes", copy=copy)
                self.make_random(name, location=location, **posterior)

    def along(self, parameter: str) -> Dict[str, torch.Tensor]:
        """Return {kind: value} of a parameter on each path, in a super-network."""
        copies = {c.kind: name for name, c in self.copies.items() if c.parameter == parameter}
        return {kind: self.value(copies.get(kind, parameter)) for kind in self.path_shares()}

    def path_shares(self) -> Mapping[str, torch.Tensor]:
        """Return {kind: share of its path}; nothing where there is only one path."""
        path = next(iter(self.copies.values()), None)
        return {} if path is None else self.shares[path.location]

    def mixed(self, parameter: str) -> torch.Tensor:
        """Return the parameter for the forward pass.

        The output is linear in it, so mixing the paths' parameters mixes their outputs.
        """
        shares = self.path_shares()
        if not shares:
            return self.value(parameter)
        first, *others = [shares[kind] * value for kind, value in self.along(parameter).items()]
        return sum(others, first)


class UncertainLinear(PathLayer, nn.Linear):
    """`torch.nn.Linear`, whose weight and bias may be random."""

    def forward(self, input: torch.Tensor, *, gelu: bool = False) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), with one draw for all rows.

        With `gelu`, GELU of that: for many rows it costs nothing then.
        """
        return linear(input, self.mixed("weight"), self.mixed("bias"), gelu=gelu)

    def paths(self, input: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Return {kind: output} on each path of a super-network, (..., out_features)."""
        weights, biases = self.along("weight"), self.along("bias")
        return {kind: linear(input, weights[kind], biases[kind]) for kind in weights}


class UncertainEmbedding(PathLayer, nn.Embedding):
    """`torch.nn.Embedding`, whose table may be random.

    Attributes:
        tied: Whether an output projection has the same table. Its gradient is dense, so that of
            the look-up may be sparse: the sum is made in place, without a second dense one.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.generator: Optional[torch.Generator] = None
        self.tied = False

    def draw(self, generator: torch.Generator, *, hold: bool = False) -> None:
        """Draw the table; in training only the rows that the next forward pass looks up."""
        self.generator = None if hold or self.path_shares() else generator
        if self.generator is None:
            super().draw(generator, hold=hold)
        else:
            self.noise = {}

    def use_mean(self) -> None:
        """Make the next forward passes use the posterior mean."""
        super().use_mean()
        self.generator = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map ids (...) to vectors (..., embedding_dim), with one draw for all tokens."""
        generator, self.generator = self.generator, None
        if generator is None or not self.random_blocks:
            table = self.mixed("weight")
            return F.embedding(
                input, table, self.padding_idx, sparse=self.tied and table is self.weight
            )
        ids, places = torch.unique(input, return_inverse=True)
        return F.embedding(places, self._drawn_rows(ids, generator))

    def _drawn_rows(self, ids: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return a draw of some rows, (N, embedding_dim)."""
        (block,) = self.random_blocks
        table = getattr(self, f"{block.key}_log_std")
        mean = F.embedding(ids, self.weight, self.padding_idx, sparse=self.tied)
        log_std = F.embedding(ids, table, self.padding_idx)
        noise = torch.empty_like(mean, requires_grad=False).normal_(generator=generator)
        return draw_weights(mean, log_std, noise)

"""Draws: the one place where what is random in a module gets its values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any, Dict, Iterator, List, Optional

import torch
from torch import nn


@dataclasses.dataclass
class LayerDraw:
    """A draw as one layer uses it.

    Attributes:
        noise: What was drawn, by name; empty: the mean is used.
        generator: Of what is drawn while the layer is used, as rows that are looked up.
        kl: KL of the weights that were drawn, by block; None: it is not wanted in the same pass.
        wants_token_kl: Whether the KL of latent outputs is wanted.
        token_kl: That KL, (B, L).
    """

    noise: Dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    generator: Optional[torch.Generator] = None
    kl: Optional[Dict[str, torch.Tensor]] = None
    wants_token_kl: bool = False
    token_kl: Optional[torch.Tensor] = None


class RandomLayer(nn.Module):
    """A layer that a `Draw` gives values to.

    Attributes:
        draw: What forward passes use; None: the mean.
    """

    draw: Optional[LayerDraw] = None

    def is_random(self) -> bool:
        """Whether there is anything to draw."""
        return True

    def make_noise(self, draw: LayerDraw, generator: torch.Generator, *, hold: bool) -> None:
        """Draw into `draw` what is not drawn later, by its generator."""

    def reset(self) -> None:
        """Set what a kind of uncertainty has added to its start."""


class Draw:
    """One draw of all that is random in a module, or its mean.

    Args:
        module: The module.
        generator: Of the noise; None: the mean.
        hold: Whether any number of forward passes may use it. If not, one does, and rows of
            embeddings and latent outputs are drawn as they are needed.
        weight_kl: Whether to compute the KL of weights as they are drawn, which costs little then.
        token_kl: Whether to compute the KL of latent outputs.
    """

    def __init__(
        self,
        module: nn.Module,
        generator: Optional[torch.Generator] = None,
        *,
        hold: bool = False,
        weight_kl: bool = False,
        token_kl: bool = False,
    ):
        self.module, self.is_mean = module, generator is None
        self._wants: Dict[str, Any] = {"weight_kl": weight_kl, "token_kl": token_kl}
        if generator is not None:
            for layer, part in self.layers.items():
                part.generator = None if hold else generator
                layer.make_noise(part, generator, hold=hold)

    @functools.cached_property
    def layers(self) -> Dict[RandomLayer, LayerDraw]:
        """The module's random layers and what they use."""
        found = (layer for layer in self.module.modules() if isinstance(layer, RandomLayer))
        return {layer: self._part() for layer in found if layer.is_random()}

    def _part(self, **drawn: Any) -> LayerDraw:
        kl: Optional[Dict[str, torch.Tensor]] = {} if self._wants["weight_kl"] else None
        return LayerDraw(kl=kl, wants_token_kl=self._wants["token_kl"], **drawn)

    def again(self, *, weight_kl: bool, token_kl: bool) -> Draw:
        """The same draw with a KL of its own."""
        other = Draw(self.module, weight_kl=weight_kl, token_kl=token_kl)
        other.is_mean = self.is_mean
        other.layers = {
            layer: other._part(noise=part.noise, generator=part.generator)
            for layer, part in self.layers.items()
        }
        return other

    @contextlib.contextmanager
    def used(self) -> Iterator[Draw]:
        """Make the layers use it within."""
        given = {} if self.is_mean and not any(self._wants.values()) else self.layers
        before = [layer.draw for layer in given]
        for layer, part in given.items():
            layer.draw = part
        try:
            yield self
        finally:
            for layer, other in zip(given, before, strict=True):
                layer.draw = other

    def kl(self, *, per_weight: bool = False) -> torch.Tensor:
        """KL(posterior || prior) summed over all random weights, in nats, ().

        Args:
            per_weight: Whether each block of weights has its mean over them in place of the sum.
        """
        terms: List[torch.Tensor] = []
        for layer, part in self.layers.items():
            blocks: Any = getattr(layer, "random_blocks", ())
            for block in blocks:
                known = None if part.kl is None else part.kl.get(block.key)
                term = block.kind.kl(layer, block) if known is None else known
                terms.append(term / block.mean(layer).numel() if per_weight else term)
        if not terms:
            return next(self.module.parameters()).new_zeros(())
        return torch.stack(terms).sum()

    def token_kl(self) -> Optional[torch.Tensor]:
        """KL of the latent outputs of the last forward pass, in nats, (B, L), summed over them.

        None where there are none.
        """
        terms = [part.token_kl for part in self.layers.values() if part.token_kl is not None]
        return torch.stack(terms).sum(0) if terms else None

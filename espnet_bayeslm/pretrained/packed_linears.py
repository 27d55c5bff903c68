"""Linear layers of a causal LM with packed weights, for the few rows of a step of a search."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterator, List, Tuple

from torch import nn

from espnet_bayeslm.kernels import is_plain
from espnet_bayeslm.kernels.product import KEEP_ROWS, Product, product

# Packed weights stand beside the model's own: an LM of more elements would take too much memory
MOST_ELEMENTS = 10**9


class PackedLinears:
    """Linear layers of a model on a CPU, as products with weights that are packed once.

    A step of ten rows then takes two thirds of the time, and the weights twice the memory.

    Args:
        model: A model whose weights do not change, except those whose names contain `changing`.
        changing: What the names of layers contain that are left as they are; empty: none.
    """

    def __init__(self, model: Any, changing: str = ""):
        self._model, self._changing = model, changing

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Let the layers multiply by packed weights."""
        if is_plain():
            yield
            return
        for layer, forward in self._products:
            layer.forward = forward
        try:
            yield
        finally:
            for layer, _ in self._products:
                del layer.forward

    @functools.cached_property
    def _products(self) -> List[Tuple[nn.Module, Product]]:
        """The layers that have packed weights, and what computes them."""
        found: List[Tuple[nn.Module, Product]] = []
        if sum(weight.numel() for weight in self._model.parameters()) > MOST_ELEMENTS:
            return found
        for name, layer in self._model.named_modules():
            # a layer that somebody has changed, as libraries of large models do, stays as it is
            is_own = type(layer) is nn.Linear and "forward" not in vars(layer)
            if not is_own or layer.weight.device.type != "cpu":
                continue
            if not (self._changing and self._changing in name):
                weight, bias = layer.weight.detach(), layer.bias
                found.append((layer, product(weight, KEEP_ROWS, bias)))
        return found

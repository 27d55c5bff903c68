"""Linear layers of a causal LM with packed weights, for the few rows of a step of a search."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.kernels import is_plain
from espnet_bayeslm.kernels.product import KEEP_ROWS, Product, content_of, product

# Packed weights stand beside the model's own: an LM of more elements would take too much memory
MOST_ELEMENTS = 10**9


class _Packed(NamedTuple):
    """A layer's product with packed weights, and what tells that they are the layer's."""

    content: Tuple[Any, ...]
    bias: Optional[torch.Tensor]
    product: Product


class PackedLinears:
    """Linear layers of a model on a CPU, as products with weights that are packed once.

    A step of ten rows then takes two thirds of the time, and the weights twice the memory.

    Args:
        model: A model whose weights stay within a search, except those whose names contain
            `changing`.
        changing: What the names of layers contain that are left as they are; empty: none.
    """

    def __init__(self, model: Any, changing: str = ""):
        self._model, self._changing = model, changing
        self._packed: Dict[nn.Module, _Packed] = {}
        self._is_current = False

    def begin(self) -> None:
        """Begin a search: the layers and their weights may have changed in any way."""
        self._is_current = False

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Let the layers multiply by packed weights."""
        if is_plain():
            yield
            return
        if not self._is_current:
            self._pack()
        for layer, packed in self._packed.items():
            layer.forward = packed.product  # type: ignore[method-assign]
        try:
            yield
        finally:
            for layer in self._packed:
                del layer.forward

    def _pack(self) -> None:
        """Pack the weights that have changed."""
        known, self._packed = self._packed, {}
        layers = [*self._layers()]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            contents = [*pool.map(content_of, (layer.weight for layer in layers))]
        for layer, content in zip(layers, contents, strict=True):
            before = known.pop(layer, None)
            if before is None or before.content != content or before.bias is not layer.bias:
                weight, bias = layer.weight.detach(), layer.bias
                before = _Packed(content, bias, product(weight, KEEP_ROWS, bias))
            self._packed[layer] = before
        self._is_current = True

    def _layers(self) -> Iterator[nn.Linear]:
        """Yield the layers whose weights are packed."""
        if sum(weight.numel() for weight in self._model.parameters()) > MOST_ELEMENTS:
            return
        for name, layer in self._model.named_modules():
            # a layer that somebody has changed, as libraries of large models do, stays as it is
            is_own = type(layer) is nn.Linear and "forward" not in vars(layer)
            if not is_own or layer.weight.device.type != "cpu":
                continue
            if not (self._changing and self._changing in name):
                yield layer

"""Super-networks: LMs with parallel paths at the locations that are searched."""

from __future__ import annotations

import contextlib
import copy
from typing import Iterator, Tuple

from espnet2.lm.abs_model import AbsLM
from torch import nn

from espnet_bayeslm.bayes import Choice, Kind
from espnet_bayeslm.bayes.paths import Shares


class SuperNetwork(AbsLM):
    """An LM that may have architecture weights; without them it is any LM."""

    def __init__(self) -> None:
        super().__init__()
        self.choices_are_fixed = False

    def _add_choice(self, location: str, candidates: Tuple[Kind, ...]) -> None:
        """Give a location architecture weights."""
        if not hasattr(self, "search"):
            self.search = nn.ModuleDict()
        self.search[location] = Choice(location, candidates)

    def choices(self) -> Iterator[Tuple[str, Choice]]:
        """Yield (location, architecture weights) of the locations that are searched."""
        for module in self.modules():
            if isinstance(module, Choice):
                yield module.location, module

    @contextlib.contextmanager
    def fixed_choices(self) -> Iterator[None]:
        """Give architecture weights no gradient in the forward passes within."""
        self.choices_are_fixed = True
        try:
            yield
        finally:
            self.choices_are_fixed = False

    def _share(self) -> None:
        """Tell the layers each path's share in the mixtures of a search."""
        if not hasattr(self, "search"):
            return
        shares = Shares((location, choice.shares()) for location, choice in self.choices())
        if self.choices_are_fixed:
            shares = copy.deepcopy(shares)
        for module in self.modules():
            if hasattr(module, "shares") and not isinstance(module, Choice):
                module.shares = shares

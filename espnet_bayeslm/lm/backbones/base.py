"""What `bayes_espnet` knows of an ESPnet LM that is its backbone."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from espnet2.lm.abs_model import AbsLM
from torch import nn
from typeguard import TypeCheckError

from espnet_bayeslm.bayes import Position, Weights
from espnet_bayeslm.bayes.kinds import all_weights
from espnet_bayeslm.layers.conversion import make_uncertain
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.utils.errors import InputError


class Backbone(ABC):
    """How one of ESPnet's LMs is built, made random and run.

    It has no state: `lm` is always a module with the children that ESPnet's LM has, so that copies
    and replicas of it work as torch makes them.

    Attributes:
        name: Its name in ESPnet.
        prior_variance: The prior's variance unless the configuration says otherwise.
    """

    name: str
    prior_variance: float

    @abstractmethod
    def espnet_class(self) -> Any:
        """ESPnet's class."""

    def options(self) -> List[str]:
        """Names of ESPnet's options, those of its class."""
        names = inspect.signature(self.espnet_class().__init__).parameters
        return [name for name in names if name not in ("self", "vocab_size")]

    def build(self, vocab_size: int, conf: Optional[Mapping[str, Any]]) -> AbsLM:
        """ESPnet's LM.

        Raises:
            InputError: They are not ESPnet's, or it does not take their values.
        """
        if conf is not None and not isinstance(conf, Mapping):
            raise InputError(f"backbone_conf: expected a mapping of options, got {conf!r}")
        valid = self.options()
        for option in conf or {}:
            if option not in valid:
                raise InputError(
                    f"backbone_conf: option {option!r} of {self.name}: valid options are"
                    f" {', '.join(valid)}"
                )
        try:
            return self.espnet_class()(vocab_size, **(conf or {}))
        except (TypeCheckError, TypeError, ValueError, AssertionError) as error:
            reason = str(error) or type(error).__name__
            raise InputError(f"backbone_conf: ESPnet's {self.name} says: {reason}") from error

    @abstractmethod
    def num_layers(self, lm: Any) -> int:
        """Number of layers."""

    def positions(self, lm: Any) -> Dict[str, Position]:
        """Positions that can be random: by default those of a Transformer."""
        return {
            "embedding": self.position("embedding", layered=False),
            **{name: self.position(name) for name in ("attention", "ffn", "ffn_out")},
            "output": self.position("output", layered=False),
        }

    def position(self, name: str, *, layered: bool = True) -> Position:
        """A position whose layers (`layers_at`) have weights."""
        return Position(weights=lambda lm, layer: self.weights_at(lm, name, layer), layered=layered)

    def weights_at(self, lm: Any, position: str, layer: Optional[int]) -> List[Weights]:
        """The weights of a place, whose layers become such that they can be random."""
        places = self.layers_at(lm, position, layer)
        return all_weights(*(make_uncertain(owner, name) for owner, name in places))

    @abstractmethod
    def layers_at(
        self, lm: Any, position: str, layer: Optional[int]
    ) -> List[Tuple[nn.Module, str]]:
        """The linear layers or embeddings at a layer (from 1) of a position, as (owner, name).

        Raises:
            InputError: This LM has no such weights of its own.
        """

    # How an LM is run: as the methods of an `UncertainLM`, whose first argument it is.
    compute: Callable[..., Tuple[torch.Tensor, Any]]
    zero_state: Callable[..., Any]
    begin: Callable[..., Step]
    advance: Callable[..., Step]
    # Where `computes_trees`, and the rest where `continues_trees` too
    tree_outputs: Callable[..., torch.Tensor]
    tree_states: Callable[..., Any]
    stack_states: Callable[..., Any]
    split_state: Callable[..., List[Any]]
    continues_trees = False

    @abstractmethod
    def outputs(self, lm: Any, input: torch.Tensor) -> torch.Tensor:
        """Input of the output projection, (B, L, M)."""

    def keeps_projection(self, lm: Any) -> bool:
        """Whether the output projection is the linear layer `decoder`, with nothing random."""
        return not getattr(lm.decoder, "random_blocks", ())

    def computes_trees(self, lm: Any) -> bool:
        """See `UncertainLM.computes_trees`; rescoring takes the output projection's mean."""
        return self.keeps_projection(lm)

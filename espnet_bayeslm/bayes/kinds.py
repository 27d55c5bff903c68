"""Kinds of uncertainty: each is one class, registered by name, and all that follows from it.

A position of an LM says what it offers: weights, a function of units, an output. A kind says which
of these it needs, and what it makes of a place that has it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Tuple, Type

import torch
from torch import nn

from espnet_bayeslm.utils.errors import InputError

Rows = Optional[Tuple[int, int]]
# The counter of draws, a buffer that every uncertain LM has.
NOISE_STEP = "noise_step"


def select_rows(tensor: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Some rows of a tensor (None: all), sharing its storage."""
    return tensor if rows is None else tensor[slice(*rows)]


class Weights(NamedTuple):
    """Parameters of a module, by their names.

    Attributes:
        pattern: Of the names, as `fnmatch` reads it: `encoder.layers.0.linear1.*`. In a table of
            positions `{k}` stands for the layer, counted from 0.
        part: (n, count): part n, from 0, of `count` equal parts of the rows, as an LSTM's gate;
            None: all rows.
        label: What the posterior's tensors of a part have in their names beside the parameter's.
        is_new: True if a point-estimate LM has no such parameter: the prior's mean is its start.
    """

    pattern: str
    part: Optional[Tuple[int, int]] = None
    label: str = ""
    is_new: bool = False

    def at(self, layer: Optional[int]) -> Weights:
        """These weights at a layer, counted from 1."""
        if layer is None:
            return self
        return self._replace(pattern=self.pattern.replace("{k}", str(layer - 1)))


class Function(NamedTuple):
    """A function of units that a mixture of basis functions may replace.

    Attributes:
        native: The activation function; None: there is none, and the mean function is the identity.
        weights: Those that its argument is computed with.
        replace: Names of basis functions -> the parameters that are new, the coefficients first.
        path: Name of the module that computes it after `replace`.
    """

    native: Optional[str]
    weights: List[Weights]
    replace: Callable[[Tuple[str, ...]], List[Weights]]
    path: str


class Output(NamedTuple):
    """A hidden output that may become a latent variable.

    Attributes:
        size: Its units.
        recurs: True if the next time step may get what takes its place.
        replace: Puts a layer (B, L, size) -> (B, L, size) behind it.
    """

    size: int
    recurs: bool
    replace: Callable[[Any], None]


@dataclasses.dataclass(frozen=True)
class Position:
    """Offer of an LM to kinds at a position: one row of its table.

    Attributes:
        weights: Its weights; None: it has none that a kind could make random.
        function: A function that may be replaced, by (LM, layer).
        output: An output that may become latent, by (LM, layer).
        layered: Whether it comes once a layer.
        parts: Positions it stands for together (`all_gates`).
    """

    weights: Optional[Tuple[Weights, ...]] = None
    function: Optional[Callable[[Any, Any], Function]] = None
    output: Optional[Callable[[Any, Any], Output]] = None
    layered: bool = True
    parts: Tuple[str, ...] = ()

    @property
    def kinds(self) -> Tuple[str, ...]:
        """The kinds that it can have."""
        return tuple(name for name, kind in KINDS.items() if kind.fits(self))


@dataclasses.dataclass(frozen=True)
class Place:
    """A place in an LM, as a kind gets it; a kind asks only for what the position offers.

    Attributes:
        lm: The LM.
        location: `POSITION@LAYER`.
        layer: The layer, from 1 (None: no layers).
        position: Its `Position`.
        defaults: Of options that the place's configuration does not give.
    """

    lm: Any
    location: str
    layer: Optional[int]
    position: Any
    defaults: Mapping[str, Any]

    def weights(self) -> List[Weights]:
        """Its weights."""
        return [w.at(self.layer) for w in self.position.weights]

    def function(self) -> Function:
        """A function that may be replaced."""
        return self.position.function(self.lm, self.layer)

    def output(self) -> Output:
        """An output that may become latent."""
        return self.position.output(self.lm, self.layer)


class Kind:
    """A kind of uncertainty with its options.

    Attributes:
        name: As the configuration has it.
        needs: What of a place it needs: `weights`, `function` or `output`; None: nothing.
        option_names: The options that it takes.
        inherits: Those of them whose default is the LM's.
        is_uncertain: Whether anything is random then.
        group: What its parameters are for the optimizer: `posterior`, `networks`, `architecture`.
        colour: In figures.
        no_export: Why an LM that has it has no point-estimate form (`{places}`: where it is), and
            what to do; None: it has one.

    Raises:
        InputError: There is no such option.
    """

    name: ClassVar[str]
    needs: ClassVar[Optional[str]] = None
    option_names: ClassVar[Tuple[str, ...]] = ()
    inherits: ClassVar[Tuple[str, ...]] = ()
    is_uncertain: ClassVar[bool] = True
    group: ClassVar[str] = "posterior"
    colour: ClassVar[str] = "tab:gray"
    no_export: ClassVar[Optional[Tuple[str, str]]] = None

    def __init__(self, **options: Any):
        for option in options:
            if option not in self.option_names:
                valid = ", ".join(self.option_names) or "none"
                raise InputError(
                    f"option {option!r} of kind {self.name!r}: valid options are {valid}"
                )
        self.options = options

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"

    @classmethod
    def fits(cls, position: Position) -> bool:
        """Whether a position has what this kind needs."""
        return cls.needs is None or getattr(position, cls.needs) is not None

    def fitted(self, position: Position) -> Kind:
        """This kind as a position has it.

        Raises:
            InputError: The position cannot have it.
        """
        if not self.fits(position):
            raise InputError(
                f"kind {self.name!r} does not fit this position; valid kinds are"
                f" {', '.join(position.kinds)}"
            )
        return self

    def with_defaults(self, defaults: Mapping[str, Any]) -> Any:
        """This kind with the LM's defaults for what was not given."""
        inherited = {name: defaults[name] for name in self.inherits if name in defaults}
        return type(self)(**{**inherited, **self.options})

    def apply(self, place: Place) -> None:
        """Make a place of an LM uncertain."""

    def point_form(self) -> Any:
        """What of it the LM of the means has, as the configuration says it; None: nothing."""
        return None

    @classmethod
    def owns(cls, key: str) -> bool:
        """Whether a state_dict's key is of what only this kind has."""
        return False

    @classmethod
    def may_lack(cls, key: str) -> bool:
        """Whether a checkpoint that has this kind may lack a key that it owns."""
        return False

    @classmethod
    def renamed(cls, state: Mapping[str, Any]) -> Dict[str, Any]:
        """A checkpoint of an earlier version with the names of this one."""
        return dict(state)

    @classmethod
    def adapt(cls, lm: nn.Module, state: Dict[str, Any], prefix: str) -> None:
        """Fit another LM's checkpoint to an LM, in place, before it is loaded."""


KINDS: Dict[str, Type[Kind]] = {}


def register_kind(kind: Type[Kind]) -> Type[Kind]:
    """Make a kind known by its name; a decorator of its class."""
    KINDS[kind.name] = kind
    return kind


@register_kind
class Point(Kind):
    """Nothing is random."""

    name = "point"
    is_uncertain = False
    colour = "tab:red"


def check_positive(value: Any, name: str, location: str) -> None:
    """Raise an InputError where an option of a location is not a number above 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise InputError(f"{name} of {location}: expected a number above 0, got {value!r}")


def parse_kind(value: Any) -> Kind:
    """The kind that a yaml value (a word, or a mapping with `kind`) describes.

    Raises:
        InputError: No `kind`, an unknown kind, or an option that it does not take.
    """
    options = dict(value) if isinstance(value, Mapping) else {"kind": value}
    name = options.pop("kind", None)
    if not isinstance(name, str) or name not in KINDS:
        raise InputError(f"kind {name!r}: valid kinds are {', '.join(KINDS)}")
    return KINDS[name](**{str(option): value for option, value in options.items()})


def is_posterior_key(key: str) -> bool:
    """Whether a state_dict's key is one that only an uncertain LM has."""
    is_counter = key.rpartition(".")[2] == NOISE_STEP
    return is_counter or any(kind.owns(key) for kind in KINDS.values())


def current_names(state: Mapping[str, Any]) -> Dict[str, Any]:
    """A checkpoint with the names that all kinds have now."""
    for kind in KINDS.values():
        state = kind.renamed(state)
    return dict(state)


def adapt_to_kinds(lm: nn.Module, state: Dict[str, Any], prefix: str) -> None:
    """Fit another LM's checkpoint to the kinds of an LM, in place."""
    renamed = current_names(state)
    state.clear()
    state.update(renamed)
    for kind in KINDS.values():
        kind.adapt(lm, state, prefix)

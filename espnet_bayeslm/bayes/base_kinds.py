"""Kinds of uncertainty, and the grammar `POSITION@LAYERS: kind` that gives them to an LM.

A kind is one class, registered by name, and all that follows from it. A position of an LM offers
weights, a function of units or an output. A kind says which of these it needs, and makes the place
random.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Type

import torch
from torch import nn

from espnet_bayeslm.bayes.weights import Function, Rows, Weights
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.registry import Registry

# The counter of samples, a buffer that every uncertain LM has.
NOISE_STEP = "noise_step"
# Where a module keeps its parameters while a sample is in their place.
MEANS = "_posterior_means"


@dataclasses.dataclass(frozen=True)
class Position:
    """Offer of an LM to kinds at a position: one row of its table.

    Attributes:
        weights: Weights that a kind may make random; None: there are none.
        function: A function that may be replaced.
        output: Name of the module with a hidden output of `output_size` units that may become
            latent, by its `add_latent`; `{k}` for the layer.
        layered: True if it comes once a layer.
        parts: Positions it stands for together (`all_gates`).
        refused: Why nothing here can be random in this LM, and a remedy; None: kinds may be.
    """

    weights: Optional[Tuple[Weights, ...]] = None
    function: Optional[Function] = None
    output: Optional[str] = None
    layered: bool = True
    parts: Tuple[str, ...] = ()
    refused: Optional[Tuple[str, str]] = None

    @property
    def kinds(self) -> Tuple[str, ...]:
        """The kinds that it can have."""
        return tuple(
            name
            for name, kind in KINDS.items()
            if kind.needs is None or getattr(self, kind.needs, None) is not None
        )


def key_of(location: str) -> str:
    """`{position}_l{layer from 0}` of a location."""
    position, _, layer = location.partition("@")
    return f"{position}_l{int(layer or 1) - 1}"


@dataclasses.dataclass(frozen=True)
class Place:
    """One place of an LM, with the interface that a kind uses to make it random.

    Attributes:
        lm: The LM.
        location: `POSITION@LAYER`.
        k: The layer from 0, as it stands in names of the table; "": no layers.
        position: The `Position`, a row of the LM's table.
    """

    lm: Any
    location: str
    k: str
    position: Any

    @property
    def key(self) -> str:
        """`{position}_l{layer from 0}`."""
        return key_of(self.location)

    def weights_of(self, offer: Any) -> List[Weights]:
        """Weights of the position or of its function (`offer`), at this layer."""
        return [w._replace(pattern=w.pattern.replace("{k}", self.k)) for w in offer.weights]

    def add_process(self, process: Any) -> List[Weights]:
        """Replace the function by a process; its new parameters, the coefficients first."""
        path = self.position.function.path.replace("{k}", self.k)
        new = self.lm.get_submodule(path).add_process(self.key, process)
        return [Weights(f"{path}.{name}", is_new=True) for name in new]

    def output(self) -> Any:
        """Module whose hidden output may become latent."""
        return self.lm.get_submodule(self.position.output.replace("{k}", self.k))

    def add_latent(self, latent: nn.Module) -> None:
        """Put a layer (B, L, size) -> (B, L, size) behind the hidden output."""
        self.output().add_latent(self.key, latent)


@dataclasses.dataclass(eq=False)
class Block:
    """Rows of a parameter of a module, and their posterior.

    Attributes:
        path: Name of the module that owns the parameter.
        owner: The module that owns the parameter.
        parameter: The parameter's name in it. The parameter is the posterior mean.
        rows: First row and the one after the last.
        aliases: Other names of the same parameter in the state_dict; a sample is put there too.
        key: Prefix of the posterior's tensors in the owner (`KEY_log_std`).
        location: Location of the rows, as in the configuration.
        kind: The `WeightKind` of their posterior.
    """

    path: str
    owner: nn.Module
    parameter: str
    rows: Rows
    aliases: List[str] = dataclasses.field(default_factory=list)
    key: str = ""
    location: str = ""
    kind: Any = None

    @property
    def name(self) -> str:
        """The parameter's name in the state_dict."""
        return f"{self.path}.{self.parameter}" if self.path else self.parameter

    @property
    def whole(self) -> torch.Tensor:
        """The parameter, whose values are means, whatever sample is in its place."""
        kept = vars(self.owner).get(MEANS, {}).get(self.parameter)
        return getattr(self.owner, self.parameter) if kept is None else kept

    @property
    def mean(self) -> torch.Tensor:
        """The posterior means, a part of the parameter."""
        whole = self.whole
        # a single number is one row
        return whole if self.rows == (0, math.prod(whole.shape[:1])) else whole[slice(*self.rows)]

    @property
    def std(self) -> torch.Tensor:
        """Standard deviation of each weight, shaped as the rows, without gradient."""
        return self.kind.std(self)

    @property
    def start_std(self) -> float:
        """The standard deviation at the start of training; nan where it is not known."""
        return self.kind.start_std(self)

    def tensor(self, suffix: str) -> torch.Tensor:
        """Tensor that the posterior keeps beside a parameter, as `_log_std`."""
        return getattr(self.owner, self.key + suffix)


@dataclasses.dataclass
class Kind:
    """A kind of uncertainty; the fields of its dataclass are its options.

    Attributes:
        name: Name in the configuration.
        needs: Attribute of a `Position` that it needs: `weights`, `function` or `output`; None:
            nothing.
        inherits: Options whose default is the LM's.
        is_uncertain: True if anything is random then.
        own_suffixes: Endings of the state_dict's keys of tensors that only this kind has.
        own_prefixes: Beginnings of a word of such keys.
        may_lack: Endings of such keys that a checkpoint of this kind may lack.
        group: Group of its parameters in the optimizer: `posterior`, `networks`, `architecture`.
        colour: Colour in figures.
        no_export: Why an LM of this kind has no point-estimate form (`{places}`: its locations),
            and a remedy; None: the LM has one.
    """

    name: ClassVar[str]
    needs: ClassVar[Optional[str]] = None
    inherits: ClassVar[Tuple[str, ...]] = ()
    is_uncertain: ClassVar[bool] = True
    own_suffixes: ClassVar[Tuple[str, ...]] = ()
    own_prefixes: ClassVar[Tuple[str, ...]] = ()
    may_lack: ClassVar[Tuple[str, ...]] = ()
    group: ClassVar[str] = "posterior"
    colour: ClassVar[str] = "tab:gray"
    no_export: ClassVar[Optional[Tuple[str, str]]] = None

    @property
    def options(self) -> Dict[str, Any]:
        """Options that differ from their defaults, by name."""
        fields = dataclasses.fields(self)
        values = {field.name: (getattr(self, field.name), field.default) for field in fields}
        return {name: value for name, (value, default) in values.items() if value != default}

    def fitted(self, position: Position) -> Kind:
        """This kind, with the options that a position allows, or an InputError."""
        if self.needs is not None and position.refused is not None:
            problem, remedy = position.refused
            raise InputError(problem, remedy=remedy)
        if self.needs is not None and getattr(position, self.needs, None) is None:
            raise InputError(
                f"kind {self.name!r} does not fit this position; valid kinds are"
                f" {', '.join(position.kinds)}"
            )
        return self

    def apply(self, place: Place) -> None:
        """Make a place of an LM uncertain."""

    def point_form(self) -> Any:
        """Configuration of this kind in the exported point-estimate LM; None if it has none."""
        return None

    @classmethod
    def adapt(cls, lm: nn.Module, state: Dict[str, Any], prefix: str) -> None:
        """Fit another LM's checkpoint to an LM, in place, before it is loaded."""


class WeightKind(Kind):
    """Weights are random: the parameter is their mean, and the kind adds its own tensors.

    A kind from elsewhere says how to `sample` rows, their `kl`, and, where it has
    tensors, `add`, `start` and `parameters`. A block is some rows of a parameter.

    Attributes:
        samples_in_training: False: `UncertainLM` uses the means in training, where an optimizer
            samples.
        samples_together: True: `sample_together` samples all blocks of a location in one call.
    """

    needs = "weights"
    samples_in_training: ClassVar[bool] = True
    samples_together: ClassVar[bool] = False

    def apply(self, place: Place) -> None:
        """Make all weights of a place random."""
        place.lm.posterior.add(place.weights_of(place.position), self, place.location)

    def has_posterior_of(self, other: WeightKind) -> bool:
        """True if another kind has an equal posterior, start and prior."""
        mine, its = (
            (
                *(type(k).sample, type(k).sample_with_kl, type(k).sample_together),
                {n: getattr(k, n) for n in k.inherits},
            )
            for k in (self, other)
        )
        return mine == its

    def add(self, block: Block, prior_mean: torch.Tensor) -> None:
        """Give the block's owner the posterior's tensors, named from `block.key`."""

    def start(self, block: Block) -> None:
        """Set the posterior's tensors to their start, for the present means."""

    def start_if_untrained(self, block: Block) -> None:
        """Set tensors that training has not changed to their start, for the present means."""

    def set_prior_mean(self, block: Block, mean: torch.Tensor) -> None:
        """Take the prior's mean, shaped as the block's rows."""

    def parameters(self, block: Block) -> List[torch.Tensor]:
        """The parameters that the posterior has besides its mean."""
        return []

    def tensors(self, block: Block) -> List[torch.Tensor]:
        """The tensors that samples depend on besides the mean."""
        return self.parameters(block)

    def std(self, block: Block) -> torch.Tensor:
        """The standard deviation of each weight, shaped as the block's rows."""
        raise NotImplementedError

    def start_std(self, block: Block) -> float:
        """The standard deviation at the start; nan where it is not known."""
        return math.nan

    def kl(self, block: Block) -> torch.Tensor:
        """KL(posterior || prior) summed over the block, in nats, ()."""
        raise NotImplementedError

    def sample(self, block: Block, mean: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Sample of the block's rows, whose means are given, with gradients."""
        raise NotImplementedError

    def sample_with_kl(
        self, block: Block, mean: torch.Tensor, generator: torch.Generator, *, wants_kl: bool
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """Sample of the block's rows, and their KL if it is wanted and costs little here."""
        return self.sample(block, mean, generator), None

    def sample_together(
        self, blocks: Sequence[Block], generator: torch.Generator
    ) -> Dict[Block, torch.Tensor]:
        """Sample all blocks of a location, such as the weights and the bias of a layer.

        A block has its means (`mean`, with gradients), its `rows`, and its module (`owner`).
        """
        return {block: self.sample(block, block.mean, generator) for block in blocks}


def _fault_of_kind(name: str, kind: Any) -> str:
    """Why an object of another package is not the kind of this name; "" if it is."""
    if not (isinstance(kind, type) and issubclass(kind, Kind) and dataclasses.is_dataclass(kind)):
        return f"it is {kind!r}, and a dataclass derived from `Kind` was expected"
    return "" if kind.name == name else f"the `name` of the class is {kind.name!r}"


KINDS: Registry[Type[Kind]] = Registry(
    "kind",
    group="espnet_bayeslm.kinds",
    built_in={
        "point": "espnet_bayeslm.bayes.base_kinds:Point",
        "bayes": "espnet_bayeslm.kinds.bayes:Bayes",
        "gp": "espnet_bayeslm.kinds.gp:GP",
        "variational": "espnet_bayeslm.kinds.variational:Variational",
        "search": "espnet_bayeslm.kinds.search:Search",
    },
    fault_of=_fault_of_kind,
)


def register_kind(kind: Type[Kind]) -> Type[Kind]:
    """Make a kind known by its name; a decorator of its dataclass."""
    KINDS[kind.name] = kind
    return kind


class Point(Kind):
    """Nothing is random."""

    name = "point"
    is_uncertain = False
    colour = "tab:red"


def parse_kind(value: Any) -> Kind:
    """The kind that a yaml value (a word, or a mapping with `kind`) describes."""
    options = dict(value) if isinstance(value, Mapping) else {"kind": value}
    name = options.pop("kind", None)
    found = KINDS[name]
    valid = [field.name for field in dataclasses.fields(found)]
    for given in options:
        if given not in valid:
            raise InputError(
                f"option {given!r} of kind {name!r}: valid options are {', '.join(valid) or 'none'}"
            )
    return found(**options)


def is_posterior_key(key: str) -> bool:
    """True for a state_dict's key that only an uncertain LM has."""
    words = key.split(".")
    return words[-1] == NOISE_STEP or any(
        key.endswith(kind.own_suffixes) or any(word.startswith(kind.own_prefixes) for word in words)
        for kind in KINDS.values()
    )


def adapt_to_kinds(lm: nn.Module, state: Dict[str, Any], prefix: str) -> None:
    """Fit another LM's checkpoint to the kinds of an LM, in place.

    A checkpoint with no other names than the LM's concerns only the kinds of the LM.
    """
    own = {prefix + key for key in lm.state_dict()}
    is_own = own.issuperset(key for key in state if key.startswith(prefix))
    kinds: Iterable[Type[Kind]] = KINDS.values()
    if is_own:
        kinds = map(type, getattr(lm, "kinds", {}).values())
    for kind in dict.fromkeys(kinds):
        kind.adapt(lm, state, prefix)


@dataclasses.dataclass(frozen=True)
class Location:
    """One place in an LM: a position, and its layer counted from 1 (None: no layers)."""

    position: str
    layer: Optional[int] = None

    def __str__(self) -> str:
        return self.position if self.layer is None else f"{self.position}@{self.layer}"


def parse_layers(text: str, num_layers: int) -> List[int]:
    """Layers that `1`, `1-2`, `1,2,6` or `*` names, counted from 1."""
    if text == "*":
        text = f"1-{num_layers}"
    layers: List[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise InputError(f"layers {text!r}: write them as 1, 1-2, 1,2,6 or *")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= num_layers:
            raise InputError(f"layers {text!r}: valid layers are 1 to {num_layers}, low to high")
        layers.extend(range(first, last + 1))
    return layers


def parse_uncertainty(
    uncertainty: Any, *, positions: Mapping[str, Position], num_layers: int
) -> Dict[Location, Kind]:
    """Random locations of an LM.

    Args:
        uncertainty: `{POSITION@LAYERS: kind}`; None or {} is the point-estimate LM.
        positions: Name -> position of the LM.
        num_layers: Number of layers of the LM.

    Returns:
        Location -> kind, without the locations where nothing is random.
    """
    if uncertainty is not None and not isinstance(uncertainty, Mapping):
        raise InputError(f"uncertainty: expected {{POSITION@LAYERS: kind}}, got {uncertainty!r}")
    kinds: Dict[Location, Kind] = {}
    for entry, value in (uncertainty or {}).items():
        name, at, layers = str(entry).partition("@")
        try:
            if name not in positions:
                raise InputError(f"position {name!r}: valid positions are {', '.join(positions)}")
            position = positions[name]
            if position.layered != bool(at):
                form = f"{name}@LAYERS" if position.layered else name
                raise InputError(f"location {entry!r}: write it as {form}")
            numbers = [*parse_layers(layers, num_layers)] if at else [None]
            kind = parse_kind(value).fitted(position)
            for location in (Location(p, n) for n in numbers for p in position.parts or (name,)):
                if location in kinds:
                    raise InputError(f"{location} is named twice")
                kinds[location] = kind
        except ValueError as error:
            raise InputError(f"uncertainty {entry!r}: {error}") from None
    order = list(positions)
    # the order of the mapping makes no difference
    places = sorted(kinds, key=lambda place: (order.index(place.position), place.layer or 0))
    return {place: kinds[place] for place in places if kinds[place].is_uncertain}

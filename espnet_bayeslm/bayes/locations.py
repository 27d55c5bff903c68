"""The grammar `POSITION@LAYERS: kind` that says which parts of an LM are random."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from espnet_bayeslm.utils.errors import InputError


@dataclasses.dataclass(frozen=True)
class Location:
    """One place in an LM: a position, and its layer counted from 1 (None: no layers)."""

    position: str
    layer: Optional[int] = None

    def __str__(self) -> str:
        return self.position if self.layer is None else f"{self.position}@{self.layer}"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of uncertainty.

    Attributes:
        name: One of `KIND_OPTIONS`.
        options: Its options.
        candidates: What a search chooses from, in the order of `KIND_OPTIONS`.
    """

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    candidates: Tuple[Kind, ...] = ()


@dataclasses.dataclass(frozen=True)
class Position:
    """What an LM offers at a position.

    Attributes:
        kinds: The kinds it can have.
        layered: Whether it comes once a layer.
        parts: Positions it stands for together (`all_gates`).
    """

    kinds: Tuple[str, ...]
    layered: bool = True
    parts: Tuple[str, ...] = ()


# The kind of a location without uncertainty.
POINT = "point"
# The kind of a location where architecture search decides.
SEARCH = "search"
# The options each kind takes; their defaults are the LM's.
KIND_OPTIONS: Dict[str, Tuple[str, ...]] = {
    POINT: (),
    "bayes": ("init_std", "init_std_unit", "prior_variance"),
    "gp": ("random", "basis", "init_std", "init_std_unit", "prior_variance"),
    "variational": ("latent_dim", "feedback", "init_std"),
    SEARCH: ("candidates",),
}
# What a standard deviation at the start can be relative to.
INIT_STD_UNITS = ("absolute", "weights", "prior")


def parse_layers(text: str, num_layers: int) -> List[int]:
    """Return the layers that `1`, `1-2`, `1,2,6` or `*` names, counted from 1.

    Raises:
        InputError: Not of that form, out of range, or empty.
    """
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


def parse_kind(value: Union[str, Mapping[str, Any]]) -> Kind:
    """Return the kind that a yaml value (a word, or a mapping with `kind`) describes.

    Raises:
        InputError: No `kind`, an unknown kind, or an option that it does not take.
    """
    options = dict(value) if isinstance(value, Mapping) else {"kind": value}
    name = options.pop("kind", None)
    if not isinstance(name, str) or name not in KIND_OPTIONS:
        raise InputError(f"kind {name!r}: valid kinds are {', '.join(KIND_OPTIONS)}")
    for option in options:
        if option not in KIND_OPTIONS[name]:
            valid = ", ".join(KIND_OPTIONS[name]) or "none"
            raise InputError(f"option {option!r} of kind {name!r}: valid options are {valid}")
    return Kind(name, options)


def _parse_candidates(candidates: Any, position: Position) -> Tuple[Kind, ...]:
    """Return what a search at a position chooses from (None: from all that it can have).

    Raises:
        InputError: Fewer than two kinds, one twice, or one that the position cannot have.
    """
    if candidates is None:
        candidates = position.kinds
    if not isinstance(candidates, (list, tuple)) or len(candidates) < 2:
        raise InputError(
            f"candidates {candidates!r}: expected a list of two or more of"
            f" {', '.join(position.kinds)}"
        )
    kinds = [parse_kind(candidate) for candidate in candidates]
    names = [kind.name for kind in kinds]
    for name in names:
        _check_fits(name, position.kinds)
        if names.count(name) > 1:
            raise InputError(f"candidates: {name} is named twice")
    return tuple(sorted(kinds, key=lambda kind: list(KIND_OPTIONS).index(kind.name)))


def _check_fits(kind: str, kinds: Tuple[str, ...]) -> None:
    """Raise an InputError where a position cannot have a kind."""
    if kind not in kinds:
        raise InputError(
            f"kind {kind!r} does not fit this position; valid kinds are {', '.join(kinds)}"
        )


def _parse_value(value: Any, position: Position) -> Kind:
    """Return the kind that a yaml value gives to a position."""
    kind = parse_kind(value)
    if kind.name == SEARCH:
        candidates = _parse_candidates(kind.options.get("candidates"), position)
        return Kind(SEARCH, candidates=candidates)
    _check_fits(kind.name, position.kinds)
    return kind


def _parse_entry(
    entry: str, *, positions: Mapping[str, Position], num_layers: int
) -> Tuple[Position, List[Location]]:
    """Return the position's offer and the locations that one key of the mapping names."""
    name, at, layers = str(entry).partition("@")
    if name not in positions:
        raise InputError(f"position {name!r}: valid positions are {', '.join(positions)}")
    position = positions[name]
    if position.layered != bool(at):
        form = f"{name}@LAYERS" if position.layered else name
        raise InputError(f"location {entry!r}: write it as {form}")
    numbers: List[Optional[int]] = [*parse_layers(layers, num_layers)] if at else [None]
    return position, [Location(p, n) for n in numbers for p in position.parts or (name,)]


def parse_uncertainty(
    uncertainty: Any,
    *,
    positions: Mapping[str, Position],
    num_layers: int,
) -> Dict[Location, Kind]:
    """Return the random locations of an LM.

    Args:
        uncertainty: `{POSITION@LAYERS: kind}`; None or {} is the point-estimate LM.
        positions: What the LM offers, by name.
        num_layers: How many layers the LM has.

    Returns:
        Location -> kind, without the locations of kind `point`.

    Raises:
        InputError: An unknown position, layer or kind, or a location named twice.
    """
    if uncertainty is not None and not isinstance(uncertainty, Mapping):
        raise InputError(f"uncertainty: expected {{POSITION@LAYERS: kind}}, got {uncertainty!r}")
    kinds: Dict[Location, Kind] = {}
    for entry, value in (uncertainty or {}).items():
        try:
            position, locations = _parse_entry(entry, positions=positions, num_layers=num_layers)
            kind = _parse_value(value, position)
        except ValueError as error:
            raise InputError(f"uncertainty {entry!r}: {error}") from None
        for location in locations:
            if location in kinds:
                raise InputError(f"uncertainty {entry!r}: {location} is named twice")
            kinds[location] = kind
    order = list(positions)
    # the order of the mapping makes no difference
    places = sorted(kinds, key=lambda place: (order.index(place.position), place.layer or 0))
    return {place: kinds[place] for place in places if kinds[place].name != POINT}


def check_posterior_options(options: Mapping[str, Any], place: Location) -> None:
    """Raise an InputError where a standard deviation or a variance is none, or its unit."""
    for name in ("init_std", "prior_variance"):
        value = options[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise InputError(f"{name} of {place}: expected a number above 0, got {value!r}")
    if options["init_std_unit"] not in INIT_STD_UNITS:
        raise InputError(
            f"init_std_unit of {place}: valid are {', '.join(INIT_STD_UNITS)},"
            f" got {options['init_std_unit']!r}"
        )

"""The grammar `POSITION@LAYERS: kind` that says which parts of an LM are random."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from espnet_bayeslm.bayes.kinds import Kind, Position, parse_kind
from espnet_bayeslm.utils.errors import InputError


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


def _parse_entry(
    entry: str, *, positions: Mapping[str, Position], num_layers: int
) -> Tuple[Position, List[Location]]:
    """The position's offer and the locations that one key of the mapping names."""
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
        try:
            position, locations = _parse_entry(entry, positions=positions, num_layers=num_layers)
            kind = parse_kind(value).fitted(position)
        except ValueError as error:
            raise InputError(f"uncertainty {entry!r}: {error}") from None
        for location in locations:
            if location in kinds:
                raise InputError(f"uncertainty {entry!r}: {location} is named twice")
            kinds[location] = kind
    order = list(positions)
    # the order of the mapping makes no difference
    places = sorted(kinds, key=lambda place: (order.index(place.position), place.layer or 0))
    return {place: kinds[place] for place in places if kinds[place].is_uncertain}

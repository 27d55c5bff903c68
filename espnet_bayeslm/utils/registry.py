"""Classes and functions that a configuration or an option names."""

from __future__ import annotations

import functools
import importlib.metadata
import pkgutil
from typing import Any, Callable, Dict, Iterator, Mapping, MutableMapping, TypeVar

from espnet_bayeslm.utils.errors import InputError

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """Classes or functions by name: built in, registered here, or of installed packages.

    Each is imported when its name is asked for. Other packages name theirs in an entry-point group
    of their metadata, which is read only for a name that is neither built in nor registered, or
    for the list of all names.

    Args:
        noun: The things named, in messages.
        group: The entry-point group.
        built_in: Name -> `module:attribute`.
        fault_of: (name, object of another package) -> why it cannot be used; "": it can.
    """

    def __init__(
        self,
        noun: str,
        *,
        group: str,
        built_in: Mapping[str, str],
        fault_of: Callable[[str, Any], str],
    ):
        self.noun, self.group, self.built_in, self.fault_of = noun, group, built_in, fault_of
        self._known: Dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """Class or function of a name; an unknown name is an InputError that lists all names."""
        known = self._known.get(name) if isinstance(name, str) else None
        return self._import(name) if known is None else known

    def __setitem__(self, name: str, value: T) -> None:
        self._known[name] = value

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self.built_in or name in self._entry_points

    def __iter__(self) -> Iterator[str]:
        others = {*self._known, *self._entry_points} - {*self.built_in}
        return iter([*self.built_in, *sorted(others)])

    def __len__(self) -> int:
        return len({*self.built_in, *self._known, *self._entry_points})

    def get(self, name: str, default: Any = None) -> Any:
        """Class or function of a name, or the default where there is none."""
        known = self._known.get(name)
        return known or (self._import(name) if name in self else default)

    @functools.cached_property
    def _entry_points(self) -> Dict[str, importlib.metadata.EntryPoint]:
        """Entry points of installed packages by name; the first on the path wins."""
        found = list(importlib.metadata.entry_points(group=self.group))
        return {point.name: point for point in reversed(found)}

    def _import(self, name: Any) -> T:
        """Class or function of a name that is asked for the first time."""
        if not isinstance(name, str) or name not in self:
            raise InputError(
                f"unknown {self.noun} {name!r}: valid {self.noun}s are {', '.join(self)}"
            )
        own = self.built_in.get(name)
        self._known[name] = pkgutil.resolve_name(own) if own else self._from_outside(name)
        return self._known[name]

    def _from_outside(self, name: str) -> Any:
        """Class or function of an installed package."""
        point = self._entry_points[name]
        try:
            found = point.load()
            fault = self.fault_of(name, found)
        except Exception as error:  # an import may end in any
            found, fault = None, f"it cannot be imported ({type(error).__name__}: {error})"
        if fault:
            package = "" if point.dist is None else point.dist.metadata["Name"]
            raise InputError(
                f"{self.noun} {name!r} of the package {package}: {fault}",
                remedy=f"Mend or remove its entry point `{name} = {point.value}` of the group"
                f" {self.group}.",
            )
        return found

"""Imports: of names on their first use, and of ESPnet without noise."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import io
import sys
import types
from typing import Any, Callable, Iterator, Mapping, Sequence

from espnet_bayeslm.utils.log import LOG

# ESPnet imports them for phonemes, BLEU and numbers in words; all take seconds, and the first's
# NLTK asks the network for its data.
LAZY = ("g2p_en", "nltk", "tacotron_cleaner.cleaners")


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562) that imports modules, {module: names}, when asked."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_of[name]), name)

    return get


def stand_in_for(name: str) -> None:
    """Put a stand-in for a module where imports look; it imports the module on its first use.

    The module's package has a stand-in too, since importing a package may import the module.
    """
    package = name.rpartition(".")[0]
    if package:
        stand_in_for(package)
    if name in sys.modules or (package and package not in sys.modules):
        return
    spec = importlib.util.find_spec(name)
    if spec is None:
        return
    # not importlib's LazyLoader: whoever goes through all modules (inspect) would import it
    module = types.ModuleType(name)
    module.__spec__, module.__path__ = spec, list(spec.submodule_search_locations or [])

    def get(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(name) is module:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    module.__dict__["__getattr__"] = get
    sys.modules[name] = module


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Imports within the block print nothing, and omit modules that ESPnet's LMs seldom need."""
    for name in LAZY:
        stand_in_for(name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), no_collections():
        yield
    LOG.debug(printed.getvalue().strip())


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """The garbage collector rests within the block.

    Imports make much that stays and little garbage: collections are a quarter of their time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

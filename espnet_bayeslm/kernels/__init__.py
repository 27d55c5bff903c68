"""Fast functions, each the twin of a plain one of the same name in `layers` or `bayes`.

The plain twin is the equation to read. A layer calls `fast(plain_function)(...)`, which is the fast
twin, or within `plain()` the function itself. `ESPNET_BAYESLM_KERNELS=plain` switches a whole
process.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import os
from typing import Any, Callable, Dict, FrozenSet, Iterator, Optional, TypeVar

from espnet_bayeslm.utils.errors import InputError

# {function or class: the module here that has it}
KERNELS: Dict[str, str] = {
    "CachedStep": "key_value_cache",
    "KeyValueCache": "key_value_cache",
    "TreeAttention": "tree_attention",
    "draw_rows": "draw",
    "dropout": "dropout",
    "feed_forward": "feed_forward",
    "kl_weights": "draw",
    "linear": "product",
    "look_up": "embedding",
    "mixture": "gp",
    "product": "product",
    "run_step": "tree_lstm",
    "run_tree": "tree_lstm",
    "sample_with_kl": "latent_sample",
    "summed_nll": "vocabulary",
}
VARIABLE = "ESPNET_BAYESLM_KERNELS"
MODES = ("fast", "plain")
Function = TypeVar("Function", bound=Callable[..., Any])

# None: as the environment says
_plain: contextvars.ContextVar[Optional[FrozenSet[str]]] = contextvars.ContextVar(
    "plain", default=None
)


@contextlib.contextmanager
def plain(*names: str, others_fast: bool = False) -> Iterator[None]:
    """Compute by the plain functions within, in this thread.

    Args:
        names: Only those of these names; default all.
        others_fast: Whether the others are fast, whatever the environment or an outer `plain` says.

    Raises:
        InputError: There is no kernel of such a name.
    """
    unknown = sorted(set(names) - set(KERNELS))
    if unknown:
        raise InputError(f"kernels.plain: no kernel {unknown[0]}; valid are {', '.join(KERNELS)}")
    before = frozenset() if others_fast else frozenset(filter(is_plain, KERNELS))
    token = _plain.set(before | frozenset(names or KERNELS))
    try:
        yield
    finally:
        _plain.reset(token)


def is_plain(name: str) -> bool:
    """Whether the kernel of this name is switched off.

    Raises:
        InputError: The environment variable has a value that means nothing.
    """
    chosen = _plain.get()
    if chosen is not None:
        return name in chosen
    mode = os.environ.get(VARIABLE) or "fast"
    if mode not in MODES:
        raise InputError(
            f"environment variable {VARIABLE}: expected {' or '.join(MODES)}, got {mode!r}",
            remedy=f"Unset it, or set {VARIABLE}=plain to compute without kernels.",
        )
    return mode == "plain"


def fast(function: Function) -> Function:
    """The kernel of the same name as a plain function or class; itself within `plain`."""
    name = function.__name__
    return function if is_plain(name) else kernel(name)


def kernel(name: str) -> Any:
    """The kernel of this name."""
    return getattr(importlib.import_module(f"{__name__}.{KERNELS[name]}"), name)

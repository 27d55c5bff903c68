"""Fast functions, each the twin of a plain one in `bayes`, `layers` or `scoring`.

The plain twin is the equation to read. It names its kernel where it stands:

    @has_kernel(vocabulary.summed_nll)
    def summed_nll(...): ...

A call of the plain function then runs the kernel, except within `plain()`.
`ESPNET_BAYESLM_KERNELS=plain` switches a whole process.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, TypeVar

from espnet_bayeslm.utils.errors import InputError

VARIABLE = "ESPNET_BAYESLM_KERNELS"
MODES = ("fast", "plain")
Function = TypeVar("Function", bound=Callable[..., Any])


class Twins(NamedTuple):
    """A plain function and its kernel, which computes the same."""

    plain: Callable[..., Any]
    kernel: Callable[..., Any]


# {name of a plain function: it and its kernel}
KERNELS: Dict[str, Twins] = {}
# True for the name of a kernel that is switched off; None: as the environment says
_is_plain: contextvars.ContextVar[Optional[Callable[[str], bool]]] = contextvars.ContextVar(
    "is_plain", default=None
)


def has_kernel(kernel: Callable[..., Any]) -> Callable[[Function], Function]:
    """Decorate a plain function: calls go to its kernel, except within `plain`."""

    def register(function: Function) -> Function:
        name = function.__name__
        KERNELS[name] = Twins(function, kernel)

        @functools.wraps(function)
        def call_twin(*args: Any, **kwargs: Any) -> Any:
            twins = KERNELS[name]
            return (twins.plain if is_plain(name) else twins.kernel)(*args, **kwargs)

        return call_twin  # type: ignore[return-value]

    return register


@contextlib.contextmanager
def plain(*names: str) -> Iterator[None]:
    """Compute by the plain functions within, in this thread: those of some kernels, or all."""
    unknown = sorted(set(names) - set(KERNELS))
    if unknown:
        raise InputError(f"kernels.plain: no kernel {unknown[0]}; valid are {', '.join(KERNELS)}")
    outer = _is_plain.get() or _is_plain_process

    def chosen(name: str) -> bool:
        return not names or name in names or outer(name)

    token = _is_plain.set(chosen)
    try:
        yield
    finally:
        _is_plain.reset(token)


def is_plain(name: str) -> bool:
    """True if the kernel of this name is switched off."""
    return (_is_plain.get() or _is_plain_process)(name)


def _is_plain_process(_: str) -> bool:
    """True if the environment switches all kernels off."""
    mode = os.environ.get(VARIABLE) or "fast"
    if mode not in MODES:
        raise InputError(
            f"environment variable {VARIABLE}: expected {' or '.join(MODES)}, got {mode!r}",
            remedy=f"Unset it, or set {VARIABLE}=plain to compute without kernels.",
        )
    return mode == "plain"

"""The switch to kernels and packed products; other kernels are beside plain twins elsewhere.

The plain twin is the equation to read. It names its kernel:

    @has_kernel(_fast_nll)
    def summed_nll(...): ...

A call of the plain function then runs the kernel, except within `plain()`.
`ESPNET_BAYESLM_KERNELS=plain` switches a whole process.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from typing import Any, Callable, Dict, Iterator, NamedTuple, TypeVar

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
_is_plain: contextvars.ContextVar[bool] = contextvars.ContextVar("is_plain", default=False)


def has_kernel(kernel: Callable[..., Any]) -> Callable[[Function], Function]:
    """Decorate a plain function: calls go to its kernel, except within `plain`."""

    def register(function: Function) -> Function:
        name = function.__name__
        KERNELS[name] = Twins(function, kernel)

        @functools.wraps(function)
        def call_twin(*args: Any, **kwargs: Any) -> Any:
            twins = KERNELS[name]
            return (twins.plain if is_plain() else twins.kernel)(*args, **kwargs)

        return call_twin  # type: ignore[return-value]

    return register


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Compute by the plain functions within, in this thread."""
    token = _is_plain.set(True)
    try:
        yield
    finally:
        _is_plain.reset(token)


def is_plain() -> bool:
    """True if kernels are switched off, here or by the environment."""
    mode = os.environ.get(VARIABLE) or "fast"
    if mode not in MODES:
        raise InputError(
            f"environment variable {VARIABLE}: expected {' or '.join(MODES)}, got {mode!r}",
            remedy=f"Unset it, or set {VARIABLE}=plain to compute without kernels.",
        )
    return _is_plain.get() or mode == "plain"

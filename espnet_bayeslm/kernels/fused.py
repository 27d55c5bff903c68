"""Functions of many elementwise operators as few kernels of a device."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from typing import Any, Callable, Tuple

import torch


def fused(
    function: Callable[..., Any], device: torch.device, *constants: Any
) -> Callable[..., Any]:
    """A function of tensors, compiled by torch on CUDA: a kernel for all of its operators.

    The function must change none of its arguments; it is compiled for its first ones, the
    constants. It is returned as it is on other devices, and where nothing can be compiled: without
    triton, on a GPU that triton does not know, with TORCH_COMPILE_DISABLE=1, or after an error of
    the compiler, which is then logged.
    """
    if compiles(device):
        return _compiled(function, constants)
    return functools.partial(function, *constants)


def compiles(device: torch.device) -> bool:
    """True if `fused` compiles functions for a device."""
    return device.type == "cuda" and _has_compiler()


@functools.cache
def _compiled(function: Callable[..., Any], constants: Tuple[Any, ...]) -> Callable[..., Any]:
    def bound(*args: Any) -> Any:
        return function(*constants, *args)

    # torch compiles a code a few times at most, for other shapes: each function has one of its own
    bound.__code__ = bound.__code__.replace(co_name=function.__name__)
    compiled: Callable[..., Any] = torch.compile(bound, dynamic=True)
    failed = False

    def run(*args: Any) -> Any:
        nonlocal failed
        if not failed:
            try:
                return compiled(*args)
            except Exception as error:
                failed = True
                reason = str(error).partition("\n")[0]
                logging.warning(f"{function.__name__} runs uncompiled, slower: {reason}")
        return bound(*args)

    return run


@functools.cache
def _has_compiler() -> bool:
    """True if torch can compile for this GPU."""
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        return False
    if importlib.util.find_spec("triton") is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (7, 0)

"""Functions of many elementwise operators as few kernels of a device."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from typing import Any, Callable

import torch


def fused(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A function of tensors, compiled by torch on CUDA: a kernel for all of its operators.

    It is itself on other devices, and where nothing can be compiled: without triton, on a GPU that
    triton does not know, with TORCH_COMPILE_DISABLE=1, or after an error of the compiler, which
    the log then has.

    Args:
        function: Changes none of its arguments, and gives the same each time.
        device: Of its arguments.
    """
    return _compiled(function) if compiles(device) else function


def compiles(device: torch.device) -> bool:
    """Whether `fused` compiles functions for a device."""
    return device.type == "cuda" and _has_compiler()


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    failed = False

    def run(*args: Any) -> Any:
        nonlocal failed
        if not failed:
            try:
                return compiled(*args)
            except Exception as error:
                failed = True
                name = getattr(function, "__name__", "a function")
                logging.warning(
                    f"{name} runs uncompiled, slower: {str(error).partition(chr(10))[0]}"
                )
        return function(*args)

    return run


@functools.cache
def _has_compiler() -> bool:
    """Whether torch can compile for this GPU."""
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        return False
    if importlib.util.find_spec("triton") is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (7, 0)

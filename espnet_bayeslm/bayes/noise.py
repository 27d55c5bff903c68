"""Noise by a counter: equal (seed, rank, step) always give equal noise."""

from __future__ import annotations

import numpy as np
import torch

from espnet_bayeslm.utils.errors import InputError


def process_rank() -> int:
    """Rank of this process, 0 where training is not distributed."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_initialized() else 0


def noise_generator(
    seed: int, rank: int, step: int, *, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Generator of a sample: the step counts the samples that a process has made before."""
    # SeedSequence hashes the three, so that neighbours share nothing.
    state = np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(state[0]))


def noise_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Standard normal noise in the shape, type and device of a tensor, without gradient."""
    return torch.empty_like(tensor, requires_grad=False).normal_(generator=generator)


# Number of the backward pass that is running, -1 in none; torch's own checkpointing asks this too
_backward_pass = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def refuse_recomputation() -> None:
    """Refuse to compute a random layer within a backward pass: the loss had another sample."""
    if _backward_pass() != -1:
        raise InputError(
            "activation checkpointing (torch.utils.checkpoint) computes a random layer again, with"
            " other noise than the loss had",
            remedy="Checkpoint only layers without uncertainty, or none.",
        )

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


# Number of the backward pass that is running, -1 in none; torch's own checkpointing asks this too
_backward_pass = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def in_backward_pass() -> bool:
    """True within a backward pass, as where activation checkpointing computes a layer again."""
    return bool(_backward_pass() != -1)


def recomputation_error() -> InputError:
    """Error of a sample within a backward pass: it would differ from the sample of the loss."""
    return InputError(
        "activation checkpointing (torch.utils.checkpoint) computes a random layer again, with"
        " other noise than the loss had",
        remedy="Checkpoint only layers without uncertainty, or none.",
    )

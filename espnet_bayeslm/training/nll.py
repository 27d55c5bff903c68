"""The NLL of a batch of sentences, computed on its real tokens only."""

from __future__ import annotations

import contextlib
from typing import ContextManager, Optional, Tuple

import torch
import torch.nn.functional as F
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.layers.product import has_onednn, warn_of_emulation
from espnet_bayeslm.layers.vocabulary import summed_nll
from espnet_bayeslm.utils.errors import InputError

PRECISIONS = {"bfloat16": torch.bfloat16}


def real_tokens(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return which of the values (B, L) are of tokens, and not of padding, bool (B, L)."""
    return torch.arange(values.size(1), device=values.device) < lengths.unsqueeze(1)


def inputs_and_targets(
    model: ESPnetLanguageModel, text: torch.Tensor, text_lengths: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return what the LM reads and what it should say next, both padded, (B, L + 1).

    Args:
        model: It knows the ids of start, end and padding.
        text: Token ids without <sos/eos>, padded, (B, L) or longer.
        text_lengths: (B,), L the greatest.
    """
    text = text[:, : int(text_lengths.max())]
    inputs = F.pad(text, [1, 0], value=model.sos)
    targets = F.pad(text, [0, 1], value=model.ignore_id)
    return inputs, targets.scatter(1, text_lengths.unsqueeze(1), model.eos)


def counted_tokens(
    model: ESPnetLanguageModel,
    text: torch.Tensor,
    text_lengths: torch.Tensor,
    rows: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs, targets, and which of the targets count, bool: each (B, L + 1).

    Args:
        model: It knows the ids of start, end and padding.
        text: Token ids without <sos/eos>, padded, (B, L) or longer.
        text_lengths: (B,), L the greatest.
        rows: Which sentences count, bool (B,); None: all.
    """
    inputs, targets = inputs_and_targets(model, text, text_lengths)
    counts = real_tokens(inputs, text_lengths + 1)
    return inputs, targets, counts if rows is None else counts & rows.unsqueeze(1)


def counted(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the values (B, L, ...) that count (B, L): (N, ...), no copy where all of them do."""
    return values.flatten(0, 1) if counts.all() else values[counts]


def batch_nll(
    model: ESPnetLanguageModel,
    text: torch.Tensor,
    text_lengths: torch.Tensor,
    rows: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Return the sum of -ln p over a batch's tokens, end tokens too, ().

    As the sum of the model's `nll`, but neither padding nor the logits of the whole batch are
    computed, where the LM has an output projection of its own (`UncertainLM.outputs`).

    Args:
        model: Its LM is one of ours.
        text: Token ids without <sos/eos>, padded, (B, L).
        text_lengths: (B,).
        rows: Which sentences count, bool (B,); None: all.
    """
    inputs, targets, counts = counted_tokens(model, text, text_lengths, rows)
    targets = counted(targets, counts)
    projected = model.lm.outputs(inputs)
    if projected is not None:
        outputs, weight = projected
        return summed_nll(counted(outputs, counts), weight, model.lm.decoder.bias, targets)
    logits = counted(model.lm(inputs, None)[0], counts)
    # half precision would lose the sum
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="sum")


def check_precision(autocast: Optional[str]) -> None:
    """Raise an InputError where the model's option `autocast` is unknown."""
    if autocast is not None and autocast not in PRECISIONS:
        raise InputError(f"autocast {autocast!r}: valid are null, {', '.join(PRECISIONS)}")


def lowered(autocast: Optional[str], device: torch.device) -> ContextManager[None]:
    """Return a context for products in that precision; None: as they are."""
    if autocast is None:
        return contextlib.nullcontext()
    if device.type == "cpu" and not has_onednn(PRECISIONS[autocast]):
        warn_of_emulation()
    return torch.autocast(device.type, dtype=PRECISIONS[autocast])

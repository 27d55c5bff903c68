"""The part of the training text that bilevel search learns its architecture weights from."""

from __future__ import annotations

import zlib
from typing import Any, Sequence

import torch

from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.supernet import choices
from espnet_bayeslm.utils.errors import InputError


def is_heldout(utt: str, share: float) -> bool:
    """Whether an utterance is held out: the same ones in each run and each process."""
    return zlib.crc32(utt.encode()) < share * 2**32


def heldout_mask(utts: Any, share: float, count: int) -> torch.Tensor:
    """Mask of the held-out utterances of a batch of `count`, bool (B,), on the host.

    Raises:
        RuntimeError: Their ids are not known.
    """
    if not isinstance(utts, Sequence) or len(utts) != count:
        raise RuntimeError("bilevel search needs the batch's utterance ids: utt_id=[...]")
    return torch.tensor([is_heldout(utt, share) for utt in utts])


def check_bilevel(bilevel: bool, share: float, lm: UncertainLM) -> None:
    """Raise an InputError where bilevel search has nothing to search or to learn from."""
    if bilevel and next(choices(lm), None) is None:
        raise InputError(
            "bilevel: true, and nothing is searched",
            remedy="Give locations the kind `search`, or leave bilevel out.",
        )
    if bilevel and not 0 < share < 1:
        raise InputError(
            f"bilevel: true without held-out text: heldout_share is {share}",
            remedy="Give the share of the training sentences to hold out, between 0 and 1.",
        )


def architecture_term(nll: torch.Tensor, lm: UncertainLM) -> torch.Tensor:
    """Term of value 0 whose gradient is the NLL's, for the architecture weights alone.

    Args:
        nll: Of held-out text, (); without a graph where there is none in a batch.
        lm: The super-network.
    """
    weights = [choice.weights for _, choice in choices(lm)]
    if nll.requires_grad:
        grads = torch.autograd.grad(nll, weights)
    else:
        grads = tuple(torch.zeros_like(weight) for weight in weights)
    terms = [(weight * grad).sum() for weight, grad in zip(weights, grads, strict=True)]
    total = torch.stack(terms).sum()
    return total - total.detach()

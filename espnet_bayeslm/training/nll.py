"""The NLL of a batch of sentences, computed on its real tokens only."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import ContextManager, NamedTuple, Optional

import torch
import torch.nn.functional as F
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.kernels.product import has_onednn
from espnet_bayeslm.layers.linear import rows_at, summed_nll


class TokenBatch(NamedTuple):
    """Input of an LM for a batch, and the tokens that count.

    Attributes:
        inputs: Token ids, each sentence with its start, (B, L + 1).
        targets: The ids of the N tokens that count, end tokens too, (N,).
        places: Where they are among the B (L + 1), (N,); None: everywhere.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    places: Optional[torch.Tensor]

    def counted(self, values: torch.Tensor) -> torch.Tensor:
        """Values (B, L + 1, ...) of the tokens that count, (N, ...)."""
        return rows_at(values, self.places)


def token_batch(
    model: ESPnetLanguageModel,
    text: torch.Tensor,
    text_lengths: torch.Tensor,
    lengths: torch.Tensor,
) -> TokenBatch:
    """Batch of sentences, padded (B, L) or longer, as its LM reads it.

    Where the tokens are is found by `lengths` on the host: the device would have to be waited for.
    """
    text = text[:, : int(lengths.max())]
    inputs = F.pad(text, [1, 0], value=model.sos)
    targets = F.pad(text, [0, 1], value=model.ignore_id)
    targets = targets.scatter(1, text_lengths.unsqueeze(1), model.eos)
    # with the end token
    counts = torch.arange(inputs.size(1)) <= lengths.unsqueeze(1)
    places = None
    if not counts.all():
        places = counts.flatten().nonzero().squeeze(1).to(text.device, non_blocking=True)
    batch = TokenBatch(inputs, targets, places)
    return batch._replace(targets=batch.counted(targets))


def batch_nll(model: ESPnetLanguageModel, batch: TokenBatch) -> torch.Tensor:
    """Sum of -ln p over a batch's tokens, end tokens too, ().

    As the sum of the model's `nll`, but neither padding nor the logits of the whole batch are
    computed, where the LM has an output projection of its own (`UncertainLM.outputs`).
    """
    projected = model.lm.outputs(batch.inputs, batch.places)
    if projected is not None:
        outputs, weight = projected
        return summed_nll(outputs, weight, model.lm.decoder.bias, batch.targets)
    logits = batch.counted(model.lm(batch.inputs, None)[0])
    # half precision would lose the sum
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, batch.targets, reduction="sum")


def lowered(is_low: bool, device: torch.device) -> ContextManager[None]:
    """Context for products in bfloat16; else, and where a CPU lacks it, as they are."""
    if is_low and (device.type != "cpu" or has_onednn(torch.bfloat16)):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    if is_low:
        warn_of_missing()
    return contextlib.nullcontext()


@functools.cache
def warn_of_missing() -> None:
    """Log, once, that this CPU does not have bfloat16."""
    logging.warning("autocast to bfloat16, which this CPU does not have, is left out")

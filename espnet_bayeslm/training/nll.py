"""The NLL of a batch of sentences, computed on its real tokens only."""

from __future__ import annotations

import contextlib
import functools
from typing import ContextManager, NamedTuple, Optional

import torch
import torch.nn.functional as F
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.kernels.product import has_onednn
from espnet_bayeslm.layers.linear import summed_nll
from espnet_bayeslm.lm.packing import Packing
from espnet_bayeslm.utils.log import LOG


class TokenBatch(NamedTuple):
    """Input of an LM for a batch, and the tokens that count.

    Attributes:
        inputs: Token ids, each sentence with its start, (B, L + 1).
        targets: The ids of the N tokens that count, end tokens too, (N,).
        packing: Where they are among the B (L + 1); None: everywhere.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    packing: Optional[Packing]

    def counted(self, values: torch.Tensor) -> torch.Tensor:
        """Values (B, L + 1, ...) of the tokens that count, (N, ...)."""
        return values.flatten(0, 1) if self.packing is None else self.packing.pick(values)


def token_batch(
    model: ESPnetLanguageModel,
    text: torch.Tensor,
    text_lengths: torch.Tensor,
    lengths: torch.Tensor,
) -> TokenBatch:
    """Batch of sentences, padded (B, L) or longer, as its LM reads it.

    Where the tokens are is found by `lengths` on the host.
    """
    text = text[:, : int(lengths.max())]
    inputs = F.pad(text, [1, 0], value=model.sos)
    targets = F.pad(text, [0, 1], value=model.ignore_id)
    targets = targets.scatter(1, text_lengths.unsqueeze(1), model.eos)
    packing = None
    if lengths.min() < lengths.max():
        packing = Packing(lengths + 1, inputs.size(1), text.device)  # with the end token
    batch = TokenBatch(inputs, targets, packing)
    return batch._replace(targets=batch.counted(targets))


def batch_nll(model: ESPnetLanguageModel, batch: TokenBatch) -> torch.Tensor:
    """Sum of -ln p over a batch's tokens, end tokens too, ().

    As the sum of the model's `nll`, but neither padding nor the logits of the whole batch are
    computed, where the LM has an output projection of its own (`UncertainLM.outputs`).
    """
    projected = model.lm.outputs(batch.inputs, batch.packing)
    if projected is not None:
        outputs, weight = projected
        return summed_nll(outputs, weight, model.lm.decoder.bias, batch.targets)
    logits = batch.counted(model.lm(batch.inputs, None)[0])
    # half precision would lose the sum
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, batch.targets, reduction="sum")


def lowered(is_low: bool, device: torch.device) -> ContextManager[None]:
    """Context in which products are computed in bfloat16, if `is_low` and the device has it."""
    if is_low and (device.type != "cpu" or has_onednn(torch.bfloat16)):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    if is_low:
        warn_of_missing()
    return contextlib.nullcontext()


@functools.cache
def warn_of_missing() -> None:
    """Log, once, that this CPU does not have bfloat16."""
    LOG.warning("autocast to bfloat16, which this CPU does not have, is left out")

"""The NLL of a batch of sentences, and how ln Z varies, computed on its real tokens only.

The variance of ln Z is held down for scoring without the softmax (Chen et al. 2016).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import ContextManager, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.kernels.product import has_onednn
from espnet_bayeslm.layers.linear import summed_nll
from espnet_bayeslm.scoring.log_probs import log_probs_of_logits

PRECISIONS = {"bfloat16": torch.bfloat16}


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
        values = values.flatten(0, 1)
        return values if self.places is None else values.index_select(0, self.places)

    def spread_out(self, values: torch.Tensor) -> torch.Tensor:
        """Values (N,) of the tokens that count, in their places (B, L + 1); 0 elsewhere."""
        if self.places is None:
            return values.view(self.inputs.shape)
        every = values.new_zeros(self.inputs.numel())
        return every.index_put((self.places,), values).view(self.inputs.shape)


def token_batch(
    model: ESPnetLanguageModel,
    text: torch.Tensor,
    text_lengths: torch.Tensor,
    *,
    lengths: Optional[torch.Tensor] = None,
) -> TokenBatch:
    """Batch of sentences, padded (B, L) or longer, as its LM reads it.

    Where the tokens are is found on the host by `lengths`: the device would have to be waited for.
    """
    lengths = text_lengths.cpu() if lengths is None else lengths
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
    projected = model.lm.outputs(batch.inputs)
    if projected is not None:
        outputs, weight = projected
        return summed_nll(batch.counted(outputs), weight, model.lm.decoder.bias, batch.targets)
    logits = batch.counted(model.lm(batch.inputs, None)[0])
    # half precision would lose the sum
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, batch.targets, reduction="sum")


def nll_and_log_z(
    model: ESPnetLanguageModel, batch: TokenBatch
) -> Tuple[torch.Tensor, torch.Tensor]:
    """-ln p and ln Z of each token of a batch that counts, both (N,)."""
    log_probs, log_z = log_probs_of_logits(
        batch.counted(model.lm(batch.inputs, None)[0]), batch.targets
    )
    return -log_probs, log_z


def spread(log_z: torch.Tensor) -> torch.Tensor:
    """Mean of ln Z = ln sum_v exp(logit_v) over N tokens, and its mean squared distance, (2,)."""
    count = max(len(log_z), 1)
    mean = log_z.sum() / count
    return torch.stack([mean, (log_z - mean).square().sum() / count])


def lowered(autocast: Optional[str], device: torch.device) -> ContextManager[None]:
    """Context for products in that precision; None, and where a CPU lacks it: as they are."""
    if autocast is None:
        return contextlib.nullcontext()
    if device.type == "cpu" and not has_onednn(PRECISIONS[autocast]):
        warn_of_missing(autocast)
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=PRECISIONS[autocast])


@functools.cache
def warn_of_missing(precision: str) -> None:
    """Log, once, that this CPU does not have a precision."""
    logging.warning(f"autocast to {precision}, which this CPU does not have, is left out")

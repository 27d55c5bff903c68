"""Variance regularisation of ln Z (Chen et al. 2016), for scoring without the softmax."""

from __future__ import annotations

from typing import Dict, NamedTuple, Sequence, Tuple

import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.training.nll import inputs_and_targets, real_tokens


class LogZ(NamedTuple):
    """How ln Z = ln sum_v exp(logit_v) is distributed over the tokens of a batch, in nats.

    Attributes:
        mean: Its mean, ().
        variance: Its mean squared distance from the mean, ().
    """

    mean: torch.Tensor
    variance: torch.Tensor

    @classmethod
    def average(cls, spreads: Sequence[LogZ]) -> LogZ:
        """Return the averages over several draws."""
        means, variances = zip(*spreads, strict=True)
        return cls(torch.stack(means).mean(), torch.stack(variances).mean())

    def stats(self) -> Dict[str, torch.Tensor]:
        """Return what is reported: mean and standard deviation."""
        return dict(lnz_mean=self.mean.detach(), lnz_std=self.variance.detach().sqrt())


def nll_and_log_z(
    model: ESPnetLanguageModel, text: torch.Tensor, text_lengths: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the model's `nll` does, and ln Z of each token.

    Args:
        model: The model.
        text: Token ids without <sos/eos>, padded, (B, L).
        text_lengths: (B,).

    Returns:
        NLL, 0 for padding, (B, L + 1); lengths with the end token, (B,); ln Z, (B, L + 1).
    """
    inputs, targets = inputs_and_targets(model, text, text_lengths)
    logits, _ = model.lm(inputs, None)
    # half precision would lose the sum
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_z = logits.logsumexp(-1)
    nll = log_z - logits.gather(2, targets.unsqueeze(2)).squeeze(2)
    lengths = text_lengths + 1
    return nll * real_tokens(nll, lengths), lengths, log_z


def spread(log_z: torch.Tensor, real: torch.Tensor) -> LogZ:
    """Return mean and variance over the tokens of a batch.

    Args:
        log_z: (B, L).
        real: Which of them count, bool (B, L).
    """
    values = log_z[real]
    mean = values.sum() / max(len(values), 1)
    return LogZ(mean, (values - mean).square().sum() / max(len(values), 1))

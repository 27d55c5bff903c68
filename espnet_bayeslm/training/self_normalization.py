"""Variance regularisation of ln Z (Chen et al. 2016), for scoring without the softmax."""

from __future__ import annotations

from typing import Dict, NamedTuple, Sequence, Tuple

import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.scoring.log_probs import log_probs_of_logits
from espnet_bayeslm.training.nll import TokenBatch


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
        """Averages over several draws."""
        means, variances = zip(*spreads, strict=True)
        return cls(torch.stack(means).mean(), torch.stack(variances).mean())

    def stats(self) -> Dict[str, torch.Tensor]:
        """Statistics for the report: mean and standard deviation."""
        return dict(lnz_mean=self.mean.detach(), lnz_std=self.variance.detach().sqrt())


def nll_and_log_z(
    model: ESPnetLanguageModel, batch: TokenBatch
) -> Tuple[torch.Tensor, torch.Tensor]:
    """-ln p and ln Z of each token of a batch that counts, both (N,)."""
    log_probs, log_z = log_probs_of_logits(
        batch.counted(model.lm(batch.inputs, None)[0]), batch.targets
    )
    return -log_probs, log_z


def spread(log_z: torch.Tensor) -> LogZ:
    """Mean and variance of ln Z over tokens, (N,)."""
    count = max(len(log_z), 1)
    mean = log_z.sum() / count
    return LogZ(mean, (log_z - mean).square().sum() / count)

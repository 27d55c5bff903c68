"""The cross-entropy of a large vocabulary, estimated from a few sampled tokens.

Importance-corrected sampled softmax (Bengio and Senecal 2008; Jean et al. 2015), with noise
tokens that the whole batch shares, as CUED-RNNLM has them (Chen et al. 2016).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from espnet_bayeslm.bayes.look_up import distinct_ids

# In place of -inf, whose gradient would not be a number where nothing else is left.
NEVER = -1e30


class Proposal:
    """The distribution of the noise tokens: each is drawn, or not, independently.

    The probability to be drawn is proportional to a token's weight (V,), but at most 1: the most
    frequent tokens are always there, and no draw is spent on one that is there already. On average
    `num_samples` tokens are drawn, at most as many as weights are above 0.

    Attributes:
        inclusion: The probability of each token to be drawn, double precision, (V,).
        log_inclusion: Logarithm of `inclusion`, (V,); 0 for a token that is never drawn.
    """

    def __init__(self, weights: torch.Tensor, num_samples: int):
        weights = weights.double()
        falling = weights.sort(descending=True).values
        rest = falling.flip(0).cumsum(0).flip(0)
        # token n of falling weight is certain if left * weight / rest, after n certain ones, is > 1
        left = num_samples - torch.arange(len(weights), device=weights.device)
        certain = int((left * falling > rest * (1 + 1e-12)).sum())
        factor = left[certain] / rest[certain]
        self.inclusion = (weights * factor).clamp(max=1.0)
        # as a target such a token is certain
        self.log_inclusion = torch.where(weights > 0, self.inclusion, 1.0).log()

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """Tokens of a draw, ascending, (C,), on average `num_samples` of them."""
        like = self.inclusion
        points = torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        return (points < like).nonzero().squeeze(1)


class SampledLoss(NamedTuple):
    """Estimates for each token of a batch from sampled tokens, in nats.

    Attributes:
        objective: The objective to minimise, (N,).
        nll: An estimate of -ln p, (N,).
        log_z: An estimate of ln Z = ln sum_v exp(logit_v), (N,).
    """

    objective: torch.Tensor
    nll: torch.Tensor
    log_z: torch.Tensor


def sampled_loss(
    outputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    targets: torch.Tensor,
    candidates: torch.Tensor,
    log_inclusion: torch.Tensor,
) -> SampledLoss:
    """Objective, NLL and ln Z of each token, from the logits of sampled tokens.

    The objective is -ln of the target's share among the target and the candidates, each logit less
    by ln of its inclusion probability; a candidate that is the token's own target does not count
    twice. It is least, in expectation over candidates drawn independently, where softmax(logits) is
    the distribution of the targets, and its gradient tends to the exact softmax's as candidates
    become certain. Its value is not an NLL: a rare target wins against the candidates more easily
    than against the vocabulary.

    `log_z` is ln of an unbiased estimate of Z, and so, as `nll`, on average too low, the less the
    more candidates there are. A call costs O(N C) products. Under autocast they are in its
    precision; log-sum-exp and gradients are in single precision or better.

    Args:
        outputs: Input of the output projection, (N, M).
        weight: (V, M).
        bias: (V,).
        targets: Token ids, (N,).
        candidates: Distinct token ids, ascending, (C,).
        log_inclusion: ln of the probability of each token to be a candidate, (V,).
    """
    device = outputs.device.type
    dtype = torch.promote_types(outputs.dtype, weight.dtype)
    exact = torch.promote_types(dtype, torch.float32)
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype
    with torch.autocast(device, enabled=False):
        distinct, which = distinct_ids(targets)
        used, count = torch.cat([candidates, distinct]), len(candidates)
        rows, biases = weight.index_select(0, used), bias.index_select(0, used).to(exact)
        x = outputs.to(low)
        # gathered before it is rounded, so that a frequent target's gradients add up exactly
        own = rows[count:].index_select(0, which).to(low)
        target = (x.to(exact) * own.to(exact)).sum(1) + biases[count:].index_select(0, which)
        if count:
            noise = (x @ rows[:count].to(low).t()).to(exact)
            noise = noise + (biases[:count] - log_inclusion[candidates].to(exact))
            column = torch.searchsorted(candidates, targets).clamp(max=count - 1)
            never = noise.new_full((), NEVER)
            own_column = torch.where(candidates[column] == targets, never, 0.0)
            noise = noise.scatter_add_(1, column.unsqueeze(1), own_column.unsqueeze(1))
            others = noise.logsumexp(1)
        else:
            others = torch.full_like(target, NEVER)
        corrected = target - log_inclusion[targets].to(exact)
        log_z = torch.logaddexp(others, target)
        return SampledLoss(torch.logaddexp(others, corrected) - corrected, log_z - target, log_z)

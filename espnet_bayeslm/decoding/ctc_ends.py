"""Ends that a recogniser's CTC rules out, so that no large LM is asked for them."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn


class CTCPrefix(NamedTuple):
    """Tokens of a hypothesis, as CTC has heard them (Watanabe et al. 2017, algorithm 2).

    Attributes:
        log_probs: Ln p of each token in each frame of the utterance, (T, V).
        tokens: The tokens.
        ends: Ln p of all paths of the first frames that have these tokens, and end in the last
            token or in a blank, (2, T).
        log_prob: Ln p of all paths that begin with these tokens.
    """

    log_probs: torch.Tensor
    tokens: Tuple[int, ...]
    ends: torch.Tensor
    log_prob: torch.Tensor

    @property
    def end_log_prob(self) -> float:
        """Ln p that no token follows."""
        return float(self.ends[:, -1].logsumexp(0) - self.log_prob)


class CTCEnds(nn.Module):
    """The output projection of a recogniser's CTC.

    Args:
        num_tokens: Number of tokens.
        num_features: Size of the encoder's output.
    """

    def __init__(self, num_tokens: int, num_features: int):
        super().__init__()
        self.projection = nn.Linear(num_features, num_tokens)

    def begin(self, encoded: torch.Tensor) -> CTCPrefix:
        """Hypothesis without tokens, of an encoder's output (T, D)."""
        log_probs = self.projection(encoded.to(self.projection.weight)).log_softmax(-1).double()
        blanks = log_probs[:, 0].cumsum(0)
        ends = torch.stack([torch.full_like(blanks, -torch.inf), blanks])
        return CTCPrefix(log_probs, (), ends, blanks.new_zeros(()))

    def after(
        self, prefixes: Sequence[CTCPrefix], tokens: Sequence[Optional[int]]
    ) -> List[CTCPrefix]:
        """Hypotheses of one utterance after one more token of each; None: no token more.

        The recursions over frames are sums of products, here with cumulative sums of logarithms.
        """
        ids = [token for token in tokens if token is not None]
        if len(ids) < len(tokens):
            heard = [*zip(prefixes, tokens, strict=True)]
            longer = [prefix for prefix, token in heard if token is not None]
            after = iter(self.after(longer, ids) if ids else ())
            return [prefix if token is None else next(after) for prefix, token in heard]
        log_probs = prefixes[0].log_probs
        last = torch.tensor([p.tokens[-1] if p.tokens else -1 for p in prefixes])
        new = torch.tensor(ids)
        ends = torch.stack([p.ends for p in prefixes]).to(log_probs)  # (N, 2, T)
        # a token that comes again needs a blank between
        again = (last == new).to(log_probs.device)
        before = torch.where(again[:, None], ends[:, 1], ends.logsumexp(1))
        start = torch.where(last < 0, 0.0, -torch.inf).to(before)
        before = torch.cat([start[:, None], before[:, :-1]], dim=1)  # of the frame before, (N, T)
        own = log_probs[:, new].T  # (N, T)
        in_token = _recursion(before, own)
        blanks = log_probs[:, 0].expand_as(own)
        none = torch.full_like(start, -torch.inf)[:, None]
        in_blank = _recursion(torch.cat([none, in_token[:, :-1]], dim=1), blanks)
        totals = (before + own).logsumexp(1)
        return [
            CTCPrefix(log_probs, (*p.tokens, token), torch.stack(pair), total)
            for p, token, pair, total in zip(
                prefixes, ids, zip(in_token, in_blank, strict=True), totals, strict=True
            )
        ]


def _recursion(before: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Ln x_t of x_t = (x_{t-1} + before_t) own_t, (N, T), from the logarithms of the others."""
    total = own.cumsum(1)
    shifted = torch.cat([torch.zeros_like(total[:, :1]), total[:, :-1]], dim=1)
    return total + (before - shifted).logcumsumexp(1)


def weights_of_recogniser(state: Mapping[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """Weights of `CTCEnds` from a recogniser's checkpoint; empty where it has no CTC."""
    names = {"projection.weight": "ctc.ctc_lo.weight", "projection.bias": "ctc.ctc_lo.bias"}
    return {own: state[name] for own, name in names.items() if name in state}

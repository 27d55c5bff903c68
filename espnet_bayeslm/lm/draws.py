"""Averaging over weight samples: a beam search reads the mean probability of K LMs."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from typing import Any, ContextManager, Dict, List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import Posterior
from espnet_bayeslm.bayes.posterior import MEANS
from espnet_bayeslm.kernels.contents import Contents
from espnet_bayeslm.lm.scoring import IncrementalLM, Step


class SampledLM(IncrementalLM):
    """An LM whose weights can be sampled; `batch_score` may average over K samples.

    The samples are numbers 0 to K - 1 of `sampled`, the same for every utterance: a score depends
    neither on the order of the utterances nor on the rest of a job. Rescoring with K samples gives
    the same score.
    """

    num_samples = 0
    _drawn: Optional[Tuple[Any, Contents, List[IncrementalLM]]] = None

    @property
    @abstractmethod
    def posterior(self) -> Posterior:
        """The posterior over the random weights."""

    @abstractmethod
    def sampled(self, index: int, *, seed: int = 0) -> ContextManager[None]:
        """Hold sample number `index` for all that is computed within."""

    @abstractmethod
    def has_draws(self) -> bool:
        """True if anything is random."""

    def batch_score(self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor) -> Step:
        """Score the next token; with `num_samples`, ln of the mean probability over samples.

        A state then holds one state of each sample.
        """
        if self.num_samples == 0 or not self.has_draws():
            return super().batch_score(ys, states, xs)
        draws = self._draws()
        columns = zip(*(state or (None,) * len(draws) for state in states), strict=True)
        scored = [lm.batch_score(ys, list(s), xs) for lm, s in zip(draws, columns, strict=True)]
        log_probs = torch.stack([log_probs for log_probs, _ in scored])
        mean = log_probs.logsumexp(0) - math.log(len(draws))
        return mean, list(zip(*(states for _, states in scored), strict=True))

    def _draws(self) -> List[IncrementalLM]:
        """K LMs, made anew where the weights have changed."""
        shared, random = self._weights()
        drawn_from = (self.num_samples, [id(tensor) for tensor in shared])
        if (
            self._drawn is None
            or self._drawn[0] != drawn_from
            or not self._drawn[1].are_those_of(random)
        ):
            draws = [fixed_copy(self, index) for index in range(self.num_samples)]
            self._drawn = (drawn_from, Contents(random), draws)
        return self._drawn[2]

    def _weights(self) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
        """Tensors that all samples share, and tensors that samples are made from."""
        tensors = (*self.parameters(), *self.buffers())
        drawn_from = {
            id(tensor)
            for block in self.posterior.blocks()
            for tensor in (block.whole, *block.kind.tensors(block))
        }
        random = [tensor for tensor in tensors if id(tensor) in drawn_from]
        return [tensor for tensor in tensors if id(tensor) not in drawn_from], random

    def __getstate__(self) -> Dict[str, Any]:
        """State of a copy: it makes its own samples."""
        return {name: value for name, value in self.__dict__.items() if name != "_drawn"}


@torch.no_grad()
def fixed_copy(lm: Any, index: int) -> Any:
    """A copy of an LM in evaluation mode that has sample number `index` for its weights.

    The copy runs at the cost of point estimates, and shares all that is not random with the LM.
    """
    with lm.sampled(index):
        memo = {id(tensor): tensor for tensor in (*lm.parameters(), *lm.buffers())}
        other = copy.deepcopy(lm, memo)
        other._posterior = Posterior(other)
        for owner, copied in zip(lm.modules(), other.modules(), strict=True):
            for name in vars(owner).get(MEANS, ()):
                setattr(copied, name, nn.Parameter(getattr(owner, name), requires_grad=False))
            vars(copied).pop(MEANS, None)
    other.num_samples = 0
    return other.eval()

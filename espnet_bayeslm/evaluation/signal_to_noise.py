"""Signal-to-noise ratio of random weights, and pruning by it.

|mean| / std says how much of a weight is left when its noise is looked at (Graves 2011; Blundell
et al. 2015); the median of a layer is what Xue et al. 2022 (IV-C) rank layers by.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

if TYPE_CHECKING:
    import torch

    from espnet_bayeslm.bayes import Block

PERCENTILES = (5, 25, 50, 75, 95)
# 20 bins a decade; the first and the last one hold whatever lies beyond them
BIN_EDGES = np.logspace(-4, 4, 161)


@dataclasses.dataclass(frozen=True)
class SnrSummary:
    """The signal-to-noise ratios of one location.

    Attributes:
        count: Random weights; for a latent variable, its values over all tokens.
        percentiles: The ratio at each of `PERCENTILES`.
        median_std_ratio: Median of std / std at the start of training (None: not known).
        histogram: Number of ratios in each bin of `BIN_EDGES`.
    """

    location: str
    count: int
    percentiles: Tuple[float, ...]
    median_std: float
    median_std_ratio: Optional[float]
    histogram: Tuple[int, ...]

    @property
    def median(self) -> float:
        """Median ratio."""
        return self.percentiles[PERCENTILES.index(50)]


def signal_to_noise(mean: torch.Tensor, std: torch.Tensor) -> np.ndarray:
    """|mean| / std of each element, flat, in float64."""
    return np.abs(_flat(mean)) / _flat(std)


def _flat(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().reshape(-1).cpu().numpy().astype(np.float64)


def summarize(location: str, moments: Sequence[Tuple[torch.Tensor, torch.Tensor]]) -> SnrSummary:
    """Figures of a location from (mean, std) of its weights, or of a latent variable's values."""
    snr = np.concatenate([signal_to_noise(mean, std) for mean, std in moments])
    # numpy, since torch.quantile refuses more than 16 million elements
    percentiles = np.percentile(snr, PERCENTILES)
    binned = np.clip(snr, BIN_EDGES[0], BIN_EDGES[-1])
    return SnrSummary(
        location,
        len(snr),
        tuple(map(float, percentiles)),
        float(np.median(np.concatenate([_flat(std) for _, std in moments]))),
        median_std_ratio=None,
        histogram=tuple(map(int, np.histogram(binned, BIN_EDGES)[0])),
    )


def summarize_weights(posteriors: Iterable[Block]) -> List[SnrSummary]:
    """Figures of each location, in the order in which the locations come."""
    by_location: Dict[str, List[Block]] = {}
    for posterior in posteriors:
        by_location.setdefault(posterior.location, []).append(posterior)
    summaries = []
    for location, members in by_location.items():
        summary = summarize(location, [(p.mean, p.std) for p in members])
        if not any(np.isnan(p.start_std) for p in members):
            ratios = np.concatenate([_flat(p.std) / p.start_std for p in members])
            summary = dataclasses.replace(summary, median_std_ratio=float(np.median(ratios)))
        summaries.append(summary)
    return summaries


# What a weight is worth, from its posterior's mean and std; the least goes first.
CRITERIA: Dict[str, Callable[["torch.Tensor", "torch.Tensor"], np.ndarray]] = {
    "snr": signal_to_noise,
    "magnitude": lambda mean, _: np.abs(_flat(mean)),
}


@dataclasses.dataclass(frozen=True)
class PruningStep:
    """An LM with some of its random weights at zero."""

    criterion: str
    share: float
    num_zeroed: int
    result: Any

    @property
    def perplexity(self) -> float:
        """Perplexity per word, OOVs included, of a result that `TextScores` summarised."""
        return float(self.result["perplexity"]["word"])


def zero_means(posteriors: Sequence[Block], indices: np.ndarray) -> None:
    """Set the posterior means of the weights that `indices` name to zero, in the LM itself."""
    import torch

    sizes = [posterior.mean.numel() for posterior in posteriors]
    chosen = np.zeros(sum(sizes), dtype=bool)
    chosen[indices] = True
    for posterior, mask in zip(posteriors, np.split(chosen, np.cumsum(sizes)[:-1]), strict=True):
        mean = posterior.mean.detach()
        mean.masked_fill_(torch.from_numpy(mask).reshape(mean.shape).to(mean.device), 0.0)


def prune_weights(
    posteriors: Sequence[Block], shares: Sequence[float], measure: Callable[[], Any]
) -> List[PruningStep]:
    """Measurements with ever more of an LM's posterior means at zero, the least worth first.

    For each criterion there is a step for each share. The LM is changed while this runs, and as it
    was afterwards.
    """
    steps = []
    originals = [posterior.mean.detach().clone() for posterior in posteriors]
    for criterion, worth in CRITERIA.items():
        values = np.concatenate([worth(p.mean, p.std) for p in posteriors])
        # equal weights keep their order: a larger share prunes all weights of a smaller one
        order = np.argsort(values, kind="stable")
        try:
            for share in shares:
                count = int(share * len(order) + 0.5)
                zero_means(posteriors, order[:count])
                steps.append(PruningStep(criterion, share, count, measure()))
        finally:
            for posterior, original in zip(posteriors, originals, strict=True):
                posterior.mean.detach().copy_(original)
    return steps

"""Statistics of an epoch: perplexities, ratios of standard deviations, and a line for people."""

from __future__ import annotations

import datetime
import math
import time
from typing import Any, Dict, List, Mapping, Sequence

import torch
from espnet2.train.reporter import SubReporter, aggregate, to_reported_value

from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.utils.log import LOG


def report_perplexity(reporter: SubReporter) -> Dict[str, float]:
    """Make an epoch's `ppl` exp of its NLL per token, or of its loss; return its statistics.

    The reporter would average the batches' perplexities, which is not the text's.
    """
    values = {
        k: float(aggregate(reporter.stats[k])) for k in ("nll", "loss", "kl") if k in reporter.stats
    }
    nll = values.get("nll", values.get("loss"))
    if nll is not None:
        values["ppl"] = math.exp(min(nll, 700.0))
    if "nll" in values:
        reporter.stats["ppl"] = [to_reported_value(values["ppl"], 1.0)] * len(reporter.stats["nll"])
    return values


def report_sigma(model: torch.nn.Module, *, epoch: int) -> List[float]:
    """Log the standard deviation of each location at the start and now; return the ratios.

    They are geometric means over its weights; for a latent output over the tokens and units of
    the last forward pass that computed its KL.
    """
    lm = getattr(getattr(model, "module", model), "lm", None)
    if not isinstance(lm, UncertainLM):
        return []
    sums: Dict[str, List[float]] = {}
    for block in lm.posterior.blocks():
        if not math.isnan(block.start_std):
            count = block.std.numel()
            found = (count * math.log(block.start_std), float(block.std.log().sum()), count)
            known = sums.get(block.location, [0.0, 0.0, 0.0])
            sums[block.location] = [a + b for a, b in zip(known, found, strict=True)]
    typical = {k: (math.exp(a / n), math.exp(b / n)) for k, (a, b, n) in sums.items()}
    for location, latent in lm.latents():
        if latent.typical_std is not None:
            typical[location] = (latent.init_std, latent.typical_std)
    for location, (start, now) in typical.items():
        LOG.info(f"Epoch {epoch}: {location}: sigma {start:.4g} -> {now:.4g} ({now / start:.2f})")
    return [now / start for start, now in typical.values()]


def valid_perplexities(stats: Mapping[int, Mapping[str, Any]]) -> Dict[int, float]:
    """{epoch: perplexity of the validation text}, from an ESPnet reporter's statistics."""
    return {
        # of ESPnet's own LMs there is the loss, ln of it
        epoch: float(valid["ppl"]) if "ppl" in valid else math.exp(min(float(valid["loss"]), 700))
        for epoch, valid in ((epoch, phases.get("valid")) for epoch, phases in stats.items())
        if valid
    }


class EpochLines:
    """A line for each epoch: its perplexities, and how long the training takes at most."""

    def __init__(self, max_epoch: int):
        self.max_epoch, self.begin = max_epoch, time.monotonic()
        self.train: Dict[str, float] = {}
        self.num_epochs, self.best = 0, math.inf

    def add(self, epoch: int, valid: Mapping[str, float], sigma: Sequence[float]) -> str:
        """Line of an epoch, after its statistics of training were put into `train`."""
        self.num_epochs += 1
        ppl = valid.get("ppl", math.nan)
        best = " (best so far)" if ppl < self.best else ""
        self.best = min(self.best, ppl)
        parts = [f"train ppl {perplexity_text(self.train['ppl'])}"] if "ppl" in self.train else []
        parts.append(f"valid ppl {perplexity_text(ppl)}{best}")
        if sigma and "kl" in self.train:
            parts.append(f"KL {self.train['kl']:.4f} nats/token")
        if sigma:
            ends = dict.fromkeys((f"{min(sigma):.2f}", f"{max(sigma):.2f}"))
            parts.append(f"sigma x {'-'.join(ends)} of its start")
        left = (time.monotonic() - self.begin) / self.num_epochs * (self.max_epoch - epoch)
        parts.append(f"{datetime.timedelta(seconds=round(left))} left at most")
        return f"epoch {epoch}/{self.max_epoch}: {', '.join(parts)}"

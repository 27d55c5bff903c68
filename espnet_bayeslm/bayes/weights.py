"""Random weights: what a kind of posterior over them says, and the Gaussian one."""

from __future__ import annotations

import logging
import math
from typing import Any, Callable, ClassVar, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes.draw import LayerDraw
from espnet_bayeslm.bayes.gaussian import draw_rows, draw_weights, kl_learned_prior, kl_weights
from espnet_bayeslm.bayes.kinds import Kind, Place, Weights, check_positive, register_kind
from espnet_bayeslm.bayes.posterior import RandomBlock, UncertainModule
from espnet_bayeslm.kernels import fast
from espnet_bayeslm.kernels.draw import Draw
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log_std import check_spread, check_start, clamp_log_std

# Of the Gaussian posterior's tensors
LOG_STD, PRIOR_MEAN, START_STD = "_log_std", "_prior_mean", "_start_std"
# What a standard deviation at the start can be relative to.
INIT_STD_UNITS = ("absolute", "weights", "prior")
# Prior variances that follow the posterior: one for a parameter, or one for each of its rows.
LEARNED = ("learn", "learn_rows")
# The least spread of weights that an initial standard deviation is relative to: biases may be 0.
MIN_SPREAD = 0.01


class WeightKind(Kind):
    """Weights are random: the parameter is their mean, and what else there is the kind's.

    A kind from elsewhere says what is drawn (`noise`, `draw_rows`), its `kl`, and, where it has
    tensors, `add`, `start` and `parameters`. A block is some rows of a layer's parameter.
    """

    needs = "weights"
    # what draws some rows of a table, in place of a draw of all; None: they are drawn together
    look_up: Optional[Callable[..., torch.Tensor]] = None

    def apply(self, place: Place) -> None:
        """Make all weights of a place random."""
        self.with_defaults(place.defaults).make_random(place.weights(), place.location)

    def make_random(self, weights: Sequence[Weights], location: str) -> None:
        """Make weights random that belong to a location."""
        self.check(location)
        for w in weights:
            more = {"rows": w.rows, "label": w.label, "is_new": w.is_new}
            w.layer.make_random(w.parameter, self, location=location, **more)

    def check(self, location: str) -> None:
        """Raise an InputError where an option is none, at a location."""

    def has_posterior_of(self, other: WeightKind) -> bool:
        """Whether the posterior, its start and its prior are those of another kind."""
        mine, its = ({n: k.options.get(n) for n in k.inherits} for k in (self, other))
        return self.draw_rows is other.draw_rows and mine == its

    def add(self, layer: UncertainModule, block: RandomBlock, prior_mean: torch.Tensor) -> None:
        """Give a layer the posterior's parameters and buffers, named from `block.key`."""

    def start(self, layer: UncertainModule, block: RandomBlock) -> None:
        """Set them to their start, for the present means."""

    def start_if_untrained(self, layer: UncertainModule, block: RandomBlock) -> None:
        """Set what training has not changed to its start: that may depend on the means."""

    def set_prior_mean(
        self, layer: UncertainModule, block: RandomBlock, mean: torch.Tensor
    ) -> None:
        """Take the prior's mean, shaped as the block's rows."""

    def parameters(self, layer: UncertainModule, block: RandomBlock) -> List[torch.Tensor]:
        """The parameters that the posterior has besides its mean."""
        return []

    def std(self, layer: UncertainModule, block: RandomBlock) -> torch.Tensor:
        """The standard deviation of each weight, shaped as the block's rows."""
        raise NotImplementedError

    def start_std(self, layer: UncertainModule, block: RandomBlock) -> float:
        """The standard deviation at the start; nan where it is not known."""
        return math.nan

    def kl(self, layer: UncertainModule, block: RandomBlock) -> torch.Tensor:
        """KL(posterior || prior) summed over the block, in nats, ()."""
        raise NotImplementedError

    def noise(
        self, layer: UncertainModule, block: RandomBlock, generator: torch.Generator
    ) -> torch.Tensor:
        """What a draw needs besides parameters, shaped as the block's rows."""
        mean = block.mean(layer)
        return torch.empty_like(mean, requires_grad=False).normal_(generator=generator)

    @staticmethod
    def draw_rows(
        layer: Any, value: torch.Tensor, blocks: Sequence[RandomBlock], draw: LayerDraw
    ) -> torch.Tensor:
        """A parameter, some of whose rows are drawn.

        Args:
            layer: The layer.
            value: The parameter, or what is drawn of it by others.
            blocks: Blocks of that parameter, rows ascending.
            draw: Their noise; it takes their KL where that is wanted and costs little here.
        """
        raise NotImplementedError


def _check_one_of(
    valid: Sequence[str], value: Any, name: str, location: str, *, or_else: str = ""
) -> None:
    if value not in valid:
        raise InputError(
            f"{name} of {location}: valid are {or_else}{', '.join(valid)}, got {value!r}"
        )


@register_kind
class Bayes(WeightKind):
    """Weights have a Gaussian posterior, each by itself, and a Gaussian prior (Eq. 19-24).

    Their standard deviations are kept as logarithms: `{block}_log_std` (parameter),
    `{block}_prior_mean` and `{block}_start_std` (buffers). With `prior_variance: learn` or
    `learn_rows` the prior's variance is at each step the one that makes the KL least (of a
    parameter, or of each of its rows): there is nothing to tune.
    """

    name = "bayes"
    option_names: ClassVar[Tuple[str, ...]] = (
        "init_std",
        "init_std_unit",
        "prior_variance",
    )
    inherits = option_names
    colour = "tab:blue"

    def __init__(self, **options: Any):
        # older configurations say how training shared its noise; the posterior is the same
        if options.pop("noise", "shared") != "shared":
            logging.warning("noise is no option any more: each forward pass has one sample")
        super().__init__(**options)

    def check(self, location: str) -> None:
        """Raise an InputError where a standard deviation or a variance is none, or its unit."""
        check_positive(self.options.get("init_std"), "init_std", location)
        variance, place = self.options.get("prior_variance"), ("prior_variance", location)
        if isinstance(variance, str):
            _check_one_of(LEARNED, variance, *place, or_else="a number above 0 or one of ")
        else:
            check_positive(variance, *place)
        unit = self.options.setdefault("init_std_unit", INIT_STD_UNITS[0])
        _check_one_of(INIT_STD_UNITS, unit, "init_std_unit", location)

    @classmethod
    def owns(cls, key: str) -> bool:
        """See `Kind.owns`."""
        return key.endswith((LOG_STD, PRIOR_MEAN, START_STD))

    @classmethod
    def may_lack(cls, key: str) -> bool:
        """See `Kind.may_lack`: the start was not always stored."""
        return key.endswith(START_STD)

    @property
    def learns_prior(self) -> bool:
        """Whether the prior's variances follow the posterior."""
        return self.options["prior_variance"] in LEARNED

    @property
    def learns_rows(self) -> bool:
        """Whether each row has a variance of its own then."""
        return self.options["prior_variance"] == "learn_rows"

    @property
    def prior_std(self) -> float:
        """The prior's standard deviation, where it is given."""
        return math.sqrt(self.options["prior_variance"])

    def log_std(self, layer: UncertainModule, block: RandomBlock) -> torch.Tensor:
        """Logarithms of the standard deviations within their range, shaped as the block's rows."""
        return clamp_log_std(getattr(layer, block.key + LOG_STD))

    def add(self, layer: UncertainModule, block: RandomBlock, prior_mean: torch.Tensor) -> None:
        """See `WeightKind.add`."""
        layer.register_parameter(block.key + LOG_STD, nn.Parameter(torch.empty_like(prior_mean)))
        layer.register_buffer(block.key + PRIOR_MEAN, prior_mean)
        layer.register_buffer(block.key + START_STD, prior_mean.new_zeros(()))

    def start(self, layer: UncertainModule, block: RandomBlock) -> None:
        """See `WeightKind.start`."""
        std = self.options["init_std"] * self._unit(layer, block)
        check_start(std, block.location)
        getattr(layer, block.key + START_STD).fill_(std)
        nn.init.constant_(getattr(layer, block.key + LOG_STD), math.log(std))

    def _unit(self, layer: UncertainModule, block: RandomBlock) -> float:
        """Unit of `init_std`, as `init_std_unit` names it.

        Raises:
            InputError: It is the spread of weights that are not those of a trained LM.
        """
        unit, mean = self.options["init_std_unit"], block.mean(layer).detach()
        if unit == "prior" and not self.learns_prior:
            return self.prior_std
        if unit not in ("weights", "prior"):
            return 1.0
        if unit == "weights":
            spread = float(mean.std(correction=0))
        else:
            away = mean - getattr(layer, block.key + PRIOR_MEAN)
            spread = float(away.square().mean().sqrt())
        check_spread(spread, block.location)
        return max(spread, MIN_SPREAD)

    def start_if_untrained(self, layer: UncertainModule, block: RandomBlock) -> None:
        """See `WeightKind.start_if_untrained`."""
        log_std = getattr(layer, block.key + LOG_STD).detach()
        start = getattr(layer, block.key + START_STD).log()
        if torch.allclose(log_std, start, rtol=0, atol=1e-6):
            self.start(layer, block)

    def set_prior_mean(
        self, layer: UncertainModule, block: RandomBlock, mean: torch.Tensor
    ) -> None:
        """See `WeightKind.set_prior_mean`."""
        getattr(layer, block.key + PRIOR_MEAN).copy_(mean)

    def parameters(self, layer: UncertainModule, block: RandomBlock) -> List[torch.Tensor]:
        """See `WeightKind.parameters`."""
        return [getattr(layer, block.key + LOG_STD)]

    def std(self, layer: UncertainModule, block: RandomBlock) -> torch.Tensor:
        """See `WeightKind.std`."""
        return self.log_std(layer, block).detach().exp()

    def start_std(self, layer: UncertainModule, block: RandomBlock) -> float:
        """See `WeightKind.start_std`."""
        return float(getattr(layer, block.key + START_STD))

    def kl(self, layer: UncertainModule, block: RandomBlock) -> torch.Tensor:
        """KL(posterior || prior) summed over the block (Eq. 23), in nats, ()."""
        names = (block.key + LOG_STD, block.key + PRIOR_MEAN)
        log_std, prior_mean = (getattr(layer, name) for name in names)
        if self.learns_prior:
            rows = self.learns_rows
            return kl_learned_prior(block.mean(layer), log_std, prior_mean, by_row=rows)
        return fast(kl_weights)(block.mean(layer), log_std, prior_mean, self.prior_std)

    @staticmethod
    def draw_rows(
        layer: Any, value: torch.Tensor, blocks: Sequence[RandomBlock], draw: LayerDraw
    ) -> torch.Tensor:
        """Mean + standard deviation * noise (Eq. 22), see `WeightKind.draw_rows`."""
        wants_kl = draw.kl is not None and value.dtype in (torch.float32, torch.float64)
        draws = [
            Draw(
                *(block.rows or (0, len(value))),
                getattr(layer, block.key + LOG_STD),
                draw.noise[block.key],
                getattr(layer, block.key + PRIOR_MEAN)
                if wants_kl and block.key not in draw.kl and not block.kind.learns_prior  # type: ignore[operator]
                else None,
                1.0 if block.kind.learns_prior else block.kind.prior_std,
            )
            for block in blocks
        ]
        value, terms = fast(draw_rows)(value, draws)
        for block, rows, kl in zip(blocks, draws, terms, strict=True):
            if draw.kl is not None and rows.prior_mean is not None:
                draw.kl[block.key] = kl
        return value

    def look_up(
        self,
        layer: Any,
        block: RandomBlock,
        ids: torch.Tensor,
        mean: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """A draw of the rows `ids` (N,) of a table, whose means are (N, M)."""
        log_std = F.embedding(ids, getattr(layer, block.key + LOG_STD), layer.padding_idx)
        noise = torch.empty_like(mean, requires_grad=False).normal_(generator=generator)
        return draw_weights(mean, log_std, noise)

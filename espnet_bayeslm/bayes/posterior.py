"""Mean-field Gaussian posterior over parameters of an ordinary torch layer."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.block import (
    START_SUFFIX,
    RandomBlock,
    WeightPosterior,
    is_posterior_key,
)
from espnet_bayeslm.bayes.gaussian import draw_rows, kl_weights
from espnet_bayeslm.bayes.loading import adapt_paths, drop_posterior
from espnet_bayeslm.bayes.noise import refuse_recomputation
from espnet_bayeslm.bayes.paths import PathModule, Rows
from espnet_bayeslm.kernels import fast
from espnet_bayeslm.kernels.draw import Draw
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log_std import check_start, clamp_log_std


class UncertainModule(PathModule):
    """A torch layer, some of whose parameters have a Gaussian posterior.

    Mixed in before the layer's own class. The parameter itself is the posterior's mean,
    under its usual name, so a point-estimate checkpoint loads; the rest is extra. Without
    `make_random` the layer is the plain one.

    Attributes:
        noise: The noise of the draw that the next forward pass uses, by blocks; none: the mean.
        drawn_kl: Where it is not None, a forward pass leaves the KL of what it draws here, which
            costs little then, and `kl` takes it from here.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.random_blocks: List[RandomBlock] = []
        self.noise: Dict[str, torch.Tensor] = {}
        self.drawn_kl: Optional[Dict[str, torch.Tensor]] = None
        self.register_load_state_dict_pre_hook(adapt_paths)
        self.register_load_state_dict_pre_hook(drop_posterior)

    def make_random(
        self,
        parameter: str,
        *,
        location: str,
        init_std: float,
        prior_variance: float,
        init_std_unit: str = "absolute",
        rows: Rows = None,
        label: str = "",
    ) -> None:
        """Give a parameter, or some of its rows, a posterior and a prior.

        The prior's mean is zero; where a point-estimate LM has no such parameter, it is the
        value the parameter starts with. Weights that another location has made random stay its.

        Args:
            parameter: Its name in this layer.
            location: The location it belongs to.
            init_std: The posterior's standard deviation at the start.
            prior_variance: The prior's variance.
            init_std_unit: What `init_std` is relative to, see `RandomBlock`.
            rows: First row and the one after the last; default all.
            label: Told apart by this where a parameter has several blocks.

        Raises:
            InputError: Another location has made some of these weights random with other options.
        """
        block = RandomBlock(
            location,
            parameter,
            f"{parameter}_{label}" if label else parameter,
            rows,
            init_std,
            init_std_unit,
            math.sqrt(prior_variance),
        )
        runs = self._free_rows(block)
        whole = runs == [block.rows or (0, len(getattr(self, parameter)))]
        for run in runs:
            # a run's first row tells it from the others
            piece = dataclasses.replace(block, rows=run, key=f"{block.key}_{run[0]}")
            self._add_block(block if whole else piece)

    def _free_rows(self, block: RandomBlock) -> List[Tuple[int, int]]:
        """Return the runs of the block's rows that are not random yet."""
        size = len(getattr(self, block.parameter))
        first, last = block.rows or (0, size)
        others = [other for other in self.random_blocks if other.parameter == block.parameter]
        free = []
        for other in sorted(others, key=lambda other: other.rows or (0, size)):
            begin, end = other.rows or (0, size)
            if end <= first or last <= begin:
                continue
            if not other.has_options_of(block):
                raise InputError(
                    f"{block.location} and {other.location} make the same weights random,"
                    " with different options",
                    remedy="Give both the same init_std, init_std_unit and prior_variance.",
                )
            free.append((first, begin))
            first = end
        return [(begin, end) for begin, end in (*free, (first, last)) if begin < end]

    def _add_block(self, block: RandomBlock) -> None:
        """Register a block's standard deviations and its prior."""
        mean = block.select(getattr(self, block.parameter).detach())
        kept = is_posterior_key(self.source(block.parameter)[0])
        prior_mean = mean.clone() if kept else torch.zeros_like(mean)
        self.register_parameter(f"{block.key}_log_std", nn.Parameter(torch.empty_like(mean)))
        self.register_buffer(f"{block.key}_prior_mean", prior_mean)
        self.register_buffer(f"{block.key}{START_SUFFIX}", mean.new_zeros(()))
        self.random_blocks.append(block)
        self._start(block)

    def _start(self, block: RandomBlock) -> None:
        """Set the block's standard deviations to their start, for its present means."""
        std = block.start_std(block.select(getattr(self, block.parameter).detach()))
        check_start(std, block.location)
        getattr(self, f"{block.key}{START_SUFFIX}").fill_(std)
        nn.init.constant_(getattr(self, f"{block.key}_log_std"), math.log(std))

    def reset_posterior(self) -> None:
        """Set every standard deviation to its start."""
        for block in self.random_blocks:
            self._start(block)

    def start_posterior(self) -> None:
        """Set the standard deviations that training has not changed to their start.

        After a checkpoint was loaded: the start may be relative to the weights' spread.
        """
        for block in self.random_blocks:
            log_std = getattr(self, f"{block.key}_log_std").detach()
            if torch.allclose(log_std, self.start_std(block).log(), rtol=0, atol=1e-6):
                self._start(block)

    def start_std(self, block: RandomBlock) -> torch.Tensor:
        """Return the standard deviation that the block had at the start, ()."""
        return getattr(self, f"{block.key}{START_SUFFIX}")

    def posterior(self, block: RandomBlock, name: str) -> WeightPosterior:
        """Return the block's posterior; `name` is the state_dict's of its parameter."""
        return WeightPosterior(
            block.location,
            name,
            block.select(getattr(self, block.parameter).detach()),
            self.log_std(block).detach().exp(),
            float(self.start_std(block)),
        )

    def block_size(self, block: RandomBlock) -> int:
        """Return the block's number of random weights."""
        return getattr(self, f"{block.key}_log_std").numel()

    def log_std(self, block: RandomBlock) -> torch.Tensor:
        """Return the block's clamped log standard deviations, shaped as its rows."""
        return clamp_log_std(getattr(self, f"{block.key}_log_std"))

    def draw(self, generator: torch.Generator, *, hold: bool = False) -> None:
        """Draw the noise that the next forward pass, or with `hold` all, will use."""
        self.noise = {
            block.key: torch.empty_like(
                getattr(self, f"{block.key}_log_std"), requires_grad=False
            ).normal_(generator=generator)
            for block in self.random_blocks
        }

    def use_mean(self) -> None:
        """Make the next forward passes use the posterior mean."""
        self.noise = {}

    def value(self, parameter: str) -> torch.Tensor:
        """Return the parameter as the forward pass sees it: its mean, or the draw."""
        mean = getattr(self, parameter)
        if self.training and self.random_blocks:
            refuse_recomputation()
        blocks = [
            block
            for block in self.random_blocks
            if block.parameter == parameter and block.key in self.noise
        ]
        if not blocks:
            return mean
        blocks.sort(key=lambda block: block.rows or (0, len(mean)))
        draws = [self._draw_of(block, mean) for block in blocks]
        value, terms = fast(draw_rows)(mean, draws)
        for block, draw, kl in zip(blocks, draws, terms, strict=True):
            if self.drawn_kl is not None and draw.prior_mean is not None:
                self.drawn_kl[block.key] = kl
        return value

    def _draw_of(self, block: RandomBlock, mean: torch.Tensor) -> Draw:
        """Return what is drawn of a block, with its KL where that is wanted."""
        precise = mean.dtype in (torch.float32, torch.float64)
        wants_kl = self.drawn_kl is not None and block.key not in self.drawn_kl and precise
        return Draw(
            *(block.rows or (0, len(mean))),
            getattr(self, f"{block.key}_log_std"),
            self.noise[block.key],
            getattr(self, f"{block.key}_prior_mean") if wants_kl else None,
            block.prior_std,
        )

    def kl(self) -> torch.Tensor:
        """Return KL(posterior || prior) summed over the layer's random weights, in nats, ()."""
        terms = [self.block_kl(block) for block in self.random_blocks]
        return torch.stack(terms).sum()

    def block_kl(self, block: RandomBlock) -> torch.Tensor:
        """Return the block's KL(posterior || prior) in nats, ()."""
        if self.drawn_kl is not None and block.key in self.drawn_kl:
            return self.drawn_kl.pop(block.key)
        return fast(kl_weights)(
            block.select(getattr(self, block.parameter)),
            getattr(self, f"{block.key}_log_std"),
            getattr(self, f"{block.key}_prior_mean"),
            block.prior_std,
        )


@contextlib.contextmanager
def kl_of_draws(model: nn.Module) -> Iterator[None]:
    """Make a model's draws within compute the weights' KL in the same pass, for `kl` to take."""
    modules = [module for module in model.modules() if isinstance(module, UncertainModule)]
    for module in modules:
        module.drawn_kl = {}
    try:
        yield
    finally:
        for module in modules:
            module.drawn_kl = None

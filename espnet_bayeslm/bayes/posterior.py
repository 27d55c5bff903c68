"""Posteriors over parameters of an ordinary torch layer."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Dict, Iterator, List, Tuple

import torch

from espnet_bayeslm.bayes.draw import LayerDraw, RandomLayer
from espnet_bayeslm.bayes.kinds import Rows, is_posterior_key, select_rows
from espnet_bayeslm.bayes.noise import refuse_recomputation
from espnet_bayeslm.utils.errors import InputError


@dataclasses.dataclass(frozen=True)
class RandomBlock:
    """Rows of a parameter that are random.

    Attributes:
        location: The location they belong to, as in the configuration.
        parameter: The parameter's name, which holds the posterior mean.
        key: What its posterior's names begin with (`KEY_log_std`, `KEY_prior_mean`).
        rows: First row and the one after the last (None: all).
        kind: The `WeightKind` that their posterior is of.
    """

    location: str
    parameter: str
    key: str
    rows: Rows
    kind: Any

    def select(self, tensor: torch.Tensor) -> torch.Tensor:
        """The block's rows of a tensor shaped as the parameter."""
        return select_rows(tensor, self.rows)

    def mean(self, layer: torch.nn.Module) -> torch.Tensor:
        """The posterior means, a part of the layer's parameter."""
        return self.select(getattr(layer, self.parameter))


def drop_posterior(
    module: torch.nn.Module, state: Dict[str, Any], prefix: str, *_others: Any
) -> List[str]:
    """Take what a module without that posterior has no place for out of a checkpoint; the keys."""
    own = {prefix + key for key in module.state_dict()}
    extra = [k for k in state if k.startswith(prefix) and k not in own and is_posterior_key(k)]
    for key in extra:
        del state[key]
    return extra


@dataclasses.dataclass(frozen=True)
class WeightPosterior:
    """Some weights of an LM and their posterior.

    Attributes:
        location: The location they belong to.
        name: The state_dict's name of the parameter that holds the mean.
        mean: Shares its storage with the parameter: writing to it changes the LM.
        std: Standard deviations, shaped as the mean.
        start_std: The standard deviation at the start of training; nan where it is not known.
    """

    location: str
    name: str
    mean: torch.Tensor
    std: torch.Tensor
    start_std: float


class UncertainModule(RandomLayer):
    """A torch layer, some of whose parameters have a posterior.

    Mixed in before the layer's own class. The parameter itself is the posterior's mean,
    under its usual name, so a point-estimate checkpoint loads; the rest is extra. Without
    `make_random` the layer is the plain one.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.random_blocks: List[RandomBlock] = []
        # where ESPnet's --init_param loads a part of an LM, not the LM
        self.register_load_state_dict_pre_hook(drop_posterior)

    def is_random(self) -> bool:
        """Whether any of its weights are."""
        return bool(self.random_blocks)

    def make_random(
        self,
        parameter: str,
        kind: Any,
        *,
        location: str,
        rows: Rows = None,
        label: str = "",
        is_new: bool = False,
    ) -> None:
        """Give a parameter, or some of its rows, a posterior and a prior.

        The prior's mean is zero; where a point-estimate LM has no such parameter, it is the
        value the parameter starts with. Weights that another location has made random stay its.

        Args:
            parameter: Its name in this layer.
            kind: The `WeightKind` that the posterior is of.
            location: The location it belongs to.
            rows: First row and the one after the last; default all.
            label: Told apart by this where a parameter has several blocks.
            is_new: Whether a point-estimate LM has no such parameter.

        Raises:
            InputError: Another location has made some of these weights random with other options.
        """
        key = f"{parameter}_{label}" if label else parameter
        block = RandomBlock(location, parameter, key, rows, kind)
        runs = self._free_rows(block)
        whole = runs == [block.rows or (0, len(getattr(self, parameter)))]
        for run in runs:
            # a run's first row tells it from the others
            piece = dataclasses.replace(block, rows=run, key=f"{block.key}_{run[0]}")
            piece = block if whole else piece
            mean = piece.mean(self).detach()
            kind.add(self, piece, mean.clone() if is_new else torch.zeros_like(mean))
            self.random_blocks.append(piece)
            kind.start(self, piece)

    def _free_rows(self, block: RandomBlock) -> List[Tuple[int, int]]:
        """Runs of the block's rows that are not random yet."""
        size = len(getattr(self, block.parameter))
        first, last = block.rows or (0, size)
        others = [other for other in self.random_blocks if other.parameter == block.parameter]
        free = []
        for other in sorted(others, key=lambda other: other.rows or (0, size)):
            begin, end = other.rows or (0, size)
            if end <= first or last <= begin:
                continue
            if not other.kind.has_posterior_of(block.kind):
                raise InputError(
                    f"{block.location} and {other.location} make the same weights random,"
                    " with different options",
                    remedy=f"Give both the same {', '.join(block.kind.inherits) or 'kind'}.",
                )
            free.append((first, begin))
            first = end
        return [(begin, end) for begin, end in (*free, (first, last)) if begin < end]

    def reset(self) -> None:
        """Set every posterior to its start."""
        for block in self.random_blocks:
            block.kind.start(self, block)

    def posterior(self, block: RandomBlock, name: str) -> WeightPosterior:
        """The block's posterior; `name` is the state_dict's of its parameter."""
        std, start = block.kind.std(self, block), block.kind.start_std(self, block)
        return WeightPosterior(block.location, name, block.mean(self).detach(), std, start)

    def parameter_groups(self) -> Iterator[Tuple[str, List[torch.Tensor]]]:
        """Yield (group for the optimizer, parameters) of the posteriors."""
        for block in self.random_blocks:
            yield block.kind.group, block.kind.parameters(self, block)

    def make_noise(self, draw: LayerDraw, generator: torch.Generator, *, hold: bool) -> None:
        """Draw the noise of all random weights."""
        for block in self.random_blocks:
            draw.noise[block.key] = block.kind.noise(self, block, generator)

    def _refuse_recomputation(self) -> None:
        if self.training and self.random_blocks:
            refuse_recomputation()

    @property
    def is_drawn(self) -> bool:
        """Whether the forward pass uses a draw of weights, not their mean."""
        self._refuse_recomputation()
        return self.draw is not None and bool(self.draw.noise)

    def value(self, parameter: str) -> torch.Tensor:
        """The parameter as the forward pass sees it: its mean, or the draw."""
        return self.drawn_value(parameter)

    def drawn_value(self, parameter: str) -> torch.Tensor:
        """The mean of a parameter of this layer, or what is drawn of it."""
        value = getattr(self, parameter)
        self._refuse_recomputation()
        if self.draw is None:
            return value
        drawn = self.draw.noise
        blocks = [b for b in self.random_blocks if b.parameter == parameter and b.key in drawn]
        blocks.sort(key=lambda block: block.rows or (0, 0))
        for draw_rows, group in itertools.groupby(blocks, key=lambda block: block.kind.draw_rows):
            value = draw_rows(self, value, list(group), self.draw)
        return value

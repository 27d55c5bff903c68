"""What all our LMs share: locations, KL, draws, and loading of other LMs' checkpoints."""

from __future__ import annotations

import contextlib
import logging
import math
from abc import abstractmethod
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from espnet2.lm.abs_model import AbsLM
from torch import nn

from espnet_bayeslm.bayes import (
    Kind,
    Location,
    RandomBlock,
    UncertainModule,
    noise_generator,
)
from espnet_bayeslm.bayes.posterior import NOISE_STEP, drop_posterior, is_posterior_key
from espnet_bayeslm.utils.errors import InputError


def process_rank() -> int:
    """Return this process's rank, 0 where training is not distributed."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_initialized() else 0


class UncertainLM(AbsLM):
    """An ESPnet LM, some of whose locations are random; without any, a point-estimate LM.

    While training, each forward pass draws once; in `eval()` mode the posterior mean is used
    (Eq. 36, Xue et al. 2022), or the draw that `sampled` holds.
    """

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        self.holds_draw = False
        self.register_load_state_dict_pre_hook(_adapt_checkpoint)

    def _make_random(
        self, kinds: Mapping[Location, Kind], apply: Callable[..., None], **defaults: float
    ) -> None:
        """Make each place random by `apply(place, **posterior)` and log what was done."""
        if not kinds:
            return
        self.register_buffer(NOISE_STEP, torch.zeros((), dtype=torch.long))
        for place, kind in kinds.items():
            posterior = {**defaults, **kind.options}
            check_positive(posterior, place)
            apply(place, location=str(place), **posterior)
        for name, count in self.location_sizes().items():
            logging.info(f"Uncertain location {name}: {count} random weights")

    def _uncertain_modules(self) -> Iterator[Tuple[str, UncertainModule]]:
        """Yield (name, layer) of the layers with random weights, each layer once."""
        for name, module in self.named_modules():
            if isinstance(module, UncertainModule) and module.random_blocks:
                yield name, module

    def random_blocks(self) -> Iterator[Tuple[str, UncertainModule, RandomBlock]]:
        """Yield (name of the layer, layer, block) of every random block."""
        for name, module in self._uncertain_modules():
            for block in module.random_blocks:
                yield name, module, block

    def location_sizes(self) -> Dict[str, int]:
        """Return how many random weights each location has."""
        sizes: Dict[str, int] = {}
        for _, module, block in self.random_blocks():
            sizes[block.location] = sizes.get(block.location, 0) + module.block_size(block)
        return sizes

    def locations(self) -> List[str]:
        """Return the random locations, as `POSITION@LAYER`."""
        return list(self.location_sizes())

    def kl(self) -> torch.Tensor:
        """Return KL(posterior || prior) summed over all random weights, in nats, ()."""
        terms = [module.kl() for _, module in self._uncertain_modules()]
        if not terms:
            return next(self.parameters()).new_zeros(())
        return torch.stack(terms).sum()

    def mean_kl(self) -> torch.Tensor:
        """Return the sum over parameters of their weights' mean KL, in nats, ().

        This is what the authors' release has in place of the KL (`kl_scale: release`).
        """
        terms = [m.block_kl(block) / m.block_size(block) for _, m, block in self.random_blocks()]
        return torch.stack(terms).sum() if terms else self.kl()

    def reset_posterior(self) -> None:
        """Set every standard deviation to its start."""
        for _, module in self._uncertain_modules():
            module.reset_posterior()

    def set_prior_means(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the prior's means from the weights of another LM of this architecture.

        Args:
            state: That LM's state_dict.

        Raises:
            InputError: It lacks a weight that is random here, or has it in another shape.
        """
        for name, module, block in self.random_blocks():
            key = f"{name}.{block.parameter}"
            expected = tuple(getattr(module, block.parameter).shape)
            found = tuple(state[key].shape) if key in state else "nothing"
            if found != expected:
                raise InputError(
                    f"prior for {block.location}: expected {key} of shape {expected}, got {found}",
                    remedy="The prior must be an LM of the same architecture and vocabulary.",
                )
            getattr(module, f"{block.key}_prior_mean").copy_(block.select(state[key]))

    def _draw(self, generator: torch.Generator) -> None:
        """Draw all random weights once."""
        for _, module in self._uncertain_modules():
            module.draw(generator)

    def _use_mean(self) -> None:
        """Use the posterior mean from now on."""
        for _, module in self._uncertain_modules():
            module.use_mean()

    def _generator(self, step: int) -> torch.Generator:
        """Return the noise of draw number `step` in this process."""
        # A replica of torch's DataParallel has buffers, and no parameters.
        device = self.noise_step.device
        return noise_generator(torch.initial_seed(), process_rank(), step, device=device)

    def _prepare(self) -> None:
        """Before a forward pass: a new draw in training, the mean otherwise."""
        if self.holds_draw:
            return
        if self.training and hasattr(self, NOISE_STEP):
            self._draw(self._generator(int(self.noise_step)))
            self.noise_step += 1
        else:
            self._use_mean()

    @contextlib.contextmanager
    def sampled(self, index: int, *, seed: int = 0) -> Iterator[None]:
        """Hold draw number `index` for all that is computed within, whatever the mode."""
        device = next(self.parameters()).device
        self._draw(noise_generator(seed, 0, index, device=device))
        self.holds_draw = True
        try:
            yield
        finally:
            self.holds_draw = False
            self._use_mean()

    def forward(self, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Return logits and the state after the last token.

        Args:
            input: Token ids, (B, L).
            hidden: The state that an earlier call returned, or None.

        Returns:
            Logits (B, L, vocab_size); the new state.
        """
        self._prepare()
        return self.compute(input, hidden)

    @abstractmethod
    def compute(self, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, Any]:
        """`forward` with the weights as they are now (mean or draw)."""

    @abstractmethod
    def stack_states(self, states: List[Any]) -> Any:
        """Return the batch's state from the hypotheses' states."""

    @abstractmethod
    def split_state(self, state: Any) -> List[Any]:
        """Return the hypotheses' states from the batch's state."""

    @abstractmethod
    def num_consumed(self, state: Any) -> Optional[int]:
        """Return how many tokens a hypothesis' state has seen; None: all but the last."""

    def score(self, y: torch.Tensor, state: Any, x: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        """Return ln p of each next token (vocab_size,) after the prefix y (L,), and the state."""
        log_probs, states = self.batch_score(y.unsqueeze(0), [state], x)
        return log_probs.squeeze(0), states[0]

    def batch_score(
        self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor
    ) -> Tuple[torch.Tensor, List[Any]]:
        """Score the next token of each hypothesis, never with a new draw.

        Args:
            ys: Prefixes that begin with <sos/eos>, (B, L).
            states: Their states, or None at the start.
            xs: Encoder output (not used).

        Returns:
            ln p, (B, vocab_size); the new states.
        """
        if not self.holds_draw:
            self._use_mean()
        if states[0] is None:
            tokens, state = ys, None
        else:
            consumed = self.num_consumed(states[0])
            tokens = ys[:, -1:] if consumed is None else ys[:, consumed:]
            state = self.stack_states(states)
        logits, state = self.compute(tokens, state)
        return logits[:, -1].log_softmax(dim=-1), self.split_state(state)


def check_positive(options: Mapping[str, float], place: Location) -> None:
    """Raise an InputError where a standard deviation or a variance is none."""
    for name, value in options.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise InputError(f"{name} of {place}: expected a number above 0, got {value!r}")


def _shared(names: List[str]) -> str:
    """Return a few of the names, for a log line."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _check_tied(module: nn.Module, state: Mapping[str, Any], prefix: str) -> None:
    """Raise an InputError where a checkpoint has two tables for what is one tensor here."""
    first: Dict[int, str] = {}
    for key, value in module.state_dict(keep_vars=True).items():
        other = first.setdefault(id(value), key)
        if other != key and not torch.equal(state[prefix + other], state[prefix + key]):
            raise InputError(
                f"{other} and {key} differ in the checkpoint, and are one tensor in this LM",
                remedy="Set tie_weights: false.",
            )


def _adapt_checkpoint(
    module: nn.Module, state: Dict[str, Any], prefix: str, metadata, strict, *_lists
) -> None:
    """Fit a checkpoint to this LM's locations, and say in the log what did not match.

    Means have the names of point-estimate weights, so only what belongs to the posterior can
    differ: it is left out, or kept at its start. Anything else missing is another architecture.

    Raises:
        InputError: The checkpoint lacks weights of this LM.
    """
    own = {prefix + key: value for key, value in module.state_dict().items()}
    missing = [key for key in own if key not in state]
    weights = [key for key in missing if not is_posterior_key(key)]
    if weights:
        raise InputError(
            f"the checkpoint is of another architecture: {len(weights)} of the LM's"
            f" {len(own)} tensors are not in it ({_shared(weights)})",
            remedy="Use the configuration that this checkpoint was trained with.",
        )
    _check_tied(module, state, prefix)
    extra = drop_posterior(module, state, prefix)
    for key in missing:
        state[key] = own[key]
    if extra:
        logging.warning(
            f"Left out {len(extra)} posterior tensors of the checkpoint, since these weights"
            f" are point estimates here: {_shared(extra)}"
        )
    if missing:
        logging.warning(
            f"{len(missing)} posterior tensors are not in the checkpoint and keep their"
            f" present values: {_shared(missing)}"
        )

"""What all our LMs share: locations, draws and KL."""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

import torch

from espnet_bayeslm.bayes import (
    Draw,
    Kind,
    Location,
    Place,
    Position,
    RandomBlock,
    UncertainModule,
    WeightPosterior,
    noise_generator,
    parse_uncertainty,
    process_rank,
)
from espnet_bayeslm.bayes.draw import RandomLayer
from espnet_bayeslm.bayes.kinds import NOISE_STEP, adapt_to_kinds, is_posterior_key
from espnet_bayeslm.bayes.noise import refuse_recomputation
from espnet_bayeslm.bayes.whole import sampled_whole, whole_posterior
from espnet_bayeslm.layers import LatentOutput
from espnet_bayeslm.lm.checkpoint import adapt_checkpoint
from espnet_bayeslm.lm.draws import SampledLM
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log_std import clamp_log_std

# Of an output projection: what it gets, (B, L, M), and its weight, (V, M).
Projected = Tuple[torch.Tensor, torch.Tensor]


class UncertainLM(SampledLM):
    """An ESPnet LM, some of whose locations are random; without any, a point-estimate LM.

    While training, each forward pass draws once; in `eval()` mode the posterior mean is used
    (Eq. 36, Xue et al. 2022), or the draw that `sampled` holds.

    Attributes:
        kinds: The uncertain locations, as the configuration has them.
        draws_in_training: Whether training draws; else it uses the mean too.
        computes_trees: Whether it is a `TreeLM`: computes each distinct prefix once.
        continues_trees: Whether it is a `RecurrentTreeLM`: goes on from its state after a node.
    """

    computes_trees = continues_trees = False

    def __init__(self, vocab_size: int, *, prior_variance: Union[float, str], num_samples: int = 0):
        super().__init__()
        if num_samples < 0:
            raise InputError(f"num_samples {num_samples}: expected 0 or more")
        self.num_samples = num_samples
        self.vocab_size = vocab_size
        self.prior_variance = prior_variance
        self.kinds: Dict[Location, Kind] = {}
        self._draw: Optional[Draw] = None
        self.draws_in_training = True
        # the counter of draws as it was written last: tensor, its version, value
        self._known_step: Tuple[Optional[torch.Tensor], int, int] = (None, 0, 0)
        self.register_load_state_dict_pre_hook(adapt_checkpoint)

    @abstractmethod
    def positions(self) -> Mapping[str, Position]:
        """The positions of this LM, by name."""

    def make_uncertain(self, uncertainty: Any, *, num_layers: int, **defaults: Any) -> None:
        """Give each location its kind of uncertainty and log what was done.

        Args:
            uncertainty: `{POSITION@LAYERS: kind}`.
            num_layers: How many layers there are.
            **defaults: Of the kinds' options.
        """
        self.kinds = parse_uncertainty(
            uncertainty, positions=self.positions(), num_layers=num_layers
        )
        if not self.kinds:
            return
        self.register_buffer(NOISE_STEP, torch.zeros((), dtype=torch.long))
        for location, kind in self.kinds.items():
            kind.apply(self.place(location, defaults))
        noun = {location: "outputs" for location, _ in self.latents()}
        for name, count in self.location_sizes().items():
            logging.info(f"Uncertain location {name}: {count} random {noun.get(name, 'weights')}")

    def place(self, location: Location, defaults: Mapping[str, Any]) -> Place:
        """A location of this LM, as a kind gets it."""
        position = self.positions()[location.position]
        return Place(self, str(location), location.layer, position, defaults)

    def random_blocks(self) -> Iterator[Tuple[str, UncertainModule, RandomBlock]]:
        """Yield (name of the layer, layer, block) of every random block."""
        for name, module in self.named_modules():
            if isinstance(module, UncertainModule):
                yield from ((name, module, block) for block in module.random_blocks)

    def posteriors(self) -> Iterator[WeightPosterior]:
        """Yield the posterior of every random weight."""
        for name, module, block in self.random_blocks():
            yield module.posterior(block, f"{name}.{block.parameter}")
        for name, parameter, log_std in whole_posterior(self):
            layer = name.rpartition(".")[0]
            std = clamp_log_std(log_std).exp()
            yield WeightPosterior(layer, name, parameter.detach(), std, float("nan"))

    def latents(self) -> Iterator[Tuple[str, LatentOutput]]:
        """Yield (location, layer) of the variational hidden outputs."""
        for module in self.modules():
            if isinstance(module, LatentOutput):
                yield module.location, module

    def location_sizes(self) -> Dict[str, int]:
        """How many random weights each location has (latent outputs: units per token)."""
        sizes: Dict[str, int] = {}
        for _, module, block in self.random_blocks():
            size = block.mean(module).numel()
            sizes[block.location] = sizes.get(block.location, 0) + size
        for name, parameter, _ in whole_posterior(self):
            layer = name.rpartition(".")[0]
            sizes[layer] = sizes.get(layer, 0) + parameter.numel()
        return {**sizes, **{location: latent.dim for location, latent in self.latents()}}

    def locations(self) -> List[str]:
        """The uncertain locations, as `POSITION@LAYER`; layers where all weights are."""
        return list(self.location_sizes())

    def kl(self) -> torch.Tensor:
        """KL(posterior || prior) summed over all random weights, in nats, ()."""
        return Draw(self).kl()

    def reset_posterior(self) -> None:
        """Set every posterior, Gaussian process and latent output to its start."""
        for module in self.modules():
            if isinstance(module, RandomLayer):
                module.reset()

    def start_posterior(self) -> None:
        """Set the standard deviations that training has not changed to their start.

        After a checkpoint was loaded: the start may be relative to the weights' spread.
        """
        for _, module, block in self.random_blocks():
            block.kind.start_if_untrained(module, block)

    def set_prior_means(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the prior's means from the weights of another LM of this architecture.

        Raises:
            InputError: It lacks a weight that is random here, or has it in another shape.
        """
        state = dict(state)
        adapt_to_kinds(self, state, "")
        for name, module, block in self.random_blocks():
            key = f"{name}.{block.parameter}"
            if key not in state and is_posterior_key(key):
                continue  # a point-estimate LM does not have it: the prior's mean is its start
            expected = tuple(getattr(module, block.parameter).shape)
            found = tuple(state[key].shape) if key in state else "nothing"
            if found != expected:
                raise InputError(
                    f"prior for {block.location}: expected {key} of shape {expected}, got {found}",
                    remedy="The prior must be an LM of the same architecture and vocabulary.",
                )
            block.kind.set_prior_mean(module, block, block.select(state[key]))

    def _noise_step(self) -> int:
        """The counter of draws, without asking the device where nothing else wrote it."""
        tensor, version, step = self._known_step
        if tensor is None or tensor is not self.noise_step or version != tensor._version:
            return int(self.noise_step)
        return step

    def _next_generator(self) -> torch.Generator:
        """The noise of the next draw in training, in this process."""
        refuse_recomputation()
        step = self._noise_step()
        # A replica of torch's DataParallel has buffers, and no parameters.
        device = self.noise_step.device
        generator = noise_generator(torch.initial_seed(), process_rank(), step, device=device)
        self.noise_step += 1
        self._known_step = (self.noise_step, self.noise_step._version, step + 1)
        return generator

    @contextlib.contextmanager
    def drawn(
        self,
        generator: Optional[torch.Generator] = None,
        *,
        hold: bool = False,
        weight_kl: bool = False,
        token_kl: bool = False,
    ) -> Iterator[Draw]:
        """Compute with one draw of all that is random within: the only place where any is made.

        Args:
            generator: Of the noise. None: the draw that is used already, if there is one; else a
                new one by the counter in training, and the mean in evaluation.
            hold: Whether any number of forward passes within has this draw.
            weight_kl: Whether to compute the KL of weights as they are drawn, which costs little
                then.
            token_kl: Whether to compute the KL of latent outputs.

        Yields:
            The draw; its `kl()` and `token_kl()` are those of what was computed.
        """
        outer, wanted = self._draw, {"weight_kl": weight_kl, "token_kl": token_kl}
        if generator is None and outer is not None and not any(wanted.values()):
            yield outer
            return
        with contextlib.ExitStack() as stack:
            if generator is None and outer is not None:
                draw = outer.again(**wanted)
            else:
                draws = self.training and self.draws_in_training and self.kinds
                if generator is None and draws:
                    generator = self._next_generator()
                draw = Draw(self, generator, hold=hold, **wanted)
                if hold and next(whole_posterior(self), None) is not None:
                    assert generator is not None
                    stack.enter_context(sampled_whole(self, generator))
            stack.enter_context(draw.used())
            self._draw = draw
            try:
                yield draw
            finally:
                self._draw = outer

    @contextlib.contextmanager
    def sampled(self, index: int, *, seed: int = 0) -> Iterator[None]:
        """Hold draw number `index` for all that is computed within, whatever the mode."""
        device = next(self.parameters()).device
        with self.drawn(noise_generator(seed, 0, index, device=device), hold=True):
            yield

    def forward(self, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Logits and the state after the last token.

        Args:
            input: Token ids, (B, L).
            hidden: The state that an earlier call returned, or None.

        Returns:
            Logits (B, L, vocab_size); the new state.
        """
        with self.drawn():
            return self.compute(input, hidden)

    def outputs(self, input: torch.Tensor) -> Optional[Projected]:
        """What the output projection `decoder` gets in a forward pass, and its weight.

        Shaped (B, L, M) and (V, M). The weight is to be used in place of the layer's own: it
        belongs to the pass. None, and no pass, where the logits are not those of one linear layer
        that keeps its mean.
        """
        return None

    def has_draws(self) -> bool:
        """Whether anything is random, and no draw is held."""
        random = (self.random_blocks(), self.latents(), whole_posterior(self))
        held = self._draw is not None and not self._draw.is_mean
        return not held and any(next(found, None) is not None for found in random)

"""What all our LMs share: locations, KL and draws."""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import torch

from espnet_bayeslm.bayes import (
    Kind,
    Location,
    RandomBlock,
    UncertainModule,
    WeightPosterior,
    check_posterior_options,
    noise_generator,
    process_rank,
)
from espnet_bayeslm.bayes.block import NOISE_STEP, is_posterior_key
from espnet_bayeslm.bayes.locations import POINT
from espnet_bayeslm.bayes.noise import refuse_recomputation
from espnet_bayeslm.bayes.paths import select_rows
from espnet_bayeslm.bayes.whole import sampled_whole, whole_posterior
from espnet_bayeslm.layers import LatentOutput
from espnet_bayeslm.lm.checkpoint import adapt_checkpoint
from espnet_bayeslm.lm.draws import SampledLM
from espnet_bayeslm.lm.supernet import SuperNetwork
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log_std import clamp_log_std

# Of an output projection: what it gets, (B, L, M), and its weight, (V, M).
Projected = Tuple[torch.Tensor, torch.Tensor]


class UncertainLM(SuperNetwork, SampledLM):
    """An ESPnet LM, some of whose locations are random; without any, a point-estimate LM.

    While training, each forward pass draws once; in `eval()` mode the posterior mean is used
    (Eq. 36, Xue et al. 2022), or the draw that `sampled` holds.
    """

    def __init__(self, vocab_size: int, *, prior_variance: float, num_samples: int = 0):
        super().__init__()
        if num_samples < 0:
            raise InputError(f"num_samples {num_samples}: expected 0 or more")
        self.num_samples = num_samples
        self.vocab_size = vocab_size
        self.prior_variance = prior_variance
        self.holds_draw, self.uses_mean = False, True
        # the counter of draws as it was written last: tensor, its version, value
        self._known_step: Tuple[Optional[torch.Tensor], int, int] = (None, 0, 0)
        self.register_load_state_dict_pre_hook(adapt_checkpoint)

    def _make_random(
        self, kinds: Mapping[Location, Kind], *, init_std_unit: str, **defaults: float
    ) -> None:
        """Give each place its kind of uncertainty and log what was done."""
        if not kinds:
            return
        self.register_buffer(NOISE_STEP, torch.zeros((), dtype=torch.long))
        for place, kind in kinds.items():
            options = {"init_std_unit": init_std_unit, **defaults}
            # a search's first path has the layer's own parameters
            for number, candidate in enumerate(kind.candidates or (kind,)):
                self._make_kind(place, candidate, options, copy=number > 0)
            if kind.candidates:
                self._add_choice(str(place), kind.candidates)
        noun = {location: "outputs" for location, _ in self.latents()}
        for name, count in self.location_sizes().items():
            logging.info(f"Uncertain location {name}: {count} random {noun.get(name, 'weights')}")

    def _make_kind(
        self, place: Location, kind: Kind, defaults: Mapping[str, Any], *, copy: bool
    ) -> None:
        """Give a place a kind; `copy`: as a path of a search, beside the layer's own parameters."""
        options = {**defaults, **kind.options}
        check_posterior_options(options, place)
        if kind.name == "bayes":
            self._make_bayes(place, copy=copy, **options)
        elif kind.name == "gp":
            self._make_gp(place, copy=copy, **options)
        elif kind.name == "variational":
            # what the LM's defaults are for, weights, it has not
            self._make_variational(place, copy=copy, **kind.options)
        else:
            assert kind.name == POINT, kind

    @abstractmethod
    def _make_bayes(self, place: Location, **posterior: Any) -> None:
        """Make the place's weights random (with `copy`: a copy of them, and so below)."""

    @abstractmethod
    def _make_gp(self, place: Location, **options: Any) -> None:
        """Make a Gaussian process of the place's function."""

    @abstractmethod
    def _make_variational(self, place: Location, **options: Any) -> None:
        """Make the place's output a latent variable."""

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
        """Return how many random weights each location has (latent outputs: units per token)."""
        sizes: Dict[str, int] = {}
        for _, module, block in self.random_blocks():
            size = sizes.get(block.location, 0) + module.block_size(block)
            sizes[block.location] = size
        for name, parameter, _ in whole_posterior(self):
            layer = name.rpartition(".")[0]
            sizes[layer] = sizes.get(layer, 0) + parameter.numel()
        return {**sizes, **{location: latent.dim for location, latent in self.latents()}}

    def locations(self) -> List[str]:
        """Return the uncertain locations, as `POSITION@LAYER`; layers where all weights are."""
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
        """Set every standard deviation, Gaussian process and latent output to its start."""
        for module in self.modules():
            if isinstance(module, UncertainModule):
                module.reset_copies()
                module.reset_posterior()
            if hasattr(module, "reset_function"):
                module.reset_function()

    def start_posterior(self) -> None:
        """Set the standard deviations that training has not changed to their start.

        After a checkpoint was loaded: the start may be relative to the weights' spread.
        """
        for _, module in self._uncertain_modules():
            module.start_posterior()

    def set_prior_means(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the prior's means from the weights of another LM of this architecture.

        Args:
            state: That LM's state_dict.

        Raises:
            InputError: It lacks a weight that is random here, or has it in another shape.
        """
        for name, module, block in self.random_blocks():
            parameter, rows = module.source(block.parameter)
            key = f"{name}.{parameter}"
            if key not in state and is_posterior_key(key):
                continue  # a point-estimate LM does not have it: the prior's mean is its start
            expected = tuple(getattr(module, parameter).shape)
            found = tuple(state[key].shape) if key in state else "nothing"
            if found != expected:
                raise InputError(
                    f"prior for {block.location}: expected {key} of shape {expected}, got {found}",
                    remedy="The prior must be an LM of the same architecture and vocabulary.",
                )
            mean = block.select(select_rows(state[key], rows))
            getattr(module, f"{block.key}_prior_mean").copy_(mean)

    def _draw(self, generator: torch.Generator, *, hold: bool = False) -> None:
        """Draw all random weights once; latent outputs draw in the next forward pass."""
        self._share()
        self.uses_mean = False
        for _, module in self._uncertain_modules():
            module.draw(generator, hold=hold)
        for _, latent in self.latents():
            latent.draw(generator, hold=hold)

    def _use_mean(self) -> None:
        """Use the posterior mean from now on."""
        self._share()
        if self.uses_mean:
            return
        self.uses_mean = True
        for _, module in self._uncertain_modules():
            module.use_mean()
        for _, latent in self.latents():
            latent.use_mean()

    def _noise_step(self) -> int:
        """Return the counter of draws, without asking the device where nothing else wrote it."""
        tensor, version, step = self._known_step
        if tensor is not self.noise_step or version != self.noise_step._version:
            return int(self.noise_step)
        return step

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
            refuse_recomputation()
            step = self._noise_step()
            self._draw(self._generator(step))
            self.noise_step += 1
            self._known_step = (self.noise_step, self.noise_step._version, step + 1)
        else:
            self._use_mean()

    @contextlib.contextmanager
    def sampled(self, index: int, *, seed: int = 0) -> Iterator[None]:
        """Hold draw number `index` for all that is computed within, whatever the mode."""
        device = next(self.parameters()).device
        generator = noise_generator(seed, 0, index, device=device)
        self._draw(generator, hold=True)
        self.holds_draw = True
        all_weights = next(whole_posterior(self), None) is not None
        try:
            with sampled_whole(self, generator) if all_weights else contextlib.nullcontext():
                yield
        finally:
            self.holds_draw = False
            self._use_mean()

    @contextlib.contextmanager
    def token_kl(self) -> Iterator[Callable[[], Optional[torch.Tensor]]]:
        """Make the forward passes within compute the KL of latent outputs.

        Yields:
            A function that returns it for the last forward pass, in nats, (B, L), summed over
            locations; None where there are none.
        """
        latents = [latent for _, latent in self.latents()]

        def take() -> Optional[torch.Tensor]:
            terms = [kl for latent in latents if (kl := latent.take_kl()) is not None]
            return torch.stack(terms).sum(0) if terms else None

        for latent in latents:
            latent.wants_kl = True
        try:
            yield take
        finally:
            for latent in latents:
                latent.wants_kl, latent.kl = False, None

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

    def outputs(self, input: torch.Tensor) -> Optional[Projected]:
        """Return what the output projection `decoder` gets in a forward pass, and its weight.

        Shaped (B, L, M) and (V, M). The weight is to be used in place of the layer's own: it
        belongs to the pass. None, and no pass, where the logits are not those of one linear layer
        that keeps its mean.
        """
        return None

    def has_draws(self) -> bool:
        """Return whether anything is random, and no draw is held."""
        random = (self.random_blocks(), self.latents(), whole_posterior(self))
        return not self.holds_draw and any(next(found, None) is not None for found in random)

    def before_scoring(self) -> None:
        """Score with the posterior mean, or with the draw that `sampled` holds."""
        if not self.holds_draw:
            self._use_mean()

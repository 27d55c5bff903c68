"""Base class of all uncertain LMs: locations, samples and KL."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import math
from abc import abstractmethod
from typing import (
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Protocol,
    Tuple,
    Union,
    runtime_checkable,
)

import torch
from torch import nn

from espnet_bayeslm.bayes import (
    Kind,
    Location,
    Place,
    Position,
    Posterior,
    Sample,
    noise_generator,
    parse_uncertainty,
)
from espnet_bayeslm.bayes.kinds import NOISE_STEP
from espnet_bayeslm.bayes.noise import NoiseCounter, in_backward_pass, recomputation_error
from espnet_bayeslm.bayes.posterior import DEFAULTS, MEANS
from espnet_bayeslm.kernels.contents import Contents
from espnet_bayeslm.layers import LatentOutput
from espnet_bayeslm.layers.latent import LatentSampling
from espnet_bayeslm.lm.adapted_state import adapt_checkpoint, drop_posterior
from espnet_bayeslm.lm.scoring import IncrementalLM, Step
from espnet_bayeslm.utils.errors import InputError

# Input of an output projection, (B, L, M), and the projection's weight, (V, M).
Projected = Tuple[torch.Tensor, torch.Tensor]


@runtime_checkable
class Resettable(Protocol):
    """A layer that can go back to its start."""

    def reset(self) -> None:
        """Set the parameters of a kind of uncertainty to their start."""


class LMSample:
    """One sample of an LM's random weights and latent outputs, or their mean (`is_mean`).

    Without a sample of the weights their mean is used.

    Attributes:
        kl: Gives the KL of the random weights, as `Posterior.kl`.
    """

    def __init__(
        self,
        posterior: Posterior,
        weights: Optional[Sample],
        latents: List[LatentSampling],
        *,
        is_mean: bool,
    ):
        self.posterior, self.weights = posterior, weights
        self.latents, self.is_mean = latents, is_mean
        self.kl = (weights or posterior).kl

    def token_kl(self) -> Optional[torch.Tensor]:
        """KL of the latent outputs of the last forward pass, in nats, (B, L), summed over them.

        None where there are none.
        """
        terms = [latent.kl for latent in self.latents if latent.kl is not None]
        return torch.stack(terms).sum(0) if terms else None


class UncertainLM(IncrementalLM):
    """An ESPnet LM, some of whose locations are random; without any, a point-estimate LM.

    While training, each forward pass makes one sample. In `eval()` mode the posterior mean is used
    (Eq. 36, Xue et al. 2022), or the sample that `sampled` holds.

    Attributes:
        kinds: The uncertain locations, as the configuration has them.
        posterior: The posterior over its random weights.
        noise: Counts the samples of training.
        trained: Pattern of the names of the parameters that training changes.
        draws_in_training: True if training samples; else it uses the mean too.
        computes_trees: True if it is a `TreeLM`: computes each distinct prefix once.
        continues_trees: True if it is a `RecurrentTreeLM`: continues from its state after a node.
    """

    computes_trees = continues_trees = False
    _drawn: Optional[Tuple[Any, Contents, List[IncrementalLM]]] = None
    trained = "*"

    def __init__(self, vocab_size: int, *, prior_variance: Union[float, str], num_samples: int = 0):
        super().__init__()
        if num_samples < 0:
            raise InputError(f"num_samples {num_samples}: expected 0 or more")
        self.num_samples = num_samples
        self.vocab_size = vocab_size
        self.prior_variance = prior_variance
        self.kinds: Dict[Location, Kind] = {}
        self.posterior = Posterior(self)
        self._sample: Optional[LMSample] = None
        self.draws_in_training = True
        self.noise = NoiseCounter()
        self.register_load_state_dict_pre_hook(adapt_checkpoint)
        self.register_load_state_dict_pre_hook(take_step)

    @abstractmethod
    def positions(self) -> Mapping[str, Position]:
        """The positions of this LM, by name."""

    def make_uncertain(self, uncertainty: Any, *, num_layers: int, **defaults: Any) -> None:
        """Give each location its kind, with defaults of its options; log the locations."""
        self.kinds = parse_uncertainty(
            uncertainty, positions=self.positions(), num_layers=num_layers
        )
        self.posterior.defaults = {**DEFAULTS, "prior_variance": self.prior_variance, **defaults}
        for location, kind in self.kinds.items():
            kind.apply(self.place(location))
        for module in self.modules():
            if module is not self:  # where ESPnet's --init_param loads a part of an LM
                module.register_load_state_dict_pre_hook(drop_posterior)
        noun = {location: "outputs" for location, _ in self.latents()}
        for name, count in self.location_sizes().items():
            logging.info(f"Uncertain location {name}: {count} random {noun.get(name, 'weights')}")

    def place(self, location: Location) -> Place:
        """A location of this LM, as a kind gets it."""
        position = self.positions()[location.position]
        return Place(self, str(location), location.layer, position)

    def latents(self) -> Iterator[Tuple[str, LatentOutput]]:
        """Yield (location, layer) of the variational hidden outputs."""
        for module in self.modules():
            if isinstance(module, LatentOutput):
                yield module.location, module

    def location_sizes(self) -> Dict[str, int]:
        """Number of random weights of each location (latent outputs: units per token)."""
        sizes: Dict[str, int] = {}
        for block in self.posterior.blocks():
            sizes[block.location] = sizes.get(block.location, 0) + block.mean.numel()
        return {**sizes, **{location: latent.dim for location, latent in self.latents()}}

    def locations(self) -> List[str]:
        """The uncertain locations, as `POSITION@LAYER`; layers where all weights are."""
        return list(self.location_sizes())

    def kl(self) -> torch.Tensor:
        """KL(posterior || prior) summed over all random weights, in nats, ()."""
        return self.posterior.kl()

    def reset_posterior(self) -> None:
        """Set every posterior, Gaussian process and latent output to its start."""
        for module in self.modules():
            if isinstance(module, Resettable):
                module.reset()
        self.posterior.reset()

    @contextlib.contextmanager
    def drawn(
        self,
        generator: Optional[torch.Generator] = None,
        *,
        hold: bool = False,
        weight_kl: bool = False,
        token_kl: bool = False,
    ) -> Iterator[LMSample]:
        """Compute with one sample of all that is random: the only place where samples are made.

        Args:
            generator: Source of the noise. None: the sample that is used already, if there is one;
                else a new one by the counter in training, and the mean in evaluation.
            hold: True if any number of forward passes within has this sample.
            weight_kl: True to compute the KL of weights as they are sampled, which costs little.
            token_kl: True to compute the KL of latent outputs.

        Yields:
            The sample; its `kl()` and `token_kl()` belong to the computation within the block.
        """
        outer = self._sample
        if generator is None and outer is not None and not token_kl:
            yield outer
            return
        with contextlib.ExitStack() as stack:
            weights = None if outer is None or generator is not None else outer.weights
            if generator is None and outer is None and self._samples_in_training():
                if in_backward_pass() and self.has_draws():
                    raise recomputation_error()
                generator = self.noise.next_generator(self._device())
            if generator is not None:
                weights = Sample(self.posterior, generator, one_pass=not hold)
                stack.enter_context(weights.used(with_kl=weight_kl))
            latents = [latent for _, latent in self.latents()]
            for latent in latents:
                before = latent.sampling
                stack.callback(setattr, latent, "sampling", before)
                if generator is None and before is not None:
                    latent.sampling = dataclasses.replace(before, wants_kl=token_kl, kl=None)
                elif generator is not None and hold:
                    latent.sampling = LatentSampling(held=latent.held_noise(generator))
                else:
                    latent.sampling = LatentSampling(generator)
                latent.sampling.wants_kl = token_kl
            sampling = [latent.sampling for latent in latents if latent.sampling is not None]
            self._sample = LMSample(self.posterior, weights, sampling, is_mean=generator is None)
            if generator is None and outer is not None:
                self._sample.is_mean = outer.is_mean
            try:
                yield self._sample
            finally:
                self._sample = outer

    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _samples_in_training(self) -> bool:
        kinds = [block.kind for block in self.posterior.blocks()]
        samples = all(kind.samples_in_training for kind in kinds)
        return self.training and self.draws_in_training and samples

    @contextlib.contextmanager
    def sampled(self, index: int, *, seed: int = 0) -> Iterator[None]:
        """Hold sample number `index` for all that is computed within, whatever the mode."""
        generator = noise_generator(seed, 0, index, device=self._device())
        with self.drawn(generator, hold=True):
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
        """Input of the output projection `decoder` in a forward pass, and the projection's weight.

        Shaped (B, L, M) and (V, M). The weight belongs to the pass: use it in place of the layer's
        own. The result is None, without a pass, where the logits come from anything else than one
        linear layer that keeps its mean.
        """
        return None

    def has_draws(self) -> bool:
        """True if anything is random, and no sample is held."""
        held = self._sample is not None and not self._sample.is_mean
        return not held and bool(self.posterior.blocks() or next(self.latents(), None))

    def batch_score(self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor) -> Step:
        """Score the next token; with `num_samples`, ln of the mean probability over samples.

        A state then holds one state of each sample. The samples are numbers 0 to K - 1 of
        `sampled`, the same for every utterance, as rescoring with K samples has them.
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

    def _replicate_for_data_parallel(self) -> UncertainLM:
        raise InputError(
            "torch.nn.DataParallel copies an LM for each GPU at every step, which has no random"
            " weights then",
            remedy="Use --multiprocessing_distributed true.",
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.kinds:
            destination[prefix + NOISE_STEP] = torch.tensor(self.noise.step)


def take_step(lm: UncertainLM, state: Dict[str, Any], prefix: str, *_others: Any) -> None:
    """Take the number of samples out of a checkpoint that is about to be loaded."""
    step = state.pop(prefix + NOISE_STEP, None)
    if step is not None and lm.kinds:
        lm.noise.step = int(step)


@torch.no_grad()
def fixed_copy(lm: Any, index: int) -> Any:
    """A copy of an LM in evaluation mode that has sample number `index` for its weights.

    The copy runs at the cost of point estimates, and shares all that is not random with the LM.
    """
    with lm.sampled(index):
        memo = {id(tensor): tensor for tensor in (*lm.parameters(), *lm.buffers())}
        other = copy.deepcopy(lm, memo)
        other.posterior = Posterior(other)
        for owner, copied in zip(lm.modules(), other.modules(), strict=True):
            for name in vars(owner).get(MEANS, ()):
                setattr(copied, name, nn.Parameter(getattr(owner, name), requires_grad=False))
            vars(copied).pop(MEANS, None)
    other.num_samples = 0
    return other.eval()

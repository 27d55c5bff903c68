"""Base class of all uncertain LMs: locations, samples and KL, and the checkpoints that it loads."""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Tuple,
    Union,
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
    process_rank,
)
from espnet_bayeslm.bayes.base_kinds import NOISE_STEP, adapt_to_kinds, is_posterior_key
from espnet_bayeslm.bayes.noise import in_backward_pass, recomputation_error
from espnet_bayeslm.bayes.posterior import DEFAULTS
from espnet_bayeslm.kernels.product import linear
from espnet_bayeslm.lm.beam_search import IncrementalLM, Step
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import check_least

if TYPE_CHECKING:
    from espnet_bayeslm.lm.packing import Packing

# Input of an output projection, (N, M), and the projection's weight, (V, M).
Projected = Tuple[torch.Tensor, torch.Tensor]


class UncertainLM(IncrementalLM):
    """An ESPnet LM, some of whose locations are random; without any, a point-estimate LM.

    While training, each forward pass makes one sample. In `eval()` mode the posterior mean is used
    (Eq. 36, Xue et al. 2022), or the sample that `sampled` holds.

    Attributes:
        kinds: The uncertain locations, as the configuration has them.
        places: Their places in this LM, which the kinds change.
        posterior: The posterior over its random weights.
        noise_step: Number of samples made in training: a resumed run goes on with the next one.
        trained: Pattern of the names of the parameters that training changes.
        draws_in_training: True if training samples; else it uses the mean too.
        projection: Name of the output projection, a linear layer.
        projected: Maps tokens (B, L) to the input of the output projection, (B, L, M).
        computes_trees: True if it computes prefix trees, each distinct prefix once, by
            `tree_outputs`.
        skips_padding: True if training computes the tokens of a batch and little else, so that
            sentences of all lengths may be in it.
        continues_trees: True if it continues from its state after a node, by `tree_states`.
    """

    continues_trees = False
    skips_padding = False
    projection = "decoder"
    projected: Callable[[torch.Tensor], torch.Tensor]
    _drawn: Optional[Tuple[List[torch.Tensor], List[Sample]]] = None
    trained = "*"

    def __init__(self, vocab_size: int, *, prior_variance: Union[float, str], num_samples: int = 0):
        super().__init__()
        check_least(0, num_samples=num_samples)
        self.num_samples = num_samples
        self.vocab_size = vocab_size
        self.prior_variance = prior_variance
        self.kinds: Dict[Location, Kind] = {}
        self.places: List[Place] = []
        self.posterior = Posterior(self)
        self._sample: Optional[Sample] = None
        self.draws_in_training = True
        self.noise_step = 0
        self.register_load_state_dict_pre_hook(adapt_checkpoint)

    @abstractmethod
    def positions(self) -> Mapping[str, Position]:
        """The positions of this LM, by name."""

    def make_uncertain(self, uncertainty: Any, *, num_layers: int, **defaults: Any) -> None:
        """Give each location its kind, with defaults of its options; log the locations."""
        self.posterior.defaults = {**DEFAULTS, "prior_variance": self.prior_variance, **defaults}
        positions = self.positions()
        if uncertainty not in (None, {}):
            self.kinds = parse_uncertainty(uncertainty, positions=positions, num_layers=num_layers)
        if self.kinds:
            self._register_state_dict_hook(_save_noise_step)
        for location in self.kinds:
            k = "" if location.layer is None else str(location.layer - 1)
            self.places.append(Place(self, str(location), k, positions[location.position]))
        for place, kind in zip(self.places, self.kinds.values(), strict=True):
            kind.apply(place)
        latents = dict(self.latents()) if self.kinds else {}
        for name, count in self.location_sizes().items():
            noun = "outputs" if name in latents else "weights"
            LOG.info(f"Uncertain location {name}: {count} random {noun}")

    def latents(self) -> List[Tuple[str, Any]]:
        """Pairs (location, layer) of the variational hidden outputs."""
        layers: Iterator[Any] = self.modules()
        return [(layer.location, layer) for layer in layers if "sampling" in vars(layer)]

    def location_sizes(self) -> Dict[str, int]:
        """Number of random weights of each location (latent outputs: units per token)."""
        sizes: Dict[str, int] = {}
        for block in self.posterior.blocks():
            sizes[block.location] = sizes.get(block.location, 0) + block.mean.numel()
        if self.kinds:
            sizes.update((location, latent.dim) for location, latent in self.latents())
        return sizes

    def locations(self) -> List[str]:
        """The uncertain locations, as `POSITION@LAYER`; layers where all weights are."""
        return list(self.location_sizes())

    def kl(self) -> torch.Tensor:
        """KL(posterior || prior) summed over all random weights, in nats, ()."""
        return self.posterior.kl()

    def reset_posterior(self) -> None:
        """Set every posterior, Gaussian process and latent output to its start."""
        for module in self.modules():
            if hasattr(module, "reset"):
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
    ) -> Iterator[Sample]:
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
        if generator is not None or outer is None:
            is_ours = all(block.kind.samples_in_training for block in self.posterior.blocks())
            if generator is None and self.training and self.draws_in_training and is_ours:
                if in_backward_pass() and self.has_draws():
                    raise recomputation_error()
                counter = (torch.initial_seed(), process_rank(), self.noise_step)
                generator = noise_generator(*counter, device=self._device())
                self.noise_step += 1
            options = {"with_kl": weight_kl, "token_kl": token_kl, "hold": hold}
            sample = Sample(self.posterior, generator, **options)
        else:
            sample = outer.with_token_kl() if token_kl else outer
        with self._using(sample):
            yield sample

    @contextlib.contextmanager
    def _using(self, sample: Sample) -> Iterator[None]:
        """Compute with a sample within the block."""
        outer, self._sample = self._sample, sample
        try:
            with sample.used():
                yield
        finally:
            self._sample = outer

    def _device(self) -> torch.device:
        return next(self.parameters()).device

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

    def compute(self, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, Any]:
        """Logits and no state: here a call reads whole sequences.

        As in ESPnet, no token sees an earlier one that is 0, the padding.
        """
        return self.project(self.projected(input)), None

    def project(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits (..., V) of the output projection's inputs, (..., M)."""
        layer = getattr(self, self.projection)
        # ESPnet's decoding can put a quantised layer in its place
        is_plain = type(layer) is nn.Linear
        return linear(outputs, layer.weight, layer.bias) if is_plain else layer(outputs)

    def keeps_projection(self) -> bool:
        """True if the output projection is the linear layer `decoder`, which no kind samples.

        An optimizer's samples may: they are in place all along.
        """
        sampled = {b.owner for b in self.posterior.blocks() if b.kind.samples_in_training}
        is_linear = hasattr(self, "projected") and self.projection == "decoder"
        return is_linear and self.decoder not in sampled

    def outputs(self, input: torch.Tensor, packing: Optional[Packing]) -> Optional[Projected]:
        """Input of the output projection `decoder` in a forward pass, and the projection's weight.

        The weight (V, M) belongs to the pass: use it in place of the layer's own. The result is
        None, without a pass, where the logits come from anything else than one linear layer that
        keeps its mean.

        Args:
            input: Token ids, (B, L).
            packing: The N tokens that are no padding; None: all B L.

        Returns:
            Outputs (N, M), and the weight.
        """
        if not self.keeps_projection():
            return None
        with self.drawn():
            if packing is None:
                return self.projected(input).flatten(0, 1), self.decoder.weight
            return self.packed(input, packing), self.decoder.weight

    def packed(self, input: torch.Tensor, packing: Packing) -> torch.Tensor:
        """Input of the output projection for the tokens of (B, L) that are no padding, (N, M)."""
        return packing.pick(self.projected(input))

    @property
    def computes_trees(self) -> bool:
        """True if `tree_outputs` can be projected by the mean, which rescoring takes."""
        return hasattr(self, "tree_outputs") and self.keeps_projection()

    def zero_state(self) -> Any:
        """State before the first token: a state is the tokens, all read again at each step."""
        return ()

    def advance(self, tokens: torch.Tensor, states: List[Any]) -> Step:
        """Read one more token of each hypothesis, with all tokens before it."""
        prefixes = [(*old, new) for old, new in zip(states, tokens.tolist(), strict=True)]
        rows = [tokens.new_tensor(prefix) for prefix in prefixes]
        last = tokens.new_tensor([len(prefix) - 1 for prefix in prefixes])
        input = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        output = self.projected(input)[torch.arange(len(last), device=last.device), last]
        return self.project(output), prefixes

    def has_draws(self) -> bool:
        """True if anything is random, and no sample is held."""
        held = self._sample is not None and not self._sample.is_mean
        return not held and bool(self.posterior.blocks() or self.latents())

    def batch_score(self, ys: torch.Tensor, states: List[Any], xs: torch.Tensor) -> Step:
        """Score the next token; with `num_samples`, ln of the mean probability over samples.

        A state then holds one state of each sample. The samples are numbers 0 to K - 1 of
        `sampled`, the same for every utterance, as rescoring with K samples has them.
        """
        if self.num_samples == 0 or not self.has_draws():
            return super().batch_score(ys, states, xs)
        begins = all(state is None for state in states)
        samples = self._draws() if begins or self._drawn is None else self._drawn[1]
        columns = zip(*(state or (None,) * len(samples) for state in states), strict=True)
        scored = []
        for sample, column in zip(samples, columns, strict=True):
            with self._using(sample):
                scored.append(super().batch_score(ys, list(column), xs))
        log_probs = torch.stack([log_probs for log_probs, _ in scored])
        mean = log_probs.logsumexp(0) - math.log(len(samples))
        return mean, list(zip(*(states for _, states in scored), strict=True))

    @torch.no_grad()
    def _draws(self) -> List[Sample]:
        """K held samples for a search, made anew where the weights are not those of the last."""
        random = [
            tensor
            for block in self.posterior.blocks()
            for tensor in (block.whole, *block.kind.tensors(block))
        ]
        before, samples = self._drawn or ([], [])
        if len(samples) != self.num_samples or not all(map(_are_equal, random, before)):
            samples = []
            for index in range(self.num_samples):
                generator = noise_generator(0, 0, index, device=self._device())
                samples.append(Sample(self.posterior, generator, hold=True))
                # as parameters: a beam search keeps these packed
                for name, value in samples[-1].values.items():
                    samples[-1].values[name] = nn.Parameter(value, requires_grad=False)
            self._drawn = [tensor.detach().clone() for tensor in random], samples
        return samples

    def __getstate__(self) -> Dict[str, Any]:
        """State of a copy: it makes its own samples."""
        return {name: value for name, value in self.__dict__.items() if name != "_drawn"}

    def _replicate_for_data_parallel(self) -> UncertainLM:
        raise InputError(
            "torch.nn.DataParallel copies an LM for each GPU at every step, which has no random"
            " weights then",
            remedy="Use --multiprocessing_distributed true.",
        )


def _are_equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    """True if two tensors have one type, device and content."""
    return (x.dtype, x.device) == (y.dtype, y.device) and torch.equal(x, y)


def _save_noise_step(lm: UncertainLM, state: Dict[str, Any], prefix: str, _: Any) -> None:
    """Add the number of samples made in training to an LM's state."""
    state[prefix + NOISE_STEP] = torch.tensor(lm.noise_step)


def drop_posterior(
    module: nn.Module, state: Dict[str, Any], prefix: str, *_others: Any
) -> List[str]:
    """Remove a posterior's tensors that the module lacks from a checkpoint; the removed keys."""
    own = {prefix + key for key in module.state_dict()}
    extra = [k for k in state if k.startswith(prefix) and k not in own and is_posterior_key(k)]
    for key in extra:
        del state[key]
    return extra


def _shared(names: List[str]) -> str:
    """Names, a few of them, for a log line."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def adapt_checkpoint(module: Any, state: Dict[str, Any], prefix: str, *_others: Any) -> None:
    """Fit a checkpoint to an LM, and check that tied weights are equal in it."""
    own = {prefix + key: value for key, value in module.state_dict(keep_vars=True).items()}
    if module.kinds or own.keys() != {key for key in state if key.startswith(prefix)}:
        _adapt_posterior(module, state, prefix)
    first: Dict[int, str] = {}
    for key, value in own.items():
        other = first.setdefault(id(value), key)
        if other != key and not torch.equal(state[other], state[key]):
            raise InputError(
                f"{other.removeprefix(prefix)} and {key.removeprefix(prefix)} differ in the"
                " checkpoint, and are one tensor in this LM",
                remedy="Set tie_weights: false.",
            )


def _adapt_posterior(module: Any, state: Dict[str, Any], prefix: str) -> None:
    """Fit a checkpoint to the uncertain locations of an LM, and log the differences.

    The posterior mean has the names of point-estimate weights, so only the tensors of a posterior
    can differ: extra ones are left out, missing ones keep their start. Anything else missing means
    another architecture. The number of samples made in training is taken out.
    """
    adapt_to_kinds(module, state, prefix)
    own = {prefix + key: value for key, value in module.state_dict().items()}
    missing = [key for key in own if key not in state]
    weights = [key for key in missing if not is_posterior_key(key)]
    if weights:
        raise InputError(
            f"the checkpoint is of another architecture: {len(weights)} of the LM's"
            f" {len(own)} tensors are not in it ({_shared(weights)})",
            remedy="Use the configuration that this checkpoint was trained with.",
        )
    extra = drop_posterior(module, state, prefix)
    for key in missing:
        state[key] = own[key]
    if extra:
        LOG.warning(
            f"Left out {len(extra)} posterior tensors of the checkpoint, or of a search's other"
            f" paths, that this LM has no place for: {_shared(extra)}"
        )
    if missing:
        LOG.warning(
            f"{len(missing)} posterior tensors are not in the checkpoint and keep their"
            f" present values: {_shared(missing)}"
        )
    step = state.pop(prefix + NOISE_STEP, None)
    if step is not None and module.kinds:
        module.noise_step = int(step)

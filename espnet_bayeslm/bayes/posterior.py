"""A posterior over named parameters of any torch module, added from outside."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.base_kinds import (
    MEANS,
    Block,
    adapt_to_kinds,
    is_posterior_key,
    parse_kind,
)
from espnet_bayeslm.bayes.noise import in_backward_pass, recomputation_error
from espnet_bayeslm.bayes.weights import Weights
from espnet_bayeslm.utils.errors import InputError

# Options of kinds where neither the kind nor an LM gives them.
DEFAULTS = {"init_std": 0.01, "init_std_unit": "absolute", "prior_variance": 1.0}


class Posterior:
    """Posterior over parameters of a module, chosen by name.

    The parameter itself is the posterior mean, under its usual name, so that a point-estimate
    checkpoint loads. The other tensors of the posterior are registered in the module that owns the
    parameter, so that they are trained, moved and saved with it.

    Args:
        module: Any module; its code does not know about the posterior.
        uncertainty: {pattern of parameter names: kind}, a kind as in `lm_conf`: a name, or a
            mapping with `kind` and options. A parameter with several names that a pattern matches
            (tied weights) has one sample for all of them.

    Attributes:
        defaults: Options of kinds that a kind does not give.

    Raises:
        InputError: A pattern matches nothing, or a kind or an option is unknown.
    """

    def __init__(self, module: nn.Module, uncertainty: Optional[Mapping[str, Any]] = None):
        self.module = module
        self.defaults = DEFAULTS
        self._blocks: List[Block] = []
        for pattern, kind in (uncertainty or {}).items():
            self.add([Weights(pattern)], parse_kind(kind), pattern)

    def find_owners(self) -> None:
        """Look for the modules that own the parameters again, by their names."""
        for block in self._blocks:
            block.owner = self.module.get_submodule(block.path)

    def blocks(self) -> List[Block]:
        """All random blocks, in the order of the module's layers."""
        return list(self._blocks)

    def add(self, weights: Sequence[Weights], kind: Any, location: str) -> None:
        """Make weights random.

        The prior's mean is zero; where a point-estimate LM has no such parameter, it is the
        value the parameter starts with. A weight belongs to the first location that claims it.

        Args:
            weights: The weights, by patterns of parameter names.
            kind: The `WeightKind` of their posterior.
            location: Name of the weights in logs and reports; "": the name of each parameter's
                module.

        Raises:
            InputError: There are no such parameters, or another location has made some of them
                random with other options.
        """
        given = {name: getattr(kind, name) for name in kind.inherits}
        kind = dataclasses.replace(
            kind, **{n: self.defaults[n] for n, value in given.items() if value is None}
        )
        for chosen in weights:
            for found in self.find(chosen):
                found.location, found.kind = location or found.path, kind
                for block in self._unclaimed(found):
                    mean = block.mean.detach()
                    kind.add(block, mean.clone() if chosen.is_new else torch.zeros_like(mean))
                    kind.start(block)
                    self._blocks.append(block)
                    if not is_random(block.owner):
                        # activation checkpointing would compute it again, without the sample
                        block.owner.register_forward_pre_hook(refuse_mean)
        order = {id(module): n for n, module in enumerate(self.module.modules())}
        self._blocks.sort(key=lambda block: order[id(block.owner)])

    def find(self, weights: Weights) -> List[Block]:
        """The parameters that a pattern matches, each once, as blocks without a posterior.

        Raises:
            InputError: There are none.
        """
        own = {id(p) for block in self._blocks for p in block.kind.parameters(block)}
        every = self.module.named_parameters(remove_duplicate=False)
        names = [(name, value) for name, value in every if id(value) not in own]
        matched: Dict[int, Block] = {}
        for name, value in names:
            if not fnmatchcase(name, weights.pattern):
                continue
            if id(value) in matched:  # tied
                matched[id(value)].aliases.append(name)
                continue
            path, _, parameter = name.rpartition(".")
            n, count = weights.part or (0, 1)
            size = math.prod(value.shape[:1])
            rows = (n * size // count, (n + 1) * size // count)
            key = f"{parameter}_{weights.label}" if weights.label else parameter
            owner = self.module.get_submodule(path)
            matched[id(value)] = Block(path, owner, parameter, rows, key=key)
        if not matched:
            some = ", ".join(name for name, _ in names[:4])
            raise InputError(
                f"{weights.pattern!r} matches none of the {len(names)} parameters ({some}, ...)",
                remedy="Choose from the names of `module.named_parameters()`.",
            )
        return list(matched.values())

    def _unclaimed(self, block: Block) -> List[Block]:
        """Runs of a block's rows that are not random yet."""
        (first, last), free = block.rows, []
        for other in sorted(self._blocks, key=lambda other: other.rows):
            begin, end = other.rows
            if other.whole is not block.whole:
                continue
            # tied: one sample under all names
            named = {other.name, *other.aliases}
            other.aliases += [n for n in (block.name, *block.aliases) if n not in named]
            block.path, block.owner, block.parameter = other.path, other.owner, other.parameter
            block.aliases = other.aliases
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
        runs = [(begin, end) for begin, end in (*free, (first, last)) if begin < end]
        if runs == [block.rows]:
            return [block]
        # a run's first row tells it from the others
        return [dataclasses.replace(block, rows=r, key=f"{block.key}_{r[0]}") for r in runs]

    @contextlib.contextmanager
    def sampled(self, generator: torch.Generator, *, with_kl: bool = False) -> Iterator[Sample]:
        """Compute with one sample of all random weights within the block, and the mean outside.

        Within the block `module.parameters()` has the sample, so that optimizers and `zero_grad`
        belong outside.

        Args:
            generator: Source of the noise, on the device of the weights.
            with_kl: True if the KL is wanted of the same pass over the weights, which costs little.

        Yields:
            The sample; `sample.kl()` is the KL of the posterior.
        """
        sample = Sample(self, generator, with_kl=with_kl)
        with sample.used():
            yield sample

    def kl(self, *, known: Optional[Mapping[Block, torch.Tensor]] = None) -> torch.Tensor:
        """KL(posterior || prior) summed over all random weights, in nats, ().

        The KL of blocks that is `known` is not computed again.
        """
        known = known or {}
        terms = [known[b] if b in known else b.kind.kl(b) for b in self._blocks]
        if not terms:
            return next(self.module.parameters()).new_zeros(())
        return torch.stack(terms).sum()

    def reset(self) -> None:
        """Set every posterior to its start."""
        for block in self._blocks:
            block.kind.start(block)

    def start_untrained(self) -> None:
        """Set posteriors that training has not changed to their start, at the present mean."""
        for block in self._blocks:
            block.kind.start_if_untrained(block)

    def set_prior_means(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the prior's means from the weights of another model of this architecture.

        Raises:
            InputError: The other model lacks a random weight, or has it in another shape.
        """
        state = dict(state)
        adapt_to_kinds(self.module, state, "")
        for block in self._blocks:
            name = block.name
            if name not in state and is_posterior_key(name):
                continue  # a point-estimate LM does not have it: the prior's mean is its start
            expected = tuple(block.whole.shape)
            found = tuple(state[name].shape) if name in state else "nothing"
            if found != expected:
                raise InputError(
                    f"prior for {block.location}: expected {name} of shape {expected}, got {found}",
                    remedy="The prior must be an LM of the same architecture and vocabulary.",
                )
            block.kind.set_prior_mean(block, state[name][slice(*block.rows)])

    def parameters_of(self, group: str) -> List[torch.Tensor]:
        """The posterior's own parameters in a group of the optimizer (`Kind.group`)."""
        return [
            parameter
            for block in self._blocks
            if block.kind.group == group
            for parameter in block.kind.parameters(block)
        ]


class Sample:
    """One sample of all that is random in a module: its weights, and its latent outputs.

    Args:
        posterior: Posterior of the module.
        generator: Source of the noise; None: the mean in place of a sample.
        with_kl: True to compute the KL of weights as they are sampled, where that costs little.
        token_kl: True to compute the KL of latent outputs in forward passes.
        hold: True if any number of forward passes has the same noise of latent outputs.

    Attributes:
        is_mean: True if it is the mean.
        values: {name of a parameter in the state_dict: value}.
        latents: {latent output: its `LatentSampling`}.
    """

    def __init__(
        self,
        posterior: Posterior,
        generator: Optional[torch.Generator],
        *,
        with_kl: bool = False,
        token_kl: bool = False,
        hold: bool = False,
    ):
        self.posterior, self._with_kl, self.is_mean = posterior, with_kl, generator is None
        self._terms: Dict[Block, torch.Tensor] = {}
        self.values: Dict[str, torch.Tensor] = {}
        self._together: Dict[Block, torch.Tensor] = {}
        parameters: Dict[str, List[Block]] = {}
        for block in posterior.blocks() if generator is not None else ():
            parameters.setdefault(block.name, []).append(block)
            if block.kind.samples_together and block not in self._together:
                group = [other for other in posterior.blocks() if other.kind is block.kind]
                self._together.update(block.kind.sample_together(group, generator))
        for name, blocks in parameters.items():
            value = self._value(sorted(blocks, key=lambda block: block.rows), generator)
            self.values.update(dict.fromkeys((name, *blocks[0].aliases), value))
        names = (name.rpartition(".") for name in self.values)
        self._places = [(posterior.module.get_submodule(path), name) for path, _, name in names]
        modules: Iterator[Any] = posterior.module.modules()
        self.latents = {
            module: module.sampling_by(generator, wants_kl=token_kl, hold=hold)
            for module in modules
            if "sampling" in vars(module)
        }

    def with_token_kl(self) -> Sample:
        """This sample, with the KL of latent outputs in forward passes."""
        sample = copy.copy(self)
        sample.latents = {
            latent: dataclasses.replace(how, wants_kl=True, kl=None)
            for latent, how in self.latents.items()
        }
        return sample

    def _value(self, blocks: Sequence[Block], generator: Any) -> torch.Tensor:
        """Value of a parameter: sampled rows of its blocks, ascending, and the mean elsewhere."""
        whole, sizes, parts = blocks[0].whole, [], []
        for before, block in zip([0, *(b.rows[1] for b in blocks)], blocks, strict=False):
            sizes += [block.rows[0] - before, block.rows[1] - block.rows[0]]
        # split and not sliced: the gradients of slices would each be as large as the parameter
        sizes.append(math.prod(whole.shape[:1]) - blocks[-1].rows[1])
        rows = torch.atleast_1d(whole).split(sizes)
        for kept, mean, block in zip(rows[::2], rows[1::2], blocks, strict=False):
            kind, value, kl = block.kind, self._together.get(block), None
            if value is None:
                value, kl = kind.sample_with_kl(block, mean, generator, wants_kl=self._with_kl)
            parts += [kept, value]
            if kl is not None:
                self._terms[block] = kl
        parts = [part for part in (*parts, rows[-1]) if len(part)]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).view(whole.shape)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Put the sample in place of the parameters within the block."""
        undo: List[Tuple[nn.Module, str, Any, Any]] = []
        for (owner, parameter), value in zip(self._places, self.values.values(), strict=True):
            mean, means = owner._parameters[parameter], vars(owner).get(MEANS)
            undo.append((owner, parameter, mean, means))
            vars(owner)[MEANS] = {parameter: mean, **(means or {})}  # within a sample: the mean
            owner._parameters[parameter] = value  # type: ignore[assignment]  # no leaf
        recurrent = {owner for owner, *_ in undo if isinstance(owner, nn.RNNBase)}
        for layer in recurrent:
            _refresh(layer)
        outer = {latent: latent.sampling for latent in self.latents}
        for latent, how in self.latents.items():
            latent.sampling = how
        try:
            yield
        finally:
            for latent, how in outer.items():
                latent.sampling = how
            for owner, parameter, before, means in reversed(undo):
                owner._parameters[parameter] = before
                vars(owner)[MEANS] = means
                if means is None:
                    del vars(owner)[MEANS]
            for layer in recurrent:
                _refresh(layer)

    def kl(self) -> torch.Tensor:
        """KL of the posterior, as `Posterior.kl` gives it."""
        return self.posterior.kl(known=self._terms)

    def token_kl(self) -> Optional[torch.Tensor]:
        """KL of the latent outputs of the last forward pass, in nats, summed over them.

        (B, L), or (N,) after a pass on N rows; None where there are none.
        """
        terms = [how.kl for how in self.latents.values() if how.kl is not None]
        return torch.stack(terms).sum(0) if terms else None


def _refresh(owner: nn.RNNBase) -> None:
    """Make a recurrent layer of torch look at its weights again, of which it keeps a list."""
    owner._flat_weights = [getattr(owner, name) for name in owner._flat_weights_names]


def refuse_mean(module: nn.Module, _: Any = None) -> None:
    """Refuse a forward pass within a backward pass that would use means in place of a sample.

    A hook of modules that own random weights; layers whose weights are used otherwise than by
    calling them ask by themselves.
    """
    if module.training and MEANS not in vars(module) and in_backward_pass():
        raise recomputation_error()


def is_random(module: nn.Module) -> bool:
    """True if a module owns random weights."""
    return refuse_mean in module._forward_pre_hooks.values()

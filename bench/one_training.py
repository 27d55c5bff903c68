"""A training of the suite "training", and what the parts of its steps take."""

from __future__ import annotations

import argparse
import contextlib
import functools
from typing import Any, Iterator, List, Sequence, Tuple

import torch
from compared import Batch, Variant
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import Reporter
from steps import timed
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.training.trainer import BayesLMTrainer


class GivenGradients(torch.autograd.Function):
    """0, whose gradients with respect to tensors are given, and nobody's but autograd's then."""

    @staticmethod
    def forward(ctx: Any, gradients: List[torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        """Return 0, ()."""
        ctx.gradients = gradients
        return tensors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        """Give the gradients away."""
        return None, *(ctx.gradients.pop(0) for _ in range(len(ctx.gradients)))


def distributed_model(model: nn.Module, options: argparse.Namespace) -> nn.Module:
    """Return the model as ESPnet's trainer wraps it."""
    found = nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=options.gradient_as_bucket_view
    )
    if options.ddp_comm_hook is not None:
        found.register_comm_hook(None, getattr(default_hooks, options.ddp_comm_hook))
    return found


class Training:
    """A variant's model and optimizer, and ESPnet's trainer."""

    def __init__(
        self, options: argparse.Namespace, variant: Variant, *, distributed: DistributedOption
    ):
        torch.manual_seed(0)
        self.variant, self.distributed = variant, distributed
        self.device = torch.device("cuda" if options.ngpu else "cpu")
        self.model = BayesLMTask.build_model(options).to(self.device)
        self.optimizers = BayesLMTask.build_optimizers(options, self.model)
        self.options = BayesLMTrainer.build_options(options)
        self.wrapped: nn.Module = self.model
        if distributed.distributed:
            self.wrapped = distributed_model(self.model, options)
        self.lm = self.model.lm

    def lowered(self) -> Any:
        """Return the context of ESPnet's LM in bfloat16; our model has its own."""
        if self.variant.low and self.variant.uncertainty is None:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def train(self, batches: Sequence[Batch]) -> None:
        """Do a step for each batch."""
        reporter = Reporter()
        reporter.set_epoch(1)
        with reporter.observe("train") as observed, self.lowered():
            BayesLMTrainer.train_one_epoch(
                model=self.wrapped,
                iterator=[(keys, dict(batch)) for keys, batch in batches],
                optimizers=self.optimizers,
                schedulers=[None],
                scaler=None,
                reporter=observed,
                summary_writer=None,
                options=self.options,
                distributed_option=self.distributed,
            )
        self.finish()

    def finish(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch."""
        with self.lowered():
            values = {key: value.to(self.device) for key, value in batch[1].items()}
            loss: torch.Tensor = self.model(**values)[0]
            return loss

    @contextlib.contextmanager
    def only_vocabulary(self) -> Iterator[None]:
        """Make the loss that of random outputs of the LM's layers, without the KL."""
        decoder = self.lm.decoder

        def outputs(input: torch.Tensor) -> torch.Tensor:
            shape = (*input.shape, decoder.in_features)
            return torch.zeros(shape, device=input.device, requires_grad=True)

        if self.variant.uncertainty is None:
            self.lm.forward = lambda input, hidden: (decoder(outputs(input)), None)
        else:
            self.lm.outputs = lambda input: (outputs(input), decoder.weight)
            self.model.kl_term = lambda num_tokens, draw=None: torch.zeros((), device=self.device)
        try:
            yield
        finally:
            for owner, name in ((self.lm, "forward"), (self.lm, "outputs")):
                owner.__dict__.pop(name, None)
            self.model.__dict__.pop("kl_term", None)

    def vocabulary_seconds(self, batches: Sequence[Batch]) -> float:
        """Return the seconds of the output projection and the softmax, both passes."""

        def work() -> None:
            for batch in batches:
                self.loss(batch).backward()
                self.model.zero_grad()
            self.finish()

        with self.only_vocabulary():
            return min(timed(work) for _ in range(2))

    def sampling_seconds(self, batches: Sequence[Batch]) -> float:
        """Return the seconds of the draws and the KL, both passes."""
        blocks = [] if self.variant.uncertainty is None else self.lm.posterior.blocks()
        if not blocks:
            return 0.0
        places = list({block.name: (block.owner, block.parameter) for block in blocks}.values())
        weights = [getattr(module, name) for module, name in places]

        def work(given: List[List[torch.Tensor]]) -> None:
            for _, batch in batches:
                with self.lm.drawn(weight_kl=True) as sample:
                    values = [getattr(module, name) for module, name in places]
                kl = self.model.kl_term(batch["text_lengths"].sum().to(self.device), sample)
                (GivenGradients.apply(given.pop(), *values) + kl).backward()
                self.model.zero_grad()
            self.finish()

        def seconds() -> float:
            given = [[torch.ones_like(weight) for weight in weights] for _ in batches]
            return timed(functools.partial(work, given))

        return min(seconds() for _ in range(2))

    def optimizer_seconds(self, batches: Sequence[Batch]) -> float:
        """Return the seconds of the gradients' norm and the optimizer's steps."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

        def work() -> None:
            for _ in batches:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.options.grad_clip)
                for optimizer in self.optimizers:
                    optimizer.step()
            self.finish()

        seconds = min(timed(work) for _ in range(2))
        self.model.zero_grad()
        return seconds

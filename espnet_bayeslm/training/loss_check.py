"""Check that the losses of a training are finite numbers, without waiting for a GPU."""

from __future__ import annotations

from typing import Dict, List, Optional

import torch

from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.utils.errors import InputError


class LossCheck:
    """Check of the loss of each training step.

    A device is not waited for: its loss is checked with the next step, or before a validation, a
    checkpoint of which comes later. ESPnet's trainer makes no update with gradients that are not
    finite.

    Args:
        lm: The LM, whose locations an error names.
    """

    def __init__(self, lm: UncertainLM):
        self.lm, self.num_steps = lm, 0
        self._unchecked: Optional[torch.Tensor] = None

    def add(self, loss: torch.Tensor) -> None:
        """Count a step and take its loss, (), to be checked: at once on a CPU."""
        self.num_steps += 1
        self._unchecked = loss
        if loss.device.type == "cpu":
            self.check()

    def lengths_on_host(self, lengths: torch.Tensor) -> torch.Tensor:
        """Lengths of a batch on the host: in training the one wait for the device in a step.

        The loss of the step before is checked with it.
        """
        if self._unchecked is None:
            return lengths.cpu()
        loss = self._unchecked.double().reshape(1)
        values = torch.cat([lengths.double(), loss]).cpu()
        self._unchecked = values[-1]
        self.check()
        return values[:-1].long()

    def check(self) -> None:
        """Raise an InputError where the loss of the last step is not a finite number."""
        loss, self._unchecked = self._unchecked, None
        if loss is not None and not torch.isfinite(loss):
            raise loss_error(loss, self.lm, self.num_steps)


def loss_error(loss: torch.Tensor, lm: UncertainLM, step: int) -> InputError:
    """Error of a loss that is not finite, with the range of sigma at each location."""
    stds: Dict[str, List[float]] = {}
    broken = set()
    for block in lm.posterior.blocks():
        std = block.std
        stds.setdefault(block.location, []).extend((float(std.min()), float(std.max())))
        if not (block.mean.isfinite().all() and std.isfinite().all()):
            broken.add(block.location)
    for location, latent in lm.latents():
        if latent.typical_std is not None:
            stds[location] = [latent.typical_std]
    where = [f"the training loss is {loss.item()} at step {step} of this run"]
    for location in sorted(stds, key=lambda name: (name not in broken, -max(stds[name]))):
        also = " and weights that are not finite" if location in broken else ""
        low, high = torch.tensor(stds[location]).aminmax()  # nan where one is
        where.append(f"{location} has sigma {low:.3g} to {high:.3g}{also}")
    return InputError(
        "; ".join(where),
        remedy="The last checkpoint is as it was: lower the learning rate (optim_conf lr,"
        " model_conf posterior_lr) or init_std, or set grad_clip, and resume.",
    )

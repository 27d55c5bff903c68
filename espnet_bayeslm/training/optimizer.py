"""One optimizer of two: `optim` for the weights, Adam for the parameters of the posterior."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, Mapping, Optional

import torch
from torch.optim import Optimizer

from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.loading.trained_lm import add_ivon_posterior
from espnet_bayeslm.utils.errors import InputError

POSTERIOR = "posterior"
# A step of a network moves its output by a sum over its inputs, a log standard deviation by
# itself.
LATENT_RATE = 0.1


class PosteriorOptimizer(Optimizer):
    """Two optimizers that a training loop sees as one.

    Under one rate log standard deviations would hardly move: the gradient of the loss per token
    with respect to one of them is of the order of 1 / num_train_tokens. The networks of latent
    outputs would diverge: the curvature of their KL is 1 / sigma^2. Adam's steps do not depend
    on the gradient's scale. The schedulers of ESPnet change all rates by one factor.

    Args:
        weights: Of all other parameters.
        posterior: Of the log standard deviations, the latent outputs' networks and the
            architecture weights of a search.
    """

    def __init__(self, weights: Optimizer, posterior: Optimizer):
        self.weights, self.posterior = weights, posterior
        # the groups are the parts' own: a scheduler that changes a rate here changes it there
        super().__init__([*weights.param_groups, *posterior.param_groups], {})
        self.defaults = weights.defaults

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Do a step of both optimizers."""
        loss = self.weights.step(closure)
        self.posterior.step()
        return loss

    def state_dict(self) -> Dict[str, Any]:
        """State of both optimizers."""
        return {"weights": self.weights.state_dict(), POSTERIOR: self.posterior.state_dict()}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Load the state of both optimizers."""
        self.weights.load_state_dict(state_dict["weights"])
        self.posterior.load_state_dict(state_dict[POSTERIOR])
        self.param_groups = [*self.weights.param_groups, *self.posterior.param_groups]


def fused_on_cpu(optim: Any, conf: Mapping[str, Any], model: torch.nn.Module) -> Dict[str, Any]:
    """Options of an optimizer, with torch's fused step on a CPU if it has one.

    That goes through the weights once, where the plain one (`fused: false`) does for each of its
    operators: at the paper's sizes an eighth of a training step. Options that say how the step is
    done are returned as they are.
    """
    is_chosen = {"fused", "foreach", "differentiable"}.intersection(conf)
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    if is_chosen or not on_cpu or "fused" not in inspect.signature(optim).parameters:
        return dict(conf)
    return {**conf, "fused": True}


def adam_groups(model: torch.nn.Module) -> List[Dict[str, Any]]:
    """Parameters that Adam trains, whatever `optim` is, and their rates.

    Log standard deviations have the model's `posterior_lr`, latent outputs' networks a tenth of
    it, architecture weights of a search its `architecture_lr`. Without a rate `optim` trains them.
    """
    lr, of_search = getattr(model, "posterior_lr", None), getattr(model, "architecture_lr", None)
    rates = {POSTERIOR: lr, "networks": lr and LATENT_RATE * lr, "architecture": of_search}
    groups = [{"params": parameters_of(model, name), "lr": rate} for name, rate in rates.items()]
    return [group for group in groups if group["params"] and group["lr"] is not None]


def parameters_of(model: torch.nn.Module, group: str) -> List[torch.Tensor]:
    """Parameters of one group of `Kind.group`, such as the standard deviations of the posterior."""
    owners: List[Any] = [m.posterior for m in model.modules() if isinstance(m, UncertainLM)]
    owners += [module for module in model.modules() if hasattr(module, "parameters_of")]
    return [p for owner in owners for p in owner.parameters_of(group)]


def split_posterior(optimizer: Optimizer, model: torch.nn.Module) -> Optimizer:
    """Optimizer in which Adam trains the parameters of `adam_groups`, and `optimizer` the rest."""
    groups = adam_groups(model)
    if not groups:
        return optimizer
    mine = {id(p) for group in groups for p in group["params"]}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in mine]
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
    options = fused_on_cpu(torch.optim.Adam, {}, model)
    return PosteriorOptimizer(optimizer, torch.optim.Adam(groups, **options))


def add_optimizer_posterior(model: torch.nn.Module) -> None:
    """Give an LM the buffers in which `optim: ivon` keeps the posterior over all its weights."""
    lm: Any = model.lm
    locations = lm.locations() if isinstance(lm, UncertainLM) else []
    if locations or getattr(model, "regularizer", None) is not None:
        uncertain = f"is uncertain at {', '.join(locations)}"
        raise InputError(
            "optim ivon learns a posterior over all weights, with a prior of its own, and this"
            f" model {uncertain if locations else 'has a regularizer'}",
            remedy="Use lm_conf uncertainty: {} and no regularizer with it.",
        )
    if getattr(model, "num_samples", 1) > 1:
        raise InputError(
            f"optim ivon draws its weights once a step, and num_samples is {model.num_samples}",
            remedy="Use model_conf num_samples: 1 with it.",
        )
    add_ivon_posterior(lm)

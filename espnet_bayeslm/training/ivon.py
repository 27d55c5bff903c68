"""IVON, the improved variational online Newton optimizer: a posterior over all weights.

Written from Algorithm 1 of Shen et al. 2024, "Variational Learning is Effective for Large Deep
Networks", arXiv 2402.17641.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import Posterior
from espnet_bayeslm.bayes.base_kinds import Block, is_posterior_key
from espnet_bayeslm.bayes.noise import noise_generator
from espnet_bayeslm.bayes.objective import LOG_STD_MIN
from espnet_bayeslm.kinds.bayes import LOG_STD
from espnet_bayeslm.kinds.whole_posterior import perturb, whole_blocks
from espnet_bayeslm.training.model import check_known
from espnet_bayeslm.utils.errors import InputError

Group = Dict[str, Any]

RANGES = {
    **dict.fromkeys(("lr", "weight_decay"), (0.0, 1e30)),
    **dict.fromkeys(("ess", "hess_init"), (1e-30, 1e30)),
    **dict.fromkeys(("beta1", "beta2"), (0.0, 1 - 1e-12)),
    "clip_radius": (1e-30, math.inf),
}
PRIORS = ("zero", "start")


class IVON(torch.optim.Optimizer):
    """Variational online Newton with a diagonal Gaussian posterior (Alg. 1, Shen et al. 2024).

    Each parameter is the posterior's mean m, and its standard deviation is
    1 / sqrt(ess * (h + weight_decay)), h being an estimate of the loss's second derivative.
    The gradient is taken at one sample per step, which the model makes by itself after `attach`.
    The training loop must call `zero_grad` before the forward pass or after `step`.

    The loss must be the mean NLL per training token, without a penalty on the weights: the
    prior N(0, 1 / (ess * weight_decay)) is the optimizer's. A gradient that is clipped makes h
    too small, so let the trainer's `grad_clip` be rare, and use `clip_radius`.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate; where SGD trains the LM well, its rate is a good start.
        ess: Effective sample size, the number of training tokens; `set_ess` can set it later.
            A smaller value is a hotter posterior, a larger value a colder one.
        hess_init: h at the start, h0. A small value is a wide posterior; keep sigma below the
            weights.
        beta1: Momentum of the gradient.
        beta2: Momentum of h. A run of fewer than some 1 / (1 - beta2) steps keeps h near h0
            (the paper's runs are longer, and its value nearer to 1).
        weight_decay: delta; the prior's variance is 1 / (ess * weight_decay).
        clip_radius: Largest |(g + delta m) / (h + delta)| of an element.
        rescale_lr: True to multiply lr by (h0 + delta), so that the first steps are as long as
            those of SGD with momentum.
        prior: `zero`, N(0, 1 / (ess * weight_decay)), or `start`: the posterior that the training
            starts from, of an LM that `optim: ivon` has trained before. Its precision is that
            posterior's, in place of ess * weight_decay, and its mean what is decayed to. The
            smaller `ess`, the more it weighs.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        ess: Optional[float] = None,
        hess_init: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 1e-6,
        clip_radius: float = math.inf,
        rescale_lr: bool = True,
        prior: str = "zero",
    ):
        defaults: Group = dict(lr=lr, ess=ess, hess_init=hess_init, beta1=beta1, beta2=beta2)
        defaults |= dict(weight_decay=weight_decay, clip_radius=clip_radius, rescale_lr=rescale_lr)
        _check(defaults)
        check_known(PRIORS, prior=prior)
        defaults["prior"] = prior
        super().__init__(params, defaults)
        # Draws that are over, a step or none having come of them; they count the noise.
        self.num_draws = 0
        # The other value of each drawn parameter: the mean while it is perturbed, else the draw.
        self._other: Dict[torch.Tensor, torch.Tensor] = {}
        self._perturbed = False
        # The posterior's block of each parameter that has one
        self._blocks: Dict[torch.Tensor, Block] = {}
        self._posterior_is_stale = True

    def set_ess(self, ess: float) -> None:
        """Set the effective sample size where the options left it open."""
        for group in self.param_groups:
            if group["ess"] is None:
                _check({**group, "ess": ess})
                group["ess"] = ess

    def attach(self, model: nn.Module, posterior: Optional[Posterior] = None) -> None:
        """Hook into a model: a sample in forward passes of training, else the posterior mean.

        A forward pass in training mode draws once per step. One in evaluation mode, and
        `state_dict`, put the means back and fill the posterior's buffers.

        Args:
            model: The module that the trainer calls, before it is wrapped for distributed training.
            posterior: The posterior over its weights, after `add_whole_posterior`.
        """
        blocks = [] if posterior is None else whole_blocks(posterior)
        self._blocks = {block.whole: block for block in blocks}

        def before_forward(module: nn.Module, _: Any) -> None:
            if module is not model:
                raise InputError(
                    "IVON cannot draw for the replicas of torch.nn.DataParallel",
                    remedy="Use --multiprocessing_distributed true.",
                )
            self._use_draw() if module.training else self.use_means()

        model.register_forward_pre_hook(before_forward)
        for module in model.modules():
            module.register_state_dict_pre_hook(lambda *_: self.use_means())
            # What is loaded must not be overwritten by the means of before.
            module.register_load_state_dict_pre_hook(lambda *_: self._end_draw())
        # All ranks compute the same ones: DistributedDataParallel need not send them.
        ignored = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
        ignored += [name for name, _ in model.named_buffers() if is_posterior_key(name)]
        model._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]

    def _drawn(self) -> Iterator[Tuple[Group, torch.Tensor]]:
        """Yield (group, parameter) of all parameters that are learnt."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    yield group, parameter

    def _use_draw(self) -> None:
        """Put the present sample into the weights, or a new one where there is none."""
        if self._perturbed:
            return
        if any(p.grad is not None for p in self._other):
            self._swap()
        else:
            self._end_draw()
            self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        """Perturb the weights by the noise of (seed, number of draws), the same on all ranks."""
        generators: Dict[torch.device, torch.Generator] = {}
        for group, p in self._drawn():
            if group["ess"] is None:
                raise InputError(
                    "IVON does not know the number of training tokens",
                    remedy="Set optim_conf's ess, or call set_ess before the first step.",
                )
            if p.device not in generators:
                counter = torch.initial_seed(), 0, self.num_draws
                generators[p.device] = noise_generator(*counter, device=p.device)
            if not self.state[p]:
                self.state[p].update(
                    step=0,
                    momentum=torch.zeros_like(p),
                    hess=torch.full_like(p, group["hess_init"]),
                )
                if group["prior"] == "start":
                    self.state[p].update(self._started_from(p, group["ess"]))
            std = _precision(self.state[p], group).rsqrt_()
            self._other[p] = p.clone()
            perturb(p, std, generators[p.device])
        self._perturbed = True

    def _started_from(self, p: torch.Tensor, ess: float) -> Dict[str, torch.Tensor]:
        """Mean of the prior of a parameter, and its precision by ess: those of its posterior."""
        block = self._blocks.get(p)
        log_std = None if block is None else block.tensor(LOG_STD)
        if log_std is None or bool((log_std <= LOG_STD_MIN).any()):
            raise InputError(
                "prior start of ivon: the training starts from weights without a posterior",
                remedy="Give --from an LM that was trained with optim ivon, or leave prior out.",
            )
        return {"prior_mean": p.clone(), "decay": log_std.mul(-2).exp_().div_(ess)}

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange means and draws, exactly, leaving each parameter where it lies in memory."""
        for p, other in self._other.items():
            self._other[p] = p.clone()
            p.copy_(other)
        self._perturbed = not self._perturbed

    @torch.no_grad()
    def use_means(self) -> None:
        """Put the means into the weights, and the standard deviations into their buffers.

        The draw is kept for the micro-batches that are still to come.
        """
        if self._perturbed:
            self._swap()
        if not self._posterior_is_stale:
            return
        for group, p in self._drawn():
            if self.state.get(p) and p in self._blocks:
                log_std = _precision(self.state[p], group).log_().mul_(-0.5)
                self._blocks[p].tensor(LOG_STD).copy_(log_std)
        self._posterior_is_stale = False

    def _end_draw(self) -> None:
        """Put the means back and forget the draw."""
        if self._perturbed:
            self._swap()
        if self._other:
            self.num_draws += 1
            self._posterior_is_stale = True
        self._other = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the draw at which they were taken."""
        self._end_draw()
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Put the means back, and update the posterior by the gradients at the draw."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        if self._perturbed:
            self._swap()
        for group, p in self._drawn():
            if p.grad is not None:
                if p not in self._other:
                    raise RuntimeError("IVON made no draw: call attach(model), and then the model")
                _update(p, p.grad, self._other[p], self.state[p], group)
        self._end_draw()
        return loss

    def state_dict(self) -> Dict[str, Any]:
        """Torch's state and the number of draws, so that a resumed run is the same."""
        return {**super().state_dict(), "num_draws": self.num_draws}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._end_draw()
        super().load_state_dict(state_dict)
        self.num_draws = state_dict["num_draws"]
        self._posterior_is_stale = True


def _precision(state: Dict[str, Any], group: Group) -> torch.Tensor:
    """Precision of a parameter's posterior."""
    precision: torch.Tensor = state["hess"] + state.get("decay", group["weight_decay"])
    return precision.mul_(group["ess"])


def _update(
    mean: torch.Tensor, grad: torch.Tensor, draw: torch.Tensor, state: Dict[str, Any], group: Group
) -> None:
    """Update a parameter's mean, momentum and h in place, by the gradient at the draw."""
    hess, momentum = state["hess"], state["momentum"]
    decay: Any = state.get("decay", group["weight_decay"])
    rate = 1 - group["beta2"]
    away = mean - state["prior_mean"] if "prior_mean" in state else mean
    state["step"] += 1
    momentum.mul_(group["beta1"]).add_(grad, alpha=1 - group["beta1"])
    curvature = hess + decay
    # h_hat / (h + delta), since 1 / sigma^2 = ess * (h + delta)
    estimate = (draw - mean).mul_(grad).mul_(group["ess"])
    # The new h + delta is (h + delta) * (1 + (1 - move)^2) / 2: no rounding makes it negative.
    move = hess.div(curvature).sub_(estimate).mul_(rate)
    curvature.mul_(move.neg_().add_(1).square_().add_(1).div_(2))
    hess.copy_(curvature).sub_(decay)
    unbiased = momentum / (1 - group["beta1"] ** state["step"])
    step = unbiased.add_(away * decay).div_(curvature)
    if math.isfinite(group["clip_radius"]):
        step.clamp_(-group["clip_radius"], group["clip_radius"])
    scale = group["hess_init"] + group["weight_decay"] if group["rescale_lr"] else 1.0
    mean.sub_(step, alpha=group["lr"] * scale)


def _check(options: Group) -> None:
    """Raise an InputError where an option is out of its range."""
    for name, (least, most) in RANGES.items():
        value = options[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and least <= value <= most) and (name, value) != ("ess", None):
            raise InputError(
                f"{name} of ivon: expected a number from {least:.3g} to {most:.3g}, got {value!r}"
            )

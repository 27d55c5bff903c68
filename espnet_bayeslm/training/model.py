"""ESPnet model whose loss is the negative evidence lower bound per token."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

import torch
from espnet2.lm.abs_model import AbsLM
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.torch_utils.device_funcs import force_gatherable
from typeguard import typechecked

from espnet_bayeslm.bayes import Sample, kl_per_token
from espnet_bayeslm.bayes.objective import REGULARIZERS, penalty
from espnet_bayeslm.kinds.architectures import ArchitectureLog
from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.training.loss_check import LossCheck
from espnet_bayeslm.training.nll import batch_nll, lowered, token_batch
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import check_least

# What `prior` is in place of a checkpoint where the prior's means are zero.
ZERO_PRIOR = "zero"
# And where they are the weights that the point-estimate phase ends with.
START_PRIOR = "start"
# Options that are no longer there -> the value that says what is done now
REMOVED = {"kl_scale": "elbo", "self_normalization": 0}


def check_known(valid: Sequence[str], **options: Optional[str]) -> None:
    """Raise an InputError where an option has none of the values that are valid."""
    for name, value in options.items():
        if value not in valid:
            raise InputError(f"{name} {value!r}: valid are {', '.join(valid)}")


def check_regularizer(regularizer: Optional[str], weight: Optional[float], lm: UncertainLM) -> None:
    """Raise an InputError where a regularizer is unknown, or does not fit the LM."""
    if regularizer is None:
        if weight is not None:
            raise InputError("regularizer_weight is given, and no regularizer")
        return
    check_known(REGULARIZERS, regularizer=regularizer)
    check_least(0, regularizer_weight=weight)
    if lm.locations():
        raise InputError(
            f"regularizer {regularizer} is for point-estimate LMs, and this one is uncertain at"
            f" {', '.join(lm.locations())}",
            remedy="Use uncertainty: {}, or no regularizer: the KL is one already.",
        )
    if regularizer == "map" and isinstance(lm.prior_variance, str):
        raise InputError(
            f"regularizer map: expected prior_variance a number above 0, got {lm.prior_variance!r}",
            remedy="A point estimate has no variance that a prior's could be learnt from.",
        )


class BayesLanguageModel(ESPnetLanguageModel):
    """Language model trained by variational inference (Eq. 19-34, Xue et al. 2022).

    Training loss = NLL per token + kl_weight * (KL of the weights / num_train_tokens + KL of the
    latent outputs per token). The validation loss is the NLL per token at the posterior mean, so
    checkpoints are chosen as for point estimates.

    Args:
        lm: One of this package's LMs.
        vocab_size: Number of tokens; the last is <sos/eos>.
        ignore_id: The padding token.
        kl_weight: Factor of the KL; 1 is the exact bound.
        kl_warmup_epochs: Number of Bayesian epochs over which the factor of the KL rises linearly.
        num_samples: Samples of the weights per training step, K in Eq. 21.
        num_train_tokens: Tokens of the training text with `</s>`; the LM task counts them.
        prior: Checkpoint of the point-estimate model that is the prior's mean, or `zero`
            (default: zero, or what --init_param brings). The LM task loads it; here it is a
            record in the configuration.
        regularizer: For an LM without uncertainty, `l1` (sum of |theta|), `l2` (1/2 sum of
            theta^2) or `map` (minus the log density of the Bayesian LM's prior, up to a
            constant), over all its parameters, added to the loss per token.
        regularizer_weight: Factor of the regularizer; default 1 / num_train_tokens, which makes it
            the log density of a prior (Laplace or Gaussian of scale 1, or the LM's own).
        posterior_lr: Rate of Adam for the log standard deviations, whatever `optim` is. Their
            gradient is of the order of 1 / num_train_tokens, so SGD would not move them. The
            networks of latent outputs have a tenth of this rate, since they diverge under SGD.
            None: `optim` trains both.
        architecture_lr: Rate of Adam for the architecture weights of a search. None: `optim`
            trains them.
        autocast: Precision of the products in training, `bfloat16` (on a CPU too) or null.
        warmup_epochs: Largest number of point-estimate epochs (no samples, no KL) before the
            Bayesian phase, which starts from the best of them; with `prior: start` this is the
            prior's mean too. There are none where `--init_param` brings a trained LM, or where no
            location is uncertain.
        min_iters_per_epoch: Smallest number of batches in an epoch. A text with fewer is read
            several times in an epoch, since Adam moves a weight by a given amount per step, however
            small the text is. ESPnet's `--num_iters_per_epoch` overrides it.
        **removed: Options of `REMOVED`, with which old configurations still load for scoring.
    """

    @typechecked
    def __init__(
        self,
        lm: AbsLM,
        vocab_size: int,
        ignore_id: int = 0,
        kl_weight: float = 1.0,
        kl_warmup_epochs: int = 0,
        num_samples: int = 1,
        num_train_tokens: Optional[int] = None,
        prior: Optional[str] = None,
        regularizer: Optional[str] = None,
        regularizer_weight: Union[float, int, None] = None,
        posterior_lr: Union[float, int, None] = 0.01,
        architecture_lr: Union[float, int, None] = 0.003,
        autocast: Optional[str] = None,
        warmup_epochs: int = 0,
        min_iters_per_epoch: int = 0,
        **removed: Any,
    ):
        super().__init__(lm, vocab_size, ignore_id)
        if unknown := removed.keys() - REMOVED.keys():
            raise TypeError(f"unexpected options: {', '.join(sorted(unknown))}")
        for name in [name for name, value in removed.items() if value != REMOVED[name]]:
            LOG.warning(f"model_conf {name} was removed: scores are the same, training is not")
        if not isinstance(lm, UncertainLM):
            raise InputError(
                f"model bayes_lm needs an LM of espnet_bayeslm, got {type(lm).__name__}"
            )
        if lm.sos is not None and lm.eos is not None:
            self.sos, self.eos = lm.sos, lm.eos
        # What ESPnet's lm_inference reads
        self.sos_ids, self.eos_id = [self.sos], self.eos
        check_least(1, num_samples=num_samples, num_train_tokens=num_train_tokens)
        check_least(0, kl_weight=kl_weight, kl_warmup_epochs=kl_warmup_epochs)
        # read by the task, which makes the epochs
        check_least(0, min_iters_per_epoch=min_iters_per_epoch)
        check_regularizer(regularizer, regularizer_weight, lm)
        for name, rate in (("posterior_lr", posterior_lr), ("architecture_lr", architecture_lr)):
            if rate is not None and not 0 < rate < math.inf:
                raise InputError(f"{name} {rate}: expected a number above 0, or null")
        check_known(("null", "bfloat16"), autocast=autocast or "null")
        self.autocast = autocast
        self.posterior_lr, self.architecture_lr = posterior_lr, architecture_lr
        self.architecture_log = ArchitectureLog(lm)
        self.regularizer = regularizer
        self.regularizer_weight = regularizer_weight
        self._map_means: Dict[str, torch.Tensor] = {}
        self.full_kl_weight, self.kl_warmup_epochs = kl_weight, kl_warmup_epochs
        self.kl_weight, self.num_samples = kl_weight, num_samples
        self.num_train_tokens = num_train_tokens
        self.warmup_epochs, self.prior = warmup_epochs, prior
        self.warming = False
        self.prior_is_set = prior in (None, START_PRIOR)
        self._prior: Optional[Dict[str, torch.Tensor]] = None
        self._raw_kl: Optional[torch.Tensor] = None
        self._loss_check = LossCheck(lm)
        # They never change: DistributedDataParallel need not send them at each step.
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    def set_prior_means(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the prior's means from the state_dict of a trained ESPnet LM model.

        They are taken again by `apply_prior`, should something load over them before.
        """
        prefix = "lm."
        self._prior = {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
        self.lm.posterior.set_prior_means(self._prior)
        if self.regularizer == "map":
            self._map_means = {name: self._prior[name] for name, _ in self.lm.named_parameters()}
        self.prior_is_set = True

    def apply_prior(self) -> None:
        """Take the prior's means that `set_prior_means` was given, if any, and forget them."""
        if self._prior is not None:
            self.lm.posterior.set_prior_means(self._prior)
            self._prior = None

    def _known_tokens(self) -> Optional[int]:
        """Size of the training text; only in evaluation may it, and the prior, be unknown."""
        is_counted = self.num_train_tokens is not None
        if (self.training or is_counted) and not (is_counted and self.prior_is_set):
            missing = "the prior" if is_counted else "num_train_tokens"
            raise RuntimeError(
                f"{missing} is not set: train with `python -m espnet_bayeslm -m"
                " espnet2.bin.lm_train`, or set it on the model before the first step"
            )
        return self.num_train_tokens

    def kl_term(self, sample: Optional[Sample] = None) -> torch.Tensor:
        """The weights' KL term of the loss in nats per token, ().

        It is not a number in evaluation where the size of the training text is not known. With
        `sample` some of the KL is known.
        """
        device = next(self.lm.parameters()).device
        if self.warming:
            return torch.zeros((), device=device)
        # 1: of a KL that is zero
        num_train_tokens = self._known_tokens() if self.lm.posterior.blocks() else 1
        if num_train_tokens is None:
            return torch.full((), float("nan"), device=device)
        raw = self._raw_kl
        if raw is None:
            # Autocast would take squares and exponentials of a million weights in half precision.
            with torch.autocast(device.type, enabled=False):
                raw = (sample or self.lm.posterior).kl()
        if not self.training:
            # The weights stay as they are during validation.
            self._raw_kl = raw.detach()
        return kl_per_token(raw, num_train_tokens=num_train_tokens, weight=self.kl_weight)

    def start_epoch(self, number: int) -> None:
        """Set the KL's factor for an epoch of the uncertain phase, counted from 1."""
        share = min(1.0, number / (self.kl_warmup_epochs + 1))
        self.kl_weight = self.full_kl_weight * share

    def penalty_term(self) -> torch.Tensor:
        """The regularizer's part of the loss in nats per token, ()."""
        assert self.regularizer is not None
        device = next(self.lm.parameters()).device
        self._map_means = {n: m.to(device) for n, m in self._map_means.items()}
        weight = self.regularizer_weight
        if weight is None:
            weight = 1 / (self._known_tokens() or float("nan"))
        return weight * penalty(
            dict(self.lm.named_parameters()),
            self.regularizer,
            prior_means=self._map_means,
            prior_variance=self.lm.prior_variance,
        )

    def train(self, mode: bool = True) -> "BayesLanguageModel":
        """Set training or evaluation mode, and forget packed weights."""
        self._raw_kl = None
        self._loss_check.check()
        return super().train(mode)

    def _sampled_nll(
        self, text: torch.Tensor, text_lengths: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Sample]:
        """NLL and latent outputs' KL per token, means over K samples, both ().

        Then the number of tokens, and the first sample.
        """
        lengths = self._loss_check.lengths_on_host(text_lengths)
        learns_posterior = self.training and not self.warming
        draws = self.num_samples if learns_posterior and self.lm.has_draws() else 1
        num_tokens = (text_lengths + 1).sum()
        batch = token_batch(self, text, text_lengths, lengths)
        total, total_kl = text_lengths.new_zeros(()), text_lengths.new_zeros(())
        first: Optional[Sample] = None
        for _ in range(draws):
            weight_kl = learns_posterior and first is None
            with self.lm.drawn(weight_kl=weight_kl, token_kl=True) as sample:
                total = total + batch_nll(self, batch)
            first = first or sample
            kl = sample.token_kl()
            if kl is not None:
                # padding has a latent output too, unless only rows that count were computed
                total_kl = total_kl + (kl if kl.dim() == 1 else batch.counted(kl)).sum()
        per_token = draws * num_tokens
        assert first is not None
        return total / per_token, total_kl / per_token, num_tokens, first

    def forward(
        self, text: torch.Tensor, text_lengths: torch.Tensor, **kwargs: Any
    ) -> Tuple[torch.Tensor, Dict[str, torch.Tensor], torch.Tensor]:
        """Loss, statistics and weight of a batch.

        Args:
            text: Token ids without <sos/eos>, padded, (B, L).
            text_lengths: (B,).
            **kwargs: Other items of ESPnet's iterator (utterance ids).

        Returns:
            The loss per token; `loss`, `nll` and `kl` in nats per token (and `penalty`, with a
            regularizer), of which in training loss = nll + kl + penalty, and `ppl` = exp(nll); the
            number of tokens.
        """
        with lowered(bool(self.autocast and self.training), text.device):
            nll, latent_kl, num_tokens, sample = self._sampled_nll(text, text_lengths)
        costs = [self.kl_term(sample) + self.kl_weight * latent_kl]
        stats = dict(nll=nll.detach(), kl=costs[0].detach(), ppl=nll.detach().exp())
        if self.regularizer is not None:
            costs.append(self.penalty_term())
            stats["penalty"] = costs[-1].detach()
        loss = nll
        # the validation loss is the NLL alone
        if self.training:
            loss = sum(costs, nll)
            self._loss_check.add(loss.detach())
            self.architecture_log.add()
        # A copy: the trainer divides the loss by accum_grad in place.
        stats["loss"] = loss.detach().clone()
        return force_gatherable((loss, stats, num_tokens), loss.device)

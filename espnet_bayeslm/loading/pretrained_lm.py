"""Pretrained LMs as `espnet_bayeslm.load` returns them, and those that our training has adapted."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Optional

from espnet_bayeslm.loading.experiment import find_files, fingerprint, read_config
from espnet_bayeslm.loading.trained_lm import LoadedLM, load_model
from espnet_bayeslm.pretrained.loaded_lm import CausalLM
from espnet_bayeslm.pretrained.loaded_weights import check_finite
from espnet_bayeslm.pretrained.names import ModelNotFound, base_not_found, check_is_base
from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer
from espnet_bayeslm.pretrained.text_forms import AUTO, TextForm
from espnet_bayeslm.utils.files import PathLike


@dataclasses.dataclass(frozen=True)
class PretrainedLM(CausalLM, LoadedLM):
    """A causal LM with its own tokenizer, which scores sentences in a form of the text.

    `PretrainedLM(**vars(lm))` makes it of a `CausalLM`.
    """

    @functools.cached_property
    def scorer(self) -> PretrainedScorer:
        """Scorer of its words."""
        return PretrainedScorer(self)

    def _scorer(self, num_samples: int) -> PretrainedScorer:
        self.scorer.num_samples = num_samples
        return self.scorer


def load_adapted(
    path: PathLike,
    device: str = "cpu",
    *,
    precision: str = "float32",
    text_form: str = AUTO,
    base: Optional[str] = None,
) -> PretrainedLM:
    """Pretrained LM that ESPnet's LM task has adapted, from its folder or checkpoint.

    The `precision` is of the base model, `float32` or `bfloat16`, whatever it was in training. The
    LM reads text in the form of its training; another `text_form` is a warning. The `base` model
    may stand elsewhere than in training.
    """
    if text_form != AUTO:
        TextForm.parse(text_form)
    config, checkpoint = find_files(path)
    args = read_config(config)
    named = args.lm_conf.get("model")
    if base:
        check_is_base(base)
    args.lm_conf = {**args.lm_conf, "precision": precision, "model": base or named}
    try:
        lm = load_model(args, checkpoint).to(device).eval().lm
    except ModelNotFound as error:
        if base:
            raise
        raise base_not_found(named, config, "lm_conf: model") from error
    check_finite(lm, str(checkpoint))
    # not every config.yaml has a digest of the whole base model
    digest = _digest(fingerprint(config, checkpoint, args), lm.fingerprint)
    loaded = lm.loaded(config.parent.resolve().name, fingerprint=digest)
    return PretrainedLM(**{**vars(loaded), "text_form": text_form})


def adapted_digest(path: PathLike) -> str:
    """Digest of an adapted LM, the fingerprint of `load_adapted`, from the files alone."""
    config, checkpoint = find_files(path)
    args = read_config(config)
    return _digest(fingerprint(config, checkpoint, args), args.lm_conf["fingerprint"])


def _digest(own: str, base: str) -> str:
    """Digest of an adapter's files and of its base model."""
    return hashlib.sha256(f"{own} {base}".encode()).hexdigest()

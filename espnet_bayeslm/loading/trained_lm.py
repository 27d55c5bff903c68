"""Trained LMs from their experiment folders."""

from __future__ import annotations

import dataclasses
import functools
import logging
from pathlib import Path
from typing import Callable, List, Sequence

from espnet2.lm.abs_model import AbsLM
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.loading.build import load_model, text_reader
from espnet_bayeslm.loading.experiment import (
    check_token_list,
    experiment_name,
    find_files,
    fingerprint,
    read_config,
    read_unk_size,
)
from espnet_bayeslm.pretrained.names import PRETRAINED
from espnet_bayeslm.pretrained.scorer import PretrainedLM
from espnet_bayeslm.scoring.neural import NeuralScorer
from espnet_bayeslm.scoring.uncertainty import LoadedLM
from espnet_bayeslm.scoring.unknown_words import usual_unk_size
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike


@dataclasses.dataclass(frozen=True)
class TrainedLM(LoadedLM):
    """A trained LM in evaluation mode, and how it reads text.

    Attributes:
        name: The experiment's name.
        path: The checkpoint.
        config: The configuration file.
        model: ESPnet's model around the LM.
        token_list: All tokens; the index is the id.
        token_type: `word`, `bpe` or `char`.
        tokenize: Cuts a sentence into tokens, by ESPnet's tokenizer.
        ids: Maps tokens to ids; an unknown token has the id of <unk>.
    """

    name: str
    path: Path
    config: Path
    model: ESPnetLanguageModel
    token_list: List[str]
    token_type: str
    tokenize: Callable[[str], List[str]]
    ids: Callable[[Sequence[str]], List[int]]

    @property
    def lm(self) -> AbsLM:
        """The LM itself."""
        return self.model.lm

    @functools.cached_property
    def unk_size(self) -> float:
        """Words that share the probability of `<unk>`: counted in training, or by Zipf's law."""
        if self.token_type != "word":
            return 1.0
        counted = read_unk_size(self.config.parent)
        size = usual_unk_size(len(self.token_list)) if counted is None else counted
        how = "estimated from the vocabulary" if counted is None else "counted in training"
        logging.info(f"{self.name}: <unk> stands for {size:.0f} words ({how})")
        return size

    @property
    def tokens(self) -> List[str]:
        """All tokens; the index is the id."""
        return self.token_list

    def _scorer(self, num_samples: int) -> NeuralScorer:
        return NeuralScorer(self, num_samples=num_samples, unk_size=self.unk_size)


def load_adapted(
    path: PathLike, device: str = "cpu", *, precision: str = "float32"
) -> PretrainedLM:
    """Pretrained LM that ESPnet's LM task has adapted, from its folder or checkpoint.

    The `precision` is of the base model, `float32` or `bfloat16`, whatever it was in training.
    """
    config, checkpoint = find_files(path)
    args = read_config(config)
    args.lm_conf = {**args.lm_conf, "precision": precision}
    lm = load_model(args, checkpoint).to(device).eval().lm
    causal = lm.causal_lm(experiment_name(checkpoint), fingerprint=fingerprint(path))
    return PretrainedLM(causal, reader=lm.reader)


def load_lm(path: PathLike, device: str = "cpu") -> TrainedLM:
    """Trained ESPnet LM, ours or any other, from its folder or checkpoint."""
    config, checkpoint = find_files(path)
    args = read_config(config)
    if args.lm == PRETRAINED:
        raise InputError(
            "an adapted pretrained LM, where an LM with tokens of its own was expected", path=path
        )
    check_token_list(args.token_list, path=str(config))
    model = load_model(args, checkpoint).to(device).eval()
    tokenize, ids = text_reader(args)
    locations = model.lm.locations() if isinstance(model.lm, UncertainLM) else []
    kind = f"uncertain at {', '.join(locations)}" if locations else "point estimates"
    logging.info(
        f"Loaded {checkpoint}: {args.lm}, {len(args.token_list)} {args.token_type} tokens,"
        f" {sum(p.numel() for p in model.parameters())} weights, {kind}"
    )
    name = experiment_name(checkpoint)
    return TrainedLM(
        name, checkpoint, config, model, args.token_list, args.token_type, tokenize, ids
    )

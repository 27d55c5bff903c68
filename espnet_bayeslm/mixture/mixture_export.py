"""A mixture of trained LMs and n-grams over their tokens as one LM, which ESPnet loads."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.kinds.search import choices
from espnet_bayeslm.kinds.whole_posterior import whole_blocks
from espnet_bayeslm.lm import MIXTURE
from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.loading.components import is_ngram, unique_names
from espnet_bayeslm.loading.experiment import read_config, read_unk_size, token_difference
from espnet_bayeslm.loading.export import (
    CONFIG,
    NGRAMS,
    check_target,
    reading_options,
    write_folder,
)
from espnet_bayeslm.loading.token_text import check_ngram
from espnet_bayeslm.loading.trained_lm import TrainedLM, load_lm
from espnet_bayeslm.mixture.weights_file import Weights, check_subtracted, read_weights
from espnet_bayeslm.ngram.ngram_files import ngram_fingerprint, ngram_name
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG

Source = Union[TrainedLM, PathLike]


def write_mixture(
    folder: PathLike,
    *,
    lms: Sequence[PathLike],
    ngrams: Sequence[PathLike] = (),
    weights: Weights = None,
    subtract_lms: Sequence[PathLike] = (),
    subtract_weights: Sequence[float] = (),
) -> None:
    """Write trained LMs and n-grams over their tokens as one LM that ESPnet loads.

    The folder has `config.yaml`, `valid.loss.ave.pth` with the weights of all LMs, the n-grams in
    `ngrams/`, and the sentencepiece model where there is one. How text is read is taken from the
    first LM. LMs and n-grams over the same tokens may be subtracted, log-linearly: their weights
    are at or below zero, where that of the mixture is 1.
    """
    if not lms:
        raise InputError("no LM in the mixture", remedy="Give --lm EXP: it has the token list.")
    there = Path(folder) / CONFIG
    if there.is_file() and read_config(there).lm != MIXTURE:
        raise InputError("holds another LM", path=folder, remedy="Give a new folder.")
    check_target(folder, sources=[path for path in (*lms, *subtract_lms) if not is_ngram(path)])
    load = functools.lru_cache(load_lm)  # one may be given twice
    trained = [load(os.fspath(path)) for path in lms]
    less = [path if is_ngram(path) else load(os.fspath(path)) for path in subtract_lms]
    sources: List[Source] = [*trained, *ngrams, *less]
    for source in sources:
        if isinstance(source, TrainedLM):
            _check_component(source, trained[0])
    if trained[0].token_type != "word":
        for path in [*ngrams, *filter(is_ngram, subtract_lms)]:
            check_ngram(path, trained[0].token_list, whose=trained[0].config)
    names = unique_names([s.name if isinstance(s, TrainedLM) else ngram_name(s) for s in sources])
    own = names[: len(lms) + len(ngrams)]
    _check_subtraction(names[len(own) :], subtract_weights)
    digests = [*(lm.fingerprint for lm in trained), *map(ngram_fingerprint, ngrams)]
    found, _ = read_weights(weights, own, fingerprints=digests)
    values: List[float] = found.tolist()
    every = list(zip(names, [*values, *subtract_weights], sources, strict=True))
    # what is subtracted with weight 0 would not be computed
    parts = [mixture_part(*item) for n, item in enumerate(every) if n < len(own) or item[1]]
    args = read_config(trained[0].config)
    reading = reading_options(args)
    conf: Dict[str, Any] = {"components": [part for part, _ in parts]}
    if not all(isinstance(source, TrainedLM) for _, source in parts):
        conf["tokens"] = list(args.token_list)
    state = _build(conf, parts, args.token_list).state_dict()
    copies = {}
    for part, source in parts:
        if not isinstance(source, TrainedLM):
            # two may have one name; KenLM knows a packed file by its content, people by its name
            name = part["name"] + Path(source).name[len(ngram_name(source)) :]
            copies[f"{NGRAMS}/{name}"] = source
            part["path"] = str(Path(folder) / NGRAMS / name)
    size = mixed_unk_size(trained, values)
    write_folder(folder, args, {"lm": MIXTURE, "lm_conf": conf, **reading}, state, size, copies)


def _check_subtraction(names: Sequence[str], weights: Sequence[float]) -> None:
    """Raise an InputError where subtracted LMs have not each a weight at or below zero."""
    if len(weights) != len(names):
        raise InputError(
            f"{len(weights)} --subtract_weight for {len(names)} --subtract_lm",
            remedy="Give a weight at or below zero for each, as `bayeslm rescore` has tuned it.",
        )
    check_subtracted(dict(zip(names, weights, strict=True)))


def mixed_unk_size(trained: Sequence[TrainedLM], weights: Sequence[float]) -> Optional[float]:
    """Number of words that the `<unk>` of a mixture stands for; None if no LM has counted it.

    The mean of the LMs' shares, 1 / size, by their weights: exact where the LMs agree on the size
    or on the probability of `<unk>`. N-grams do not count: their `<unk>` is one word's.
    """
    if all(read_unk_size(lm.config.parent) is None for lm in trained):
        return None
    known = list(zip(weights, trained, strict=False))  # n-grams have weights too
    total = sum(weight for weight, _ in known)
    if total == 0:
        return trained[0].unk_size
    return total / sum(weight / lm.unk_size for weight, lm in known)


def _check_component(trained: TrainedLM, first: TrainedLM) -> None:
    """Raise an InputError where an LM cannot be a component, or has other tokens than the first."""
    problem = token_difference(trained.token_list, first.token_list, whose=first.name)
    remedy = "Train the LMs of a mixture with one token list."
    if isinstance(trained.lm, MixtureLM):
        problem, remedy = "a mixture already", "Give the LMs that it was made of."
    elif choices(trained.lm):
        problem = "a super-network, which is no LM yet"
        remedy = "Train one of the architectures that `bayeslm search` ranks."
    elif first.token_type != trained.token_type:
        problem = f"it has {trained.token_type} tokens, and {first.name} {first.token_type} tokens"
    if problem:
        raise InputError(problem, path=trained.config, remedy=remedy)


def mixture_part(name: str, weight: float, source: Source) -> Tuple[Dict[str, Any], Source]:
    """Component of a mixture, as `lm_conf` has it, and its source."""
    part = {"name": name, "kind": "ngram", "weight": weight}
    if not isinstance(source, TrainedLM):
        return {**part, "path": os.fspath(source)}, source
    args = read_config(source.config)
    part.update(kind="lm", lm=args.lm, lm_conf=args.lm_conf)
    if whole_blocks(getattr(source.lm, "posterior", None)):
        part["whole_posterior"] = True
    return part, source


def _build(
    conf: Dict[str, Any], parts: Sequence[Tuple[Dict[str, Any], Source]], tokens: List[str]
) -> ESPnetLanguageModel:
    """Model of the mixture with the LMs' weights."""
    lm = MixtureLM(len(tokens), **conf)
    for (part, source), component in zip(parts, lm.components, strict=True):
        if isinstance(source, TrainedLM):
            component.load_state_dict(source.lm.state_dict())
        unknown = getattr(component, "unknown", [])
        LOG.info(f"Mixture: {part['weight']:.4f} {part['name']}")
        if unknown:
            LOG.warning(
                f"{part['name']} does not know {len(unknown)} of {len(tokens)} tokens"
                f" ({', '.join(map(repr, unknown[:5]))}): each has the probability of its <unk>"
            )
    return ESPnetLanguageModel(lm, len(tokens))

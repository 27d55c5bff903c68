"""Trained LMs and n-grams as one LM with fixed weights: an experiment folder of lm `mixture`."""

from __future__ import annotations

import functools
import logging
import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm.bayes.weights import whole_blocks
from espnet_bayeslm.kinds.search import choices
from espnet_bayeslm.lm.mixture import MixtureLM
from espnet_bayeslm.loading.build import MIXTURE
from espnet_bayeslm.loading.components import is_ngram
from espnet_bayeslm.loading.experiment import (
    UNKNOWN_WORDS,
    fingerprint,
    read_config,
    read_unk_size,
    token_difference,
    write_unk_size,
)
from espnet_bayeslm.loading.export import CHECKPOINT, CONFIG, READING, copy_text_files
from espnet_bayeslm.loading.trained_lm import TrainedLM, load_lm
from espnet_bayeslm.loading.weights_file import (
    NamedWeight,
    check_subtracted,
    read_weights,
    unique_names,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, staged, write_yaml
from espnet_bayeslm.utils.ngram_files import ngram_fingerprint, ngram_name

# The folder beside the checkpoint that holds the n-grams.
NGRAMS = "ngrams"
Source = Union[TrainedLM, PathLike]


def write_mixture(
    folder: PathLike,
    *,
    lms: Sequence[PathLike],
    ngrams: Sequence[PathLike] = (),
    weights: Optional[PathLike] = None,
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
    load = functools.lru_cache(load_lm)  # one may be given twice
    trained = [load(os.fspath(path)) for path in lms]
    less = [path if is_ngram(path) else load(os.fspath(path)) for path in subtract_lms]
    sources: List[Source] = [*trained, *ngrams, *less]
    names = []
    for source in sources:
        if isinstance(source, TrainedLM):
            _check_component(source, trained[0])
        names.append(source.name if isinstance(source, TrainedLM) else ngram_name(source))
    names = unique_names(names)
    if len(subtract_weights) != len(less):
        raise InputError(
            f"{len(subtract_weights)} --subtract_weight for {len(less)} --subtract_lm",
            remedy="Give a weight at or below zero for each, as `bayeslm rescore` has tuned it.",
        )
    own = names[: len(lms) + len(ngrams)]
    pairs = zip(names[len(own) :], subtract_weights, strict=True)
    check_subtracted([NamedWeight(*pair) for pair in pairs])
    digests = [*(fingerprint(lm.path) for lm in trained), *map(ngram_fingerprint, ngrams)]
    found = read_weights(weights, own, fingerprints=digests)
    if found is None:
        raise InputError(
            f"no weights for the {len(own)} components {', '.join(own)}",
            remedy="Give --weights, the file that `bayeslm interpolate` writes.",
        )
    values = found.tolist()
    every = list(zip(names, [*values, *subtract_weights], sources, strict=True))
    # what is subtracted with weight 0 would not be computed
    used = [*every[: len(own)], *(item for item in every[len(own) :] if item[1])]
    parts = [_part(*item) for item in used]
    model = _build(parts, [source for _, _, source in used if isinstance(source, TrainedLM)])
    size = mixed_unk_size(trained, values)
    args = read_config(trained[0].config)
    with staged(folder, replaces=[str(UNKNOWN_WORDS)]) as new:
        reading: Dict[str, Any] = {name: getattr(args, name, None) for name in READING}
        reading.update(copy_text_files(args, new, named=Path(folder)))
        copied = [_copy_ngram(part, new, named=Path(folder)) for part in parts]
        reading.update({"model": "lm", "model_conf": {}, "init": None, "optim": None})
        lm = {"lm": MIXTURE, "lm_conf": _lm_conf(copied, args.token_list)}
        write_yaml(new / CONFIG, {**lm, **reading})
        if size is not None:
            write_unk_size(new, size)
        torch.save(model.state_dict(), new / CHECKPOINT)


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


def _part(name: str, weight: float, source: Source) -> Dict[str, Any]:
    """Component of a mixture, as `lm_conf` has it."""
    part = {"name": name, "kind": "ngram", "weight": weight}
    if not isinstance(source, TrainedLM):
        return {**part, "path": os.fspath(source)}
    args = read_config(source.config)
    part.update(kind="lm", lm=args.lm, lm_conf=args.lm_conf)
    has_posterior = whole_blocks(getattr(source.lm, "posterior", None))
    return {**part, "whole_posterior": True} if has_posterior else part


def _lm_conf(parts: Sequence[Dict[str, Any]], tokens: List[str]) -> Dict[str, Any]:
    has_ngrams = any(part["kind"] == "ngram" for part in parts)
    return {"components": list(parts), **({"tokens": list(tokens)} if has_ngrams else {})}


def _build(parts: Sequence[Dict[str, Any]], trained: Sequence[TrainedLM]) -> ESPnetLanguageModel:
    """Model of the mixture with the LMs' weights."""
    tokens = trained[0].token_list
    lm = MixtureLM(len(tokens), **_lm_conf(parts, tokens))
    # n-grams have no weights to load
    neural = [c for c, part in zip(lm.components, parts, strict=True) if part["kind"] == "lm"]
    for component, source in zip(neural, trained, strict=True):
        component.load_state_dict(source.lm.state_dict())
    for name, weight, component in zip(lm.names, lm.weights, lm.components, strict=True):
        unknown = getattr(component, "unknown", [])
        logging.info(f"Mixture: {weight:.4f} {name}")
        if unknown:
            logging.warning(
                f"{name} does not know {len(unknown)} of {len(tokens)} tokens"
                f" ({', '.join(map(repr, unknown[:5]))}): each has the probability of its <unk>"
            )
    return ESPnetLanguageModel(lm, len(tokens))


def _copy_ngram(part: Dict[str, Any], folder: Path, *, named: Path) -> Dict[str, Any]:
    """Component with the path of its copy, if it is an n-gram."""
    if part["kind"] != "ngram":
        return part
    # two may have one name; KenLM knows a packed file by its content, people by its suffixes
    source = Path(part["path"])
    name = part["name"] + source.name[len(ngram_name(source)) :]
    (folder / NGRAMS).mkdir(exist_ok=True)
    shutil.copyfile(source, folder / NGRAMS / name)
    return {**part, "path": str(named / NGRAMS / name)}

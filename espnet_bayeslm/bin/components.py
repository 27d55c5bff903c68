"""What tools that score text share: LMs and n-grams from their options."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any, List, Optional, Sequence

import numpy as np

from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.rescoring import weights_file
from espnet_bayeslm.rescoring.components import Component
from espnet_bayeslm.rescoring.weights_file import unique_names
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.scoring.histories import MAX_CONTEXT
from espnet_bayeslm.scoring.lms import MAX_TOKENS
from espnet_bayeslm.scoring.neural import NeuralScorer
from espnet_bayeslm.training.experiment import experiment_name, find_files
from espnet_bayeslm.utils.errors import InputError


def add_lm_options(group: argparse._ActionsContainer) -> None:
    """Add the options of a tool that scores with LMs."""
    group.add_argument(
        "--lm",
        action="append",
        default=[],
        help="A trained ESPnet LM: its experiment folder or checkpoint (repeatable)",
    )
    group.add_argument(
        "--max_tokens", type=int, default=MAX_TOKENS, help="The most tokens of a batch"
    )
    group.add_argument("--ngpu", type=int, default=0, help="The number of gpus. 0: CPU mode")
    group.add_argument(
        "--max_oov_rate",
        type=float,
        default=0.2,
        help="More unknown words than this part of all words are an error",
    )


def add_component_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `load_components` and `score_components` take."""
    group = parser.add_argument_group("LMs and n-grams")
    add_lm_options(group)
    group.add_argument(
        "--ngram",
        action="append",
        default=[],
        help="An ARPA file or KenLM binary (repeatable; after the LMs in the order of weights)",
    )
    group.add_argument(
        "--num_samples",
        type=int,
        default=0,
        help="Weight draws whose probabilities are averaged; 0: the posterior mean",
    )
    group.add_argument("--cache", default=None, help="A folder that keeps the LMs' word scores")


def load_components(
    lm: Sequence[str],
    ngram: Sequence[str],
    *,
    num_samples: int = 0,
    max_tokens: int = MAX_TOKENS,
    ngpu: int = 0,
    cache: Optional[str] = None,
    self_normalized: bool = False,
    max_context: int = MAX_CONTEXT,
    context: int = 0,
) -> List[Component]:
    """Return the LMs, then the n-grams, that the options name.

    Raises:
        InputError: There is none, or a file cannot be used.
    """
    if not lm and not ngram:
        raise InputError("no LM", remedy="Give --lm EXP and/or --ngram ARPA, each repeatable.")
    options = {
        "num_samples": num_samples,
        "max_tokens": max_tokens,
        "self_normalized": self_normalized,
        "max_context": max_context,
        "context": context,
    }
    device = "cuda" if ngpu else "cpu"
    lms = [_lm_component(path, device=device, cache=cache, **options) for path in lm]
    return _unique_names(lms + [_ngram_component(path) for path in ngram])


def _lm_component(path: str, *, device: str, cache: Optional[str], **options: Any) -> Component:
    config, checkpoint = find_files(path)
    name = experiment_name(checkpoint)

    def load() -> NeuralScorer:
        from espnet_bayeslm.training.load import load_lm  # imports ESPnet, which takes seconds

        trained = load_lm(path, device=device)
        return NeuralScorer(trained, **options)

    if cache is None:
        return Component(name, "lm", load())
    kept = {k: options[k] for k in ("num_samples", "self_normalized", "context")}
    fingerprint = f"{_sha256(config)} {_sha256(checkpoint)} {kept}"
    cached = CachedScorer(load, name=name, folder=cache, fingerprint=fingerprint)
    return Component(name, "lm", cached)


def _ngram_component(path: str) -> Component:
    scorer = NgramScorer(path)
    return Component(scorer.name, "ngram", scorer)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _unique_names(components: Sequence[Component]) -> List[Component]:
    """Return the components, those of equal names numbered."""
    names = unique_names([component.name for component in components])
    return [c._replace(name=name) for c, name in zip(components, names, strict=True)]


def read_weights(
    weights: Optional[str], components: Sequence[Component], *, check: bool = True
) -> Optional[np.ndarray]:
    """Return the components' weights: of a file, of a list `W,W,..`, or 1 for a single one.

    Args:
        weights: A file that `bayeslm interpolate` wrote, numbers with commas, or None.
        components: What they weigh.
        check: Whether numbers with commas must be those of a linear mixture.

    Returns:
        (K,), or None where several components have none.

    Raises:
        InputError: The weights do not fit the components.
    """
    names = [component.name for component in components]
    return weights_file.read_weights(weights, names, check=check)

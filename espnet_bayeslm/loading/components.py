"""LMs and n-grams from their files, as the components of a mixture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

from espnet_bayeslm.evaluation.word_scores import Component
from espnet_bayeslm.loading.experiment import experiment_name, find_files, fingerprint
from espnet_bayeslm.loading.weights_file import unique_names
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.scoring.limits import MAX_CONTEXT, MAX_TOKENS
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.ngram_files import ngram_fingerprint

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.neural import NeuralScorer, TokenLM


def load_components(
    lm: Sequence[Union[PathLike, TokenLM]],
    ngram: Sequence[PathLike],
    *,
    num_samples: int = 0,
    max_tokens: int = MAX_TOKENS,
    device: str = "cpu",
    cache: Optional[PathLike] = None,
    self_normalized: bool = False,
    max_context: int = MAX_CONTEXT,
    context: int = 0,
    unk_size: Optional[float] = None,
) -> List[Component]:
    """The LMs, then the n-grams.

    Args:
        lm: LMs: experiment folders, checkpoints, or LMs that `load_lm` returned.
        ngram: ARPA files or KenLM binaries.
        num_samples: Number of weight samples whose probabilities are averaged; 0: the posterior
            mean.
        max_tokens: The most tokens of a batch.
        device: Where the weights of an LM that is loaded go.
        cache: A folder that keeps the word scores of LMs that come as files.
        self_normalized: True if one number is taken for every context's ln Z.
        max_context: The most tokens before an utterance that a Transformer reads again.
        context: Number of sentences of a text before each sentence that the LM reads first.
        unk_size: Number of words that share the probability of `<unk>`, in each LM and n-gram;
            None: the number that the LM's training has counted, and 1 for n-grams.

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
        "unk_size": unk_size,
    }
    lms = [_lm_component(path, device=device, cache=cache, **options) for path in lm]
    components = [*lms, *(_ngram_component(path, unk_size) for path in ngram)]
    names = unique_names([component.name for component in components])
    return [c._replace(name=name) for c, name in zip(components, names, strict=True)]


def _lm_component(
    lm: Union[PathLike, TokenLM], *, device: str, cache: Optional[PathLike], **options: Any
) -> Component:
    if not isinstance(lm, (str, os.PathLike)):
        return Component(lm.name, "lm", _neural_scorer(lm, **options))
    path = Path(lm)
    name = experiment_name(find_files(path)[1])
    digest = fingerprint(path)

    def load() -> NeuralScorer:
        from espnet_bayeslm.loading.trained_lm import load_lm  # imports torch, which takes seconds

        trained = load_lm(path, device=device)
        return _neural_scorer(trained, **options)

    if cache is None:
        return Component(name, "lm", load(), digest)
    kept = {k: options[k] for k in ("num_samples", "self_normalized", "context", "unk_size")}
    cached = CachedScorer(load, name=name, folder=cache, fingerprint=f"{digest} {kept}")
    return Component(name, "lm", cached, digest)


def _neural_scorer(lm: TokenLM, *, unk_size: Optional[float], **options: Any) -> NeuralScorer:
    from espnet_bayeslm.scoring.neural import NeuralScorer

    size = getattr(lm, "unk_size", 1.0) if unk_size is None else unk_size
    return NeuralScorer(lm, unk_size=size, **options)


def _ngram_component(path: PathLike, unk_size: Optional[float]) -> Component:
    scorer = NgramScorer(path, unk_size=1.0 if unk_size is None else unk_size)
    return Component(scorer.name, "ngram", scorer, ngram_fingerprint(path))

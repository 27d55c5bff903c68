"""LMs and n-grams from their files, as the components of a mixture."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Union

from espnet_bayeslm.evaluation.word_scores import Component
from espnet_bayeslm.loading.experiment import experiment_name, find_files, fingerprint
from espnet_bayeslm.loading.weights_file import unique_names
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.pretrained.names import is_adapted, is_pretrained
from espnet_bayeslm.scoring import MAX_CONTEXT, MAX_TOKENS
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.ngram_files import NGRAM_SUFFIXES, ngram_fingerprint
from espnet_bayeslm.utils.options import option

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.neural import NeuralScorer

GROUP = "LMs and n-grams"
PRELOAD = ("espnet_bayeslm.loading.trained_lm",)
"""Modules that scoring needs and that import torch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LMOptions:
    """LMs, and how they score."""

    # in Python also what `espnet_bayeslm.load` returns
    lms: Sequence[Any] = option(
        "A trained ESPnet LM: its experiment folder or checkpoint; or a pretrained causal LM:"
        " hf:FOLDER, hf:NAME, a .gguf file or the folder of a peft adapter (repeatable)",
        (),
        name="lm",
        group=GROUP,
    )
    max_tokens: int = option("Largest number of tokens in a batch", MAX_TOKENS, group=GROUP)
    max_oov_rate: float = option(
        "Largest share of unknown words; more are an error", 0.2, group=GROUP
    )
    text_form: str = option(
        "Form in which pretrained LMs read the text; sentence: capitals and a full stop; auto: the"
        " form of lowest perplexity on the first sentences that are scored",
        "auto",
        choices=("auto", "as_is", "lower", "sentence"),
        group=GROUP,
    )
    precision: str = option(
        "Precision of pretrained LMs; bfloat16 halves the memory, and the time where the CPU or GPU"
        " has it, and rounds ln P of a sentence to some tenths",
        "float32",
        choices=("float32", "bfloat16"),
        group=GROUP,
    )

    def check_form(self) -> None:
        """Check that jobs or workers read the text of pretrained LMs in one form."""
        if self.text_form == "auto" and any(map(is_pretrained, self.lms)):
            raise InputError(
                "--num_jobs or --workers with --text_form auto: each would choose a form by its"
                " own sentences",
                remedy="Give --text_form as_is, lower or sentence.",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComponentOptions(LMOptions):
    """LMs and n-grams, and how they score."""

    ngrams: Sequence[PathLike] = option(
        "An ARPA file or KenLM binary (repeatable; after the LMs in the order of weights)",
        (),
        name="ngram",
        group=GROUP,
    )
    num_samples: int = option(
        "Weight samples whose probabilities are averaged; 0: the posterior mean", 0, group=GROUP
    )
    unk_size: Optional[float] = option(
        "Words that share the probability of <unk>. Default: as counted in an LM's training"
        " (else three quarters of its vocabulary), 1 for n-grams and LMs of word pieces",
        None,
        group=GROUP,
    )
    cache: Optional[PathLike] = option(
        "A folder that keeps the LMs' word scores", None, group=GROUP
    )

    def components(self, device: str = "cpu", **reading: Any) -> List[Component]:
        """LMs, then n-grams; `reading` as `load` takes it."""
        return self.load(self.lms, self.ngrams, device, **reading)

    def load(
        self,
        lms: Sequence[Any],
        ngrams: Sequence[PathLike],
        device: str,
        *,
        context: int = 0,
        max_context: int = MAX_CONTEXT,
        self_normalized: bool = False,
    ) -> List[Component]:
        """These LMs, then these n-grams, scoring as the options say.

        LMs read `context` sentences of a text before each sentence. A Transformer reads at most
        `max_context` tokens before an utterance again. With `self_normalized` one number is taken
        for every context's ln Z.
        """
        if not lms and not ngrams:
            raise InputError("no LM", remedy="Give --lm EXP and/or --ngram ARPA, each repeatable.")
        reading = dict(num_samples=self.num_samples, max_context=max_context, context=context)
        components = [
            self._pretrained(lm, device, **reading, text_form=self.text_form)
            if is_pretrained(lm) or is_adapted(lm) or hasattr(lm, "causal_lm")
            else self._lm(lm, device, **reading, self_normalized=self_normalized)
            for lm in lms
        ]
        for path in ngrams:
            scorer = NgramScorer(path, unk_size=1.0 if self.unk_size is None else self.unk_size)
            components.append(Component(scorer.name, "ngram", scorer, ngram_fingerprint(path)))
        names = unique_names([component.name for component in components])
        return [c._replace(name=name) for c, name in zip(components, names, strict=True)]

    def _lm(self, lm: Any, device: str, **reading: Any) -> Component:
        """Component of an ESPnet LM: its folder or checkpoint, or what `load_lm` returned."""

        def load() -> NeuralScorer:
            # these import torch, which takes seconds
            from espnet_bayeslm.loading.trained_lm import load_lm
            from espnet_bayeslm.scoring.neural import NeuralScorer

            trained = load_lm(lm, device=device) if isinstance(lm, (str, os.PathLike)) else lm
            size = self.unk_size
            size = getattr(trained, "unk_size", 1.0) if size is None else size
            return NeuralScorer(trained, unk_size=size, max_tokens=self.max_tokens, **reading)

        if not isinstance(lm, (str, os.PathLike)):
            return Component(lm.name, "lm", load())
        name, digest = experiment_name(find_files(lm)[1]), fingerprint(lm)
        if self.cache is None:
            return Component(name, "lm", load(), digest)
        kept = {name: reading[name] for name in ("num_samples", "self_normalized", "context")}
        kept["unk_size"] = self.unk_size
        cached = CachedScorer(load, name=name, folder=self.cache, fingerprint=f"{digest} {kept}")
        return Component(name, "lm", cached, digest)

    def _pretrained(self, lm: Any, device: str, **reading: Any) -> Component:
        """Component of a causal LM of transformers."""
        # these import torch
        from espnet_bayeslm.loading.trained_lm import load_adapted
        from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
        from espnet_bayeslm.pretrained.scorer import PretrainedLM, PretrainedScorer

        cache = self.cache
        if hasattr(lm, "causal_lm"):
            cache = None
        elif is_adapted(lm):
            lm = load_adapted(lm, device, precision=self.precision)
        else:
            if cache is not None and self.text_form == "auto":
                raise InputError(
                    "--cache with --text_form auto: the form depends on the sentences that come"
                    " first",
                    remedy="Give --text_form as_is, lower or sentence.",
                )
            causal = load_causal_lm(lm, device=device, precision=self.precision)
            lm = PretrainedLM(causal, text_form=self.text_form)
        scorer = PretrainedScorer(lm.causal_lm, **{**reading, **lm.reading})
        if cache is None:
            return Component(lm.name, "lm", scorer, lm.fingerprint)
        kept = f"{lm.fingerprint} {reading}"
        kept += f" {self.precision}" if self.precision != "float32" else ""
        cached = CachedScorer(lambda: scorer, name=lm.name, folder=cache, fingerprint=kept)
        return Component(lm.name, "lm", cached, lm.fingerprint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureOptions(ComponentOptions):
    """LMs and n-grams with their weights."""

    weights: Union[PathLike, Sequence[float], None] = option(
        "weights.yaml of `bayeslm interpolate`, or W,W,..", None, group=GROUP
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubtractOptions(MixtureOptions):
    """LMs and n-grams with their weights, and LMs that are subtracted."""

    # in Python also what `espnet_bayeslm.load` returns
    subtract_lms: Sequence[Any] = option(
        "An LM, as of --lm, or n-gram of the recogniser's training text; its weighted ln P is"
        " subtracted (repeatable)",
        (),
        name="subtract_lm",
        group=GROUP,
    )
    subtract_weights: Sequence[float] = option(
        "Weight of a --subtract_lm, at or below zero, where that of the mixture is 1 (repeatable;"
        " default: as tuned)",
        (),
        name="subtract_weight",
        group=GROUP,
    )

    def subtracted(self, names: Sequence[str], device: str, **reading: Any) -> List[Component]:
        """LMs and n-grams that are subtracted, in their order, with other names than `names`."""
        found: List[Component] = []
        for path in self.subtract_lms:
            lms, ngrams = ([], [path]) if is_ngram(path) else ([path], [])
            found += self.load(lms, ngrams, device, **reading)
        unique = unique_names([*names, *(component.name for component in found)])[len(names) :]
        return [c._replace(name=name) for c, name in zip(found, unique, strict=True)]


def is_ngram(source: object) -> bool:
    """True if a path is an n-gram's, by its name or as a file that is no checkpoint."""
    if not isinstance(source, (str, os.PathLike)) or is_pretrained(source):
        return False
    path = Path(source)
    known = path.suffix in NGRAM_SUFFIXES or (path.suffix != ".pth" and path.is_file())
    return known and not path.is_dir()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPUOptions:
    """Device of a command line."""

    ngpu: int = option("The number of gpus. 0: CPU mode", 0, group=GROUP)

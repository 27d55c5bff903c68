"""LMs and n-grams from their files, as the components of a mixture."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import numpy as np

from espnet_bayeslm import load
from espnet_bayeslm.evaluation.leakage import warn_leakage
from espnet_bayeslm.evaluation.perplexity import text_blocks, token_counts
from espnet_bayeslm.evaluation.word_scores import Component, WordScorer, WordScores
from espnet_bayeslm.loading.experiment import experiment_name, find_files, fingerprint
from espnet_bayeslm.loading.weights_file import unique_names
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.pretrained.names import is_adapted, is_adapter, is_pretrained
from espnet_bayeslm.scoring import MAX_CONTEXT, MAX_TOKENS
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.utils.blocks import Blocks
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.engine import Pool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.ngram_files import NGRAM_SUFFIXES, ngram_fingerprint
from espnet_bayeslm.utils.options import option, part_of

GROUP = "LMs and n-grams"
PRELOAD = ("espnet_bayeslm.loading.trained_lm",)
"""Modules that scoring needs and that import torch."""
# `bayeslm train` keeps the training text in an experiment's folder, with keys
KEPT = Path("data") / "train.txt"
# A larger one is read only where --train_text names it: about 100 MB take a minute
LARGE = 300_000_000
Sentences = Sequence[Sequence[str]]
Scored = Tuple[List[WordScores], List[np.ndarray]]
"""Scores of each sentence by one component, and the tokens of each of its words, (n + 1,)."""


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

    base: Optional[str] = option(
        "Base model of the adapters among the LMs, as of --lm, where it is not at the path that"
        " they name",
        None,
        group=GROUP,
    )

    def check_form(self) -> None:
        """Check that workers read the text of pretrained LMs in one form."""
        if self.text_form == "auto" and any(map(is_pretrained, self.lms)):
            raise InputError(
                "--workers with --text_form auto: each would choose a form by its own sentences",
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

    def components(
        self,
        device: str = "cpu",
        *,
        context: int = 0,
        max_context: int = MAX_CONTEXT,
        self_normalized: bool = False,
    ) -> List[Component]:
        """LMs, then n-grams.

        LMs read `context` sentences of a text before each sentence. A Transformer reads at most
        `max_context` tokens before an utterance again. With `self_normalized` one number is taken
        for every context's ln Z.
        """
        if not self.lms and not self.ngrams:
            raise InputError("no LM", remedy="Give --lm EXP and/or --ngram ARPA, each repeatable.")
        if self.base is not None and not any(map(has_base, self.lms)):
            raise InputError("--base, and no --lm is an adapter", remedy="Leave it out.")
        if context < 0:
            raise InputError(f"--context {context}: expected 0 or more sentences")
        reading = dict(num_samples=self.num_samples, max_context=max_context, context=context)
        components = [
            self._pretrained(lm, device, **reading)
            if is_pretrained(lm) or is_adapted(lm) or hasattr(lm, "tokenizer")
            else self._lm(lm, device, **reading, self_normalized=self_normalized)
            for lm in self.lms
        ]
        for path in self.ngrams:
            scorer = NgramScorer(path, unk_size=1.0 if self.unk_size is None else self.unk_size)
            components.append(Component(scorer.name, "ngram", scorer, ngram_fingerprint(path)))
        names = unique_names([component.name for component in components])
        return [c._replace(name=name) for c, name in zip(components, names, strict=True)]

    def _lm(self, lm: Any, device: str, **reading: Any) -> Component:
        """Component of an ESPnet LM: its folder or checkpoint, or what `load` returned."""

        def scorer() -> WordScorer:
            # it imports torch, which takes seconds
            from espnet_bayeslm.scoring.neural import NeuralScorer

            trained: Any = load(lm, device=device) if isinstance(lm, (str, os.PathLike)) else lm
            size = self.unk_size
            size = getattr(trained, "unk_size", 1.0) if size is None else size
            return NeuralScorer(trained, unk_size=size, max_tokens=self.max_tokens, **reading)

        if not isinstance(lm, (str, os.PathLike)):
            return Component(lm.name, "lm", scorer())
        kept = {name: reading[name] for name in ("num_samples", "self_normalized", "context")}
        kept["unk_size"] = self.unk_size
        digest = fingerprint(lm)
        return self._cached(scorer, experiment_name(find_files(lm)[1]), digest, f"{digest} {kept}")

    def _pretrained(self, given: Any, device: str, **reading: Any) -> Component:
        """Component of a causal LM of transformers, or of what `load` returned."""
        from espnet_bayeslm.pretrained.scorer import PretrainedScorer  # imports torch

        lm: Any = given
        if isinstance(given, (str, os.PathLike)):
            if self.cache is not None and self.text_form == "auto" and not is_adapted(given):
                raise InputError(
                    "--cache with --text_form auto: the form depends on the sentences that come"
                    " first",
                    remedy="Give --text_form as_is, lower or sentence.",
                )
            options = dict(text_form=self.text_form, precision=self.precision)
            base = self.base if has_base(given) else None
            lm = load(given, device=device, base=base, **options)
            lm = lm if self.num_samples else lm.at_mean()
        scorer = PretrainedScorer(lm, **reading)
        if lm is given:
            return Component(lm.name, "lm", scorer, lm.fingerprint)
        kept = f"{lm.fingerprint} {dict(reading, text_form=self.text_form)}"
        kept += f" {self.precision}" if self.precision != "float32" else ""
        return self._cached(lambda: scorer, lm.name, lm.fingerprint, kept)

    def _cached(
        self, make: Callable[[], WordScorer], name: str, digest: str, kept: str
    ) -> Component:
        """Component whose scores are kept in the cache, if there is one, under a fingerprint."""
        if self.cache is None:
            return Component(name, "lm", make(), digest)
        scorer = CachedScorer(make, name=name, folder=self.cache, fingerprint=kept)
        return Component(name, "lm", scorer, digest)


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
        own = part_of(ComponentOptions, self)
        found: List[Component] = []
        for path in self.subtract_lms:
            lms, ngrams = ([], [path]) if is_ngram(path) else ([path], [])
            base = self.base if has_base(path) else None
            part = dataclasses.replace(own, lms=lms, ngrams=ngrams, base=base)
            found += part.components(device, **reading)
        unique = unique_names([*names, *(component.name for component in found)])[len(names) :]
        return [c._replace(name=name) for c, name in zip(found, unique, strict=True)]


def has_base(source: object) -> bool:
    """True if a path is an adapter's, peft's or an experiment."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    return is_adapter(source) or is_adapted(source)


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


class TextWorker:
    """LMs and n-grams, loaded by a worker on its GPUs, which scores blocks of sentences."""

    def __init__(self, options: ComponentOptions, ngpu: int, context: int):
        self._components = options.components(device_of(ngpu), context=context)

    def components(self, _: None) -> List[Tuple[str, str, str]]:
        """Name, kind and digest of each component."""
        return [(c.name, c.kind, c.fingerprint) for c in self._components]

    def score(self, block: Sentences) -> List[Scored]:
        """Scores of a block by each component, and the tokens of its words."""
        return [
            (c.scorer.word_scores(block), [token_counts(c.scorer, words) for words in block])
            for c in self._components
        ]


class ScoredText:
    """Scores of one text by a component, added in order; it counts the tokens of its sentences."""

    def __init__(self, name: str):
        self.name = name
        self.scores: List[WordScores] = []
        self._counts: Dict[Tuple[str, ...], np.ndarray] = {}

    def add(self, block: Sentences, found: Scored) -> None:
        """Add the scores of the text's next sentences."""
        self.scores += found[0]
        self._counts.update(zip(map(tuple, block), found[1], strict=True))

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """(n + 1,) tokens of each word of a sentence of the text and of `</s>`."""
        return self._counts[tuple(words)]


class TextOnWorkers:
    """LMs and n-grams on workers; the scorers of its `components` count tokens after `score`."""

    def __init__(self, pool: Pool, options: ComponentOptions, *, ngpu: int, context: int):
        if pool.workers > 1:
            options.check_form()
        self._work = Blocks(pool, TextWorker, options, ngpu, context)
        known: List[Tuple[str, str, str]] = self._work.ask("components")
        self._identity, self._context = f"{options!r} {context} {known}", context
        # they have no more to score: no component is asked again
        self._texts: List[Any] = [ScoredText(name) for name, _, _ in known]
        parts = zip(known, self._texts, strict=True)
        self.components = [Component(n, kind, text, digest) for (n, kind, digest), text in parts]

    def score(self, sentences: Sentences, *, output: Optional[PathLike]) -> List[List[WordScores]]:
        """Scores of each sentence by each component; finished blocks are kept by `output`."""
        blocks = text_blocks(sentences, context=self._context)
        total = len(sentences)
        with self._work.kept(output, self._identity):
            found = self._work.map("score", blocks, desc="scoring", unit="sentence", total=total)
            for block, of_components in found:
                for text, of_block in zip(self._texts, of_components, strict=True):
                    text.add(block, of_block)
        return [text.scores for text in self._texts]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainTextOptions:
    """Training texts that are compared with the test text."""

    train_texts: Sequence[PathLike] = option(
        "Training text of an LM or n-gram, a sentence a line: a warning says how many test"
        " sentences stand in it (repeatable; that of an experiment of `bayeslm train` is known)",
        (),
        name="train_text",
    )

    def warn_leakage(
        self, lms: Sequence[Any], sentences: Iterable[Sequence[str]], *, what: str
    ) -> None:
        """Warn where test sentences, of a text `what`, stand in a training text."""
        test = list(sentences)
        for path in self.train_texts:
            warn_leakage(test, path, what=what)
        paths = [Path(lm) for lm in lms if isinstance(lm, (str, os.PathLike))]
        known = ((path if path.is_dir() else path.parent) / KEPT for path in paths)
        for path in dict.fromkeys(path for path in known if path.is_file()):
            if path.stat().st_size > LARGE:
                logging.info("%s: too large to look for test sentences unasked", path)
                continue
            warn_leakage(test, path, what=what, keyed=True)

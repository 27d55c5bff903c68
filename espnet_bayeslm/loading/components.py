"""LMs and n-grams from their files, as the components of a mixture."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from espnet_bayeslm import load
from espnet_bayeslm.engine.blocks import Blocks
from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.evaluation.leakage import warn_leakage
from espnet_bayeslm.loading.experiment import experiment_name, find_files, fingerprint
from espnet_bayeslm.loading.weights_file import (
    KeptForm,
    forms_of_weights,
    unique_names,
    warn_of_other_forms,
)
from espnet_bayeslm.ngram.ngram_files import NGRAM_SUFFIXES, ngram_fingerprint
from espnet_bayeslm.pretrained.names import is_adapted, is_adapter, is_pretrained
from espnet_bayeslm.pretrained.text_forms import AUTO, TextForm, check_form, first_sentences
from espnet_bayeslm.scoring import MAX_CONTEXT, MAX_TOKENS
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.perplexity import text_blocks
from espnet_bayeslm.scoring.word_scores import Component, WordScorer, WordScores
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG
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
        "Form in which pretrained LMs read the text, FORM[,MARKS[,BLANK]]: as_is, lower or sentence"
        " (capitals and a full stop); newline or special (the tokenizer's own marks of start and"
        " end); blank or no_blank (before the first word); auto: for each LM the form of --scales"
        " or --weights, else the form of lowest perplexity on the first sentences",
        AUTO,
        metavar="FORM",
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

    def __post_init__(self) -> None:
        if self.text_form != AUTO:
            check_form(self.text_form)

    def every_lm(self) -> List[Any]:
        """All LMs."""
        return list(self.lms)

    def chooses_form(self) -> bool:
        """True if some LM chooses its form of the text by sentences."""
        own = [AUTO if is_pretrained(x) else getattr(x, "text_form", "") for x in self.every_lm()]
        return self.text_form == AUTO and AUTO in own


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
        unit: str = "word",
    ) -> List[Component]:
        """LMs, then n-grams, which score words, or by the `unit` token the LMs' own tokens.

        LMs read `context` sentences of a text before each sentence. A Transformer reads at most
        `max_context` tokens before an utterance again. With `self_normalized` one number is taken
        for every context's ln Z.
        """
        if not self.lms and not self.ngrams:
            raise InputError("no LM", remedy="Give --lm EXP and/or --ngram ARPA, each repeatable.")
        if self.base is not None and not any(map(has_base, self.every_lm())):
            raise InputError("--base, and no LM is an adapter", remedy="Leave it out.")
        if context < 0:
            raise InputError(f"--context {context}: expected 0 or more sentences")
        reading = dict(num_samples=self.num_samples, max_context=max_context, context=context)
        components = [
            self._pretrained(lm, device, **reading)
            if is_pretrained(lm) or is_adapted(lm) or hasattr(lm, "tokenizer")
            else self._lm(lm, device, unit, **reading, self_normalized=self_normalized)
            for lm in self.lms
        ]
        for path in self.ngrams:
            scorer = NgramScorer(path, unk_size=1.0 if self.unk_size is None else self.unk_size)
            components.append(Component(scorer.name, "ngram", scorer, ngram_fingerprint(path)))
        names = unique_names([component.name for component in components])
        return [c._replace(name=name) for c, name in zip(components, names, strict=True)]

    def _lm(self, lm: Any, device: str, unit: str, **reading: Any) -> Component:
        """Component of an ESPnet LM: its folder or checkpoint, or what `load` returned."""

        def scorer() -> WordScorer:
            # it imports torch, which takes seconds
            from espnet_bayeslm.scoring.scorer import token_scorer

            trained: Any = load(lm, device=device) if isinstance(lm, (str, os.PathLike)) else lm
            size = self.unk_size
            if unit == "token":
                # a search does not share the probability of `<unk>`
                trained, size = trained.over_tokens(), 1.0 if size is None else size
            size = getattr(trained, "unk_size", 1.0) if size is None else size
            return token_scorer(trained, unk_size=size, max_tokens=self.max_tokens, **reading)

        if not isinstance(lm, (str, os.PathLike)):
            return Component(lm.name, "lm", scorer(), lm.fingerprint)
        name, digest = experiment_name(find_files(lm)[1]), fingerprint(lm)
        if reading["self_normalized"]:
            # not kept: the scores depend on the ln Z of the sentences that come first
            return Component(name, "lm", scorer(), digest)
        kept = {key: reading[key] for key in ("num_samples", "self_normalized", "context")}
        kept["unk_size"] = self.unk_size
        if unit != "word":
            kept["unit"] = unit
        return Component(name, "lm", self._kept(scorer, name, f"{digest} {kept}"), digest)

    def _pretrained(self, given: Any, device: str, **reading: Any) -> Component:
        """Component of a causal LM of transformers, or of what `load` returned."""
        from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer  # imports torch

        lm: Any = given
        is_loaded = not isinstance(given, (str, os.PathLike))
        if is_loaded and self.text_form != AUTO:
            lm = dataclasses.replace(lm, text_form=self.text_form)
        if not is_loaded:
            options = dict(text_form=self.text_form, precision=self.precision)
            base = self.base if has_base(given) else None
            lm = load(given, device=device, base=base, **options)
            lm = lm if self.num_samples else lm.at_mean()
        scorer = PretrainedScorer(lm, **reading)

        def kept(sentences: Sentences) -> str:
            """All that scores depend on besides the sentences, which may choose the text form."""
            form = scorer.prepare(sentences).form
            return f"{lm.fingerprint} {dict(reading, text_form=str(form))} {self.precision}"

        read = scorer if is_loaded else self._kept(lambda: scorer, lm.name, kept)
        return Component(lm.name, "lm", read, lm.fingerprint, scorer)

    def _kept(
        self,
        make: Callable[[], WordScorer],
        name: str,
        digest: Union[str, Callable[[Sentences], str]],
    ) -> WordScorer:
        """Scorer behind the cache, if there is one; `digest` as of `CachedScorer`'s fingerprint."""
        if self.cache is None:
            return make()
        return CachedScorer(make, name=name, folder=self.cache, fingerprint=digest)


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

    def every_lm(self) -> List[Any]:
        """All LMs, subtracted ones last."""
        return [*self.lms, *self.subtract_lms]

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


def chosen_forms(
    components: Sequence[Component], kept: Iterable[KeptForm], sentences: Sentences
) -> Dict[str, str]:
    """Form in which each pretrained LM reads text, by the LM's name.

    An LM without a form takes the first that is kept, else the one that the sentences choose.
    """
    known = {form.name: form.form for form in reversed(list(kept))}
    return {
        c.name: str(c.pretrained.prepare(sentences, known.get(c.name)).form)
        for c in components
        if c.pretrained is not None
    }


def read_as(components: Sequence[Component], forms: Mapping[str, str]) -> None:
    """Let pretrained LMs read text in the forms that were chosen, {name of the LM: form}."""
    for component in components:
        if component.pretrained is not None:
            component.pretrained.read_as(TextForm.parse(forms[component.name]))


class TextWorker:
    """LMs and n-grams, loaded by a worker on its GPUs, which scores blocks of sentences."""

    def __init__(self, options: MixtureOptions, ngpu: int, context: int):
        own = part_of(ComponentOptions, options)
        self._components = own.components(device_of(ngpu), context=context)
        self._weights = options.weights

    def components(self, sentences: Sentences) -> List[Tuple[str, str, str, str]]:
        """Name, kind, digest and text form of each component; sentences may choose the form."""
        forms: Dict[str, str] = {}
        if any(component.pretrained is not None for component in self._components):
            names = [component.name for component in self._components]
            digests = [component.fingerprint for component in self._components]
            kept = forms_of_weights(self._weights, names, digests)
            forms = chosen_forms(self._components, kept, sentences)
        return [(c.name, c.kind, c.fingerprint, forms.get(c.name, "")) for c in self._components]

    def score(self, given: Tuple[Dict[str, str], Sentences]) -> List[Scored]:
        """Scores of a block by each component, and the tokens of its words, in chosen forms."""
        forms, block = given
        if forms:
            read_as(self._components, forms)
        return [
            (c.scorer.word_scores(block), [c.scorer.token_counts(words) for words in block])
            for c in self._components
        ]


class ScoredText(WordScorer):
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

    def __init__(
        self,
        pool: Pool,
        options: MixtureOptions,
        sentences: Sentences,
        *,
        ngpu: int,
        context: int,
    ):
        self._work = Blocks(pool, TextWorker, options, ngpu, context)
        # one worker chooses the forms of the text, and all read it in these
        some = first_sentences(sentences) if options.chooses_form() else []
        known: List[Tuple[str, str, str, str]] = self._work.ask("components", some)
        own = part_of(ComponentOptions, options)
        self._identity, self._context = f"{own!r} {context} {known}", context
        self._sentences = sentences
        self._forms = {name: form for name, _, _, form in known if form}
        # they have no more to score: no component is asked again
        self._texts: List[Any] = [ScoredText(name) for name, *_ in known]
        parts = zip(known, self._texts, strict=True)
        self.components = [Component(n, kind, text, digest) for (n, kind, digest, _), text in parts]
        if self._forms:
            names, digests = [name for name, *_ in known], [digest for _, _, digest, _ in known]
            kept = forms_of_weights(options.weights, names, digests)
            warn_of_other_forms(kept, self._forms)

    def score(self, *, output: Optional[PathLike]) -> List[List[WordScores]]:
        """Scores of each sentence by each component; finished blocks are kept by `output`."""
        blocks = text_blocks(self._sentences, context=self._context)
        total = len(self._sentences)
        how: Any = dict(desc="scoring", unit="sentence", sent=lambda block: (self._forms, block))
        with self._work.kept(output, self._identity):
            for block, of_components in self._work.map("score", blocks, total=total, **how):
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
                LOG.info("%s: too large to look for test sentences unasked", path)
                continue
            warn_leakage(test, path, what=what, keyed=True)

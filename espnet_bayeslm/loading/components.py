"""LMs and n-grams from their files, as the components of a mixture."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from espnet_bayeslm import load
from espnet_bayeslm.loading.component_options import ComponentOptions, LMOptions
from espnet_bayeslm.loading.experiment import experiment_name, find_files, fingerprint
from espnet_bayeslm.loading.weights_file import KeptForm, unique_names
from espnet_bayeslm.ngram.ngram_files import NGRAM_SUFFIXES, ngram_fingerprint
from espnet_bayeslm.pretrained.names import is_adapted, is_adapter, is_pretrained
from espnet_bayeslm.pretrained.text_forms import AUTO
from espnet_bayeslm.scoring import MAX_CONTEXT
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.word_scores import Component, WordScorer
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

Sentences = Sequence[Sequence[str]]


def source_type(source: Any) -> str:
    """Type of an LM, a key of `LOADERS`: of a path, or of what `espnet_bayeslm.load` returned."""
    if not isinstance(source, (str, os.PathLike)):
        return "pretrained" if hasattr(source, "tokenizer") else "espnet"
    if is_adapter(source):
        return "adapter"
    if is_pretrained(source):
        return "pretrained"
    return "adapted" if is_adapted(source) else "espnet"


def is_ngram(source: object) -> bool:
    """True if a path is an n-gram's, by its name or as a file that is no checkpoint."""
    if not isinstance(source, (str, os.PathLike)) or is_pretrained(source):
        return False
    path = Path(source)
    known = path.suffix in NGRAM_SUFFIXES or (path.suffix != ".pth" and path.is_file())
    return known and not path.is_dir()


def chooses_form(options: LMOptions) -> bool:
    """True if some LM chooses its form of the text by sentences."""
    of_path = {"pretrained": AUTO, "adapter": AUTO}
    lms = [*options.lms, *getattr(options, "subtract_lms", ())]
    own = [getattr(lm, "text_form", of_path.get(source_type(lm))) for lm in lms]
    return options.text_form == AUTO and AUTO in own


def load_components(
    options: ComponentOptions,
    device: str = "cpu",
    *,
    context: int = 0,
    max_context: int = MAX_CONTEXT,
    self_normalized: bool = False,
    unit: str = "word",
) -> List[Component]:
    """LMs, n-grams, and LMs and n-grams that are subtracted, which score words.

    LMs read `context` sentences of a text before each sentence. A Transformer reads at most
    `max_context` tokens before an utterance again. With `self_normalized` one number is taken for
    every context's ln Z. By the `unit` token the LMs' own tokens are scored.
    """
    if not options.lms and not options.ngrams:
        raise InputError("no LM", remedy="Give --lm EXP and/or --ngram ARPA, each repeatable.")
    sources = [(source_type(lm), lm) for lm in options.lms]
    sources += [("ngram", path) for path in options.ngrams]
    for source in getattr(options, "subtract_lms", ()):
        sources.append(("ngram" if is_ngram(source) else source_type(source), source))
    if options.base is not None and not any(kind in HAVE_BASE for kind, _ in sources):
        raise InputError("--base, and no LM is an adapter", remedy="Leave it out.")
    if context < 0:
        raise InputError(f"--context {context}: expected 0 or more sentences")
    reading = dict(
        num_samples=options.num_samples,
        max_context=max_context,
        context=context,
        self_normalized=self_normalized,
        unit=unit,
    )
    components = [LOADERS[kind](source, options, device, **reading) for kind, source in sources]
    names = unique_names([component.name for component in components])
    return [c._replace(name=name) for c, name in zip(components, names, strict=True)]


def _ngram(path: PathLike, options: ComponentOptions, device: str, **_: Any) -> Component:
    """Component of an n-gram, an ARPA file or KenLM binary."""
    scorer = NgramScorer(path, unk_size=1.0 if options.unk_size is None else options.unk_size)
    return Component(scorer.name, "ngram", scorer, ngram_fingerprint(path))


def _espnet_lm(
    lm: Any, options: ComponentOptions, device: str, *, unit: str, **reading: Any
) -> Component:
    """Component of an ESPnet LM: its folder or checkpoint, or what `load` returned."""

    def scorer() -> WordScorer:
        # it imports torch, which takes seconds
        from espnet_bayeslm.scoring.scorer import token_scorer

        trained: Any = load(lm, device=device) if isinstance(lm, (str, os.PathLike)) else lm
        size = options.unk_size
        if unit == "token":
            # a search does not share the probability of `<unk>`
            trained, size = trained.over_tokens(), 1.0 if size is None else size
        size = getattr(trained, "unk_size", 1.0) if size is None else size
        return token_scorer(trained, unk_size=size, max_tokens=options.max_tokens, **reading)

    if not isinstance(lm, (str, os.PathLike)):
        return Component(lm.name, "lm", scorer(), lm.fingerprint)
    name, digest = experiment_name(find_files(lm)[1]), fingerprint(lm)
    if reading["self_normalized"]:
        # not kept: the scores depend on the ln Z of the sentences that come first
        return Component(name, "lm", scorer(), digest)
    kept = {key: reading[key] for key in ("num_samples", "self_normalized", "context")}
    kept["unk_size"] = options.unk_size
    if unit != "word":
        kept["unit"] = unit
    return Component(name, "lm", _cached(scorer, options, name, f"{digest} {kept}"), digest)


def _causal_lm(
    given: Any,
    options: ComponentOptions,
    device: str,
    *,
    num_samples: int,
    max_context: int,
    context: int,
    **_: Any,
) -> Component:
    """Component of a causal LM of transformers, or of what `load` returned."""
    from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer  # imports torch

    lm: Any = given
    is_loaded = not isinstance(given, (str, os.PathLike))
    if is_loaded and options.text_form != AUTO:
        lm = dataclasses.replace(lm, text_form=options.text_form)
    if not is_loaded:
        base = options.base if source_type(given) in HAVE_BASE else None
        how = dict(text_form=options.text_form, precision=options.precision)
        lm = load(given, device=device, base=base, **how)
        lm = lm if num_samples else lm.at_mean()
    reading = dict(num_samples=num_samples, max_context=max_context, context=context)
    scorer = PretrainedScorer(lm, **reading)

    def kept(sentences: Sentences) -> str:
        """All that scores depend on besides the sentences, which may choose the text form."""
        form = scorer.prepare(sentences).form
        return f"{lm.fingerprint} {dict(reading, text_form=str(form))} {options.precision}"

    read = scorer if is_loaded else _cached(lambda: scorer, options, lm.name, kept)
    return Component(lm.name, "lm", read, lm.fingerprint, scorer)


LOADERS: Mapping[str, Callable[..., Component]] = {
    "espnet": _espnet_lm,
    "pretrained": _causal_lm,
    "adapter": _causal_lm,
    "adapted": _causal_lm,
    "ngram": _ngram,
}
"""Type of an LM or n-gram -> function that makes its component."""
HAVE_BASE = {"adapter", "adapted"}
"""Types of LMs that adapt a base model."""


def _cached(
    make: Callable[[], WordScorer],
    options: ComponentOptions,
    name: str,
    digest: Union[str, Callable[[Sentences], str]],
) -> WordScorer:
    """Scorer behind the cache, if there is one; `digest` as of `CachedScorer`'s fingerprint."""
    if options.cache is None:
        return make()
    return CachedScorer(make, name=name, folder=options.cache, fingerprint=digest)


def chosen_forms(
    components: Sequence[Component], kept: Iterable[KeptForm], sentences: Sentences
) -> Dict[str, str]:
    """Form in which each pretrained LM reads text, by the LM's name.

    An LM without a form takes the first that is kept, else the one that the sentences choose.
    """
    known: Dict[str, Optional[str]] = {form.name: form.form for form in reversed(list(kept))}
    return {
        c.name: str(c.pretrained.prepare(sentences, known.get(c.name)).form)
        for c in components
        if c.pretrained is not None
    }

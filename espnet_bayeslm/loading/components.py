"""LMs and n-grams that score words, the components of a mixture, from their files."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from pathlib import Path
from typing import Any, Callable, List, Mapping, Sequence

from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.experiment import find_files, fingerprint, read_config
from espnet_bayeslm.ngram.ngram_files import NGRAM_SUFFIXES, ngram_fingerprint
from espnet_bayeslm.pretrained.names import HAVE_BASE, is_pretrained, source_type
from espnet_bayeslm.pretrained.text_forms import AUTO
from espnet_bayeslm.scoring import MAX_CONTEXT
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.word_scores import Component, WordScorer
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike


def unique_names(names: Sequence[str]) -> List[str]:
    """Names of components in a weights file: equal ones are numbered."""
    seen: Counter = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return unique


def is_ngram(source: object) -> bool:
    """True if a path is an n-gram's, by its name or as a file that is no checkpoint."""
    if not isinstance(source, (str, os.PathLike)) or is_pretrained(source):
        return False
    path = Path(source)
    known = path.suffix in NGRAM_SUFFIXES or (path.suffix != ".pth" and path.is_file())
    return known and not path.is_dir()


def load_components(
    options: ComponentOptions,
    device: str = "cpu",
    *,
    context: int = 0,
    max_context: int = MAX_CONTEXT,
    unit: str = "word",
) -> List[Component]:
    """LMs, n-grams, and LMs and n-grams that are subtracted, which score words.

    LMs read `context` sentences of a text before each sentence. A Transformer reads at most
    `max_context` tokens before an utterance again. By the `unit` token the LMs' own tokens are
    scored.
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
        unit=unit,
    )
    components = [LOADERS[kind](source, options, device, **reading) for kind, source in sources]
    names = unique_names([component.name for component in components])
    return [c._replace(name=name) for c, name in zip(components, names, strict=True)]


# A method for programs outside: the options themselves know nothing of loading
ComponentOptions.components = load_components  # type: ignore[attr-defined]


def _ngram(path: PathLike, options: ComponentOptions, device: str, **_: Any) -> Component:
    """Component of an n-gram, an ARPA file or KenLM binary."""
    scorer = NgramScorer(path, unk_size=1.0 if options.unk_size is None else options.unk_size)
    return Component(scorer.name, "ngram", scorer, ngram_fingerprint(path))


def _espnet_lm(
    lm: Any, options: ComponentOptions, device: str, *, unit: str, **reading: Any
) -> Component:
    """Component of an ESPnet LM: its folder or checkpoint, or what `load` returned."""
    is_loaded = not isinstance(lm, (str, os.PathLike))
    if options.cache is not None and not is_loaded:
        config, checkpoint = find_files(lm)
        digest = fingerprint(config, checkpoint, read_config(config))
        kept = {key: reading[key] for key in ("num_samples", "context")}
        kept["unk_size"] = options.unk_size
        if unit != "word":
            kept["unit"] = unit
        unkept = dataclasses.replace(options, cache=None)

        def scorer() -> WordScorer:
            return _espnet_lm(lm, unkept, device, unit=unit, **reading).scorer

        name, known_by = config.parent.resolve().name, f"{digest} {kept}"
        cached = CachedScorer(scorer, name=name, folder=options.cache, fingerprint=known_by)
        return Component(name, "lm", cached, digest)
    # torch takes seconds
    from espnet_bayeslm.loading.trained_lm import load_lm
    from espnet_bayeslm.scoring.scorer import token_scorer

    trained: Any = lm if is_loaded else load_lm(lm, device)
    size = options.unk_size
    if unit == "token":
        # a search does not share the probability of `<unk>`
        trained, size = trained.over_tokens(), 1.0 if size is None else size
    size = getattr(trained, "unk_size", 1.0) if size is None else size
    loaded = token_scorer(trained, unk_size=size, max_tokens=options.max_tokens, **reading)
    return Component(trained.name, "lm", loaded, trained.fingerprint)


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
    # torch takes seconds
    from espnet_bayeslm.pretrained.causal_lm import load_causal_lm
    from espnet_bayeslm.pretrained.pretrained_scorer import PretrainedScorer

    lm: Any = given
    is_loaded = not isinstance(given, (str, os.PathLike))
    if is_loaded and options.text_form != AUTO:
        lm = dataclasses.replace(lm, text_form=options.text_form)
    if not is_loaded:
        kind = source_type(given)
        how: Any = dict(text_form=options.text_form, precision=options.precision)
        how.update(device=device, base=options.base if kind in HAVE_BASE else None)
        if kind == "adapted":
            from espnet_bayeslm.loading.pretrained_lm import load_adapted

            lm = load_adapted(given, **how)
        else:
            lm = load_causal_lm(given, **how)
        if kind in HAVE_BASE and not num_samples:
            lm = lm.at_mean()
    reading = dict(num_samples=num_samples, max_context=max_context, context=context)
    scorer = PretrainedScorer(lm, **reading)
    if is_loaded or options.cache is None:
        return Component(lm.name, "lm", scorer, lm.fingerprint)

    def kept(sentences: Sequence[Sequence[str]]) -> str:
        """All that scores depend on besides the sentences, which may choose the text form."""
        form = scorer.prepare(sentences).form
        return f"{lm.fingerprint} {dict(reading, text_form=str(form))} {options.precision}"

    keeps: Any = dict(name=lm.name, folder=options.cache, fingerprint=kept)
    cached = CachedScorer(lambda: scorer, **keeps, reads_in_forms=True)
    return Component(lm.name, "lm", cached, lm.fingerprint)


LOADERS: Mapping[str, Callable[..., Component]] = {
    "espnet": _espnet_lm,
    "pretrained": _causal_lm,
    "adapter": _causal_lm,
    "adapted": _causal_lm,
    "ngram": _ngram,
}
"""Type of an LM or n-gram -> function that makes its component."""

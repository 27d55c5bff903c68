"""LMs and n-grams, the components of a mixture: loaded from their files, here or on workers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections import Counter
from pathlib import Path
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import numpy as np

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.engine.work import Blocks
from espnet_bayeslm.loading.component_options import ComponentOptions, MixtureOptions
from espnet_bayeslm.loading.experiment import find_files, fingerprint, read_config
from espnet_bayeslm.loading.weights_file import (
    KeptForm,
    forms_of_weights,
    read_weights,
    warn_of_other_forms,
)
from espnet_bayeslm.ngram.ngram_files import NGRAM_SUFFIXES, ngram_fingerprint
from espnet_bayeslm.pretrained.names import HAVE_BASE, is_pretrained, source_type
from espnet_bayeslm.pretrained.text_forms import AUTO, first_sentences
from espnet_bayeslm.scoring import MAX_CONTEXT
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.perplexity import BLOCK_SIZE, UnknownWords
from espnet_bayeslm.scoring.unknown_words import mending_lines
from espnet_bayeslm.scoring.word_scores import Component, WordScorer, WordScores
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import part_of

Block = TypeVar("Block", bound=Sequence)
T = TypeVar("T")
# Words before the unknown ones are counted on
ENOUGH = 1000

Scored = Tuple[List[WordScores], List[np.ndarray]]
"""Scores of each sentence by one component, and the tokens of each of its words, (n + 1,)."""
Sentences = Sequence[Sequence[str]]


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
        return Component(lm.name, "lm", scorer, lm.fingerprint, scorer)

    def kept(sentences: Sentences) -> str:
        """All that scores depend on besides the sentences, which may choose the text form."""
        form = scorer.prepare(sentences).form
        return f"{lm.fingerprint} {dict(reading, text_form=str(form))} {options.precision}"

    cached = CachedScorer(lambda: scorer, name=lm.name, folder=options.cache, fingerprint=kept)
    return Component(lm.name, "lm", cached, lm.fingerprint, scorer)


LOADERS: Mapping[str, Callable[..., Component]] = {
    "espnet": _espnet_lm,
    "pretrained": _causal_lm,
    "adapter": _causal_lm,
    "adapted": _causal_lm,
    "ngram": _ngram,
}
"""Type of an LM or n-gram -> function that makes its component."""


class ComponentFacts(NamedTuple):
    """Facts of components that workers have loaded.

    Attributes:
        of_worker: Facts that the worker's class tells.
        digests: Digest of each component's files, by name.
        text_forms: Form in which each pretrained LM reads text, by name.
        kept: Forms in which pretrained LMs read text where weights or scales were estimated.
    """

    of_worker: Any
    digests: Mapping[str, str]
    text_forms: Mapping[str, str]
    kept: Sequence[KeptForm]


@dataclasses.dataclass(eq=False)
class ComponentWorker:
    """LMs and n-grams that a worker has loaded; a subclass scores blocks by them.

    Args:
        components: The components.
        own_facts: Facts that the process gets which shares out the blocks.
        kept: Forms in which pretrained LMs read text where weights or scales were estimated.
    """

    components: Sequence[Component]
    own_facts: Any
    kept: Sequence[KeptForm]

    def facts(self, sentences: Optional[Sentences] = None) -> Optional[ComponentFacts]:
        """Facts of the components; None if a form is open, and sentences are wanted.

        A pretrained LM reads text in its own form, else in the first that is kept, else in the one
        that the sentences choose.
        """
        digests = {c.name: c.fingerprint for c in self.components}
        known = {kept.name: kept.form for kept in reversed(self.kept)}
        lms: Dict[str, Any] = {c.name: c.pretrained for c in self.components}
        lms = {name: lm for name, lm in lms.items() if lm is not None}
        if sentences is None and any(
            lm.is_open and not (lm.chooses and name in known) for name, lm in lms.items()
        ):
            return None
        given = {name: known.get(name) if lm.chooses else None for name, lm in lms.items()}
        forms = {n: str(lm.prepare(sentences or (), given[n]).form) for n, lm in lms.items()}
        return ComponentFacts(self.own_facts, digests, forms, self.kept)

    def score_in_forms(self, sent: Tuple[Mapping[str, str], Any]) -> Any:
        """Scores of a block, whose text pretrained LMs read in the forms that were chosen."""
        forms, block = sent
        for component in self.components:
            if component.pretrained is not None:
                component.pretrained.prepare((), forms[component.name])
        return self.score(block)

    def score(self, block: Any) -> Any:
        """Scores of a block."""
        raise NotImplementedError

    def mends(self, asked: Tuple[int, Counter[str]]) -> List[str]:
        """Lines that say how unknown words differ from words that a component knows."""
        index, words = asked
        return mending_lines(words, self.components[index].scorer)


@contextlib.contextmanager
def scored_blocks(
    workers: Blocks,
    blocks: Iterable[Block],
    *,
    sentences: Callable[[], Sentences],
    identity: str,
    output: Optional[PathLike],
    sent: Callable[[Block], Any] = lambda block: block,
    **progress: Any,
) -> Iterator[Tuple[ComponentFacts, Iterator[Tuple[Block, Any]]]]:
    """Facts of the components, and an iterator of blocks and their scores, within the block.

    One worker chooses the forms of the text, and all read it in these. Scores of finished blocks
    are kept beside the output, if there is one, until the block of code ends well.

    Args:
        workers: Workers with a `ComponentWorker` each.
        blocks: The blocks.
        sentences: Gives the sentences by which pretrained LMs choose the forms, if one does.
        identity: All that scores depend on besides components, forms and blocks.
        output: The file or folder that is to be written.
        sent: Function of a block: the part that workers need.
        **progress: `desc`, `unit` and `total` of the progress bar.
    """
    facts: ComponentFacts = workers.ask("facts") or workers.ask("facts", sentences())
    forms = facts.text_forms
    if facts.kept:
        warn_of_other_forms(facts.kept, forms)
    method, part = "score", sent
    if forms:
        method, part = "score_in_forms", lambda block: (forms, sent(block))
    kept: ContextManager[None] = contextlib.nullcontext()
    if output is not None:
        kept = workers.kept(output, f"{identity} {facts.digests} {forms}")
    with kept:
        yield facts, workers.map(method, blocks, sent=part, **progress)


def with_words_checked(
    scored: Iterable[Tuple[Block, Tuple[T, List[UnknownWords]]]], workers: Blocks
) -> Iterator[Tuple[Block, T]]:
    """Yield blocks and their scores; the words that components do not know are checked.

    A worker says how these words differ from words that its LMs know.
    """
    total: List[UnknownWords] = []
    for block, (scores, unknown) in scored:
        for count, more in zip(total, unknown, strict=False):  # none before the first block
            count.join(more)
        total = total or unknown
        for index, count in enumerate(total):
            if count.num_words >= ENOUGH:
                count.check(functools.partial(_mends, workers, index))
        yield block, scores
    for index, count in enumerate(total):
        count.check(functools.partial(_mends, workers, index), report=True)


def _mends(workers: Blocks, index: int, words: Counter[str]) -> List[str]:
    """Lines that say how unknown words differ from words that a component of a worker knows."""
    lines: List[str] = workers.ask("mends", (index, words))
    return lines


class TextWorker(ComponentWorker):
    """LMs and n-grams that score blocks of sentences."""

    def __init__(self, options: MixtureOptions, ngpu: int, context: int):
        components = load_components(options, device_of(ngpu), context=context)
        weights: Optional[np.ndarray] = None
        kept: List[KeptForm] = []
        if options.weights is not None:
            names, digests = [c.name for c in components], [c.fingerprint for c in components]
            weights = read_weights(options.weights, names, fingerprints=digests)
            if any(component.pretrained is not None for component in components):
                kept = forms_of_weights(options.weights, components)
        named = [(c.name, c.kind, c.fingerprint) for c in components]
        super().__init__(components, (named, weights), kept)

    def score(self, block: Sentences) -> List[Scored]:
        """Scores of a block by each component, and the tokens of its words."""
        return [
            (c.scorer.word_scores(block), [c.scorer.token_counts(words) for words in block])
            for c in self.components
        ]


class TextScores(NamedTuple):
    """Scores of the sentences of a text by components, which workers have loaded.

    Attributes:
        components: The components; their scorers stayed with the workers.
        scores: Scores of each sentence by each component.
        tokens: (n + 1,) tokens of each word and `</s>` of each sentence, for each component.
        weights: The components' weights, if the options name a file of weights.
    """

    components: List[Component]
    scores: List[List[WordScores]]
    tokens: List[List[np.ndarray]]
    weights: Optional[np.ndarray]


def score_text(
    pool: Optional[Pool],
    options: MixtureOptions,
    sentences: Sentences,
    *,
    ngpu: int,
    context: int,
    output: Optional[PathLike],
) -> TextScores:
    """Scores of the sentences of a text by components, on workers.

    Finished blocks are kept beside the output, if there is one, until all are finished.
    """
    workers = Blocks(pool, TextWorker, options, ngpu, context)
    # an LM with context reads the text as a whole
    size = sys.maxsize if context else BLOCK_SIZE
    with scored_blocks(
        workers,
        [sentences[n : n + size] for n in range(0, len(sentences), size)],
        sentences=functools.partial(first_sentences, sentences),
        identity=f"{part_of(ComponentOptions, options)!r} {context}",
        output=output,
        desc="scoring",
        unit="sentence",
        total=len(sentences),
    ) as (facts, scored):
        named, weights = facts.of_worker
        components = [Component(name, kind, WordScorer(), digest) for name, kind, digest in named]
        found = TextScores(components, [[] for _ in named], [[] for _ in named], weights)
        for _, of_components in scored:
            for n, (scores, tokens) in enumerate(of_components):
                found.scores[n].extend(scores)
                found.tokens[n].extend(tokens)
    return found

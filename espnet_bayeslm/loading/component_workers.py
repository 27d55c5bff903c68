"""Components on workers: they choose the forms of text once, and score blocks in these forms."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from typing import (
    Any,
    Callable,
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

from espnet_bayeslm.engine.blocks import Blocks
from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.loading.component_options import ComponentOptions, MixtureOptions
from espnet_bayeslm.loading.components import Sentences, chooses_form, chosen_forms, load_components
from espnet_bayeslm.loading.weights_file import (
    KeptForm,
    forms_of_weights,
    read_weights,
    warn_of_other_forms,
)
from espnet_bayeslm.pretrained.text_forms import TextForm, first_sentences
from espnet_bayeslm.scoring.oov_rate import UnknownWords, mending_lines
from espnet_bayeslm.scoring.perplexity import text_blocks
from espnet_bayeslm.scoring.word_scores import Component, WordScorer, WordScores
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import part_of

Block = TypeVar("Block", bound=Sequence)
T = TypeVar("T")
# Words before the unknown ones are counted on
ENOUGH = 1000

Scored = Tuple[List[WordScores], List[np.ndarray]]
"""Scores of each sentence by one component, and the tokens of each of its words, (n + 1,)."""


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


class ComponentWorker:
    """LMs and n-grams that a worker has loaded; a subclass scores blocks by them.

    Args:
        components: The components.
        facts: Facts that the process gets which shares out the blocks.
        kept: Forms in which pretrained LMs read text where weights or scales were estimated.
    """

    def __init__(self, components: Sequence[Component], facts: Any, kept: Sequence[KeptForm]):
        self.components, self._facts, self._kept = components, facts, kept

    def facts(self, sentences: Sentences) -> ComponentFacts:
        """Facts of the components, whose text forms the sentences may choose."""
        digests = {c.name: c.fingerprint for c in self.components}
        forms = chosen_forms(self.components, self._kept, sentences)
        return ComponentFacts(self._facts, digests, forms, self._kept)

    def score_in_forms(self, sent: Tuple[Mapping[str, str], Any]) -> Any:
        """Scores of a block, whose text pretrained LMs read in the forms that were chosen."""
        forms, block = sent
        for component in self.components:
            if component.pretrained is not None:
                component.pretrained.read_as(TextForm.parse(forms[component.name]))
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
    sentences: Sentences,
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
        sentences: Sentences by which pretrained LMs may choose the forms.
        identity: All that scores depend on besides components, forms and blocks.
        output: The file or folder that is to be written.
        sent: Function of a block: the part that workers need.
        **progress: `desc`, `unit` and `total` of the progress bar.
    """
    facts: ComponentFacts = workers.ask("facts", sentences)
    forms = facts.text_forms
    if facts.kept:
        warn_of_other_forms(facts.kept, forms)
    with workers.kept(output, f"{identity} {facts.digests} {forms}"):
        parts: Any = lambda block: (forms, sent(block))  # noqa: E731
        yield facts, workers.map("score_in_forms", blocks, sent=parts, **progress)


def with_known_words(
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
        own = part_of(ComponentOptions, options)
        components = load_components(own, device_of(ngpu), context=context)
        names, digests = [c.name for c in components], [c.fingerprint for c in components]
        weights = read_weights(options.weights, names, fingerprints=digests)
        named = [(c.name, c.kind, c.fingerprint) for c in components]
        kept = forms_of_weights(options.weights, components)
        super().__init__(components, (named, weights), kept)

    def score(self, block: Sentences) -> List[Scored]:
        """Scores of a block by each component, and the tokens of its words."""
        return [
            (c.scorer.word_scores(block), [c.scorer.token_counts(words) for words in block])
            for c in self.components
        ]


class ScoredText(WordScorer):
    """Scores of one text by a component, added in order; it counts the tokens of its sentences."""

    def __init__(self, name: str):
        self.name = name
        self.scores: List[WordScores] = []
        self._counts: Dict[Tuple[str, ...], np.ndarray] = {}

    def add(self, block: Sentences, scored: Scored) -> None:
        """Add the scores of the text's next sentences."""
        self.scores += scored[0]
        self._counts.update(zip(map(tuple, block), scored[1], strict=True))

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """(n + 1,) tokens of each word of a sentence of the text and of `</s>`."""
        return self._counts[tuple(words)]


def score_text(
    pool: Pool,
    options: MixtureOptions,
    sentences: Sentences,
    *,
    ngpu: int,
    context: int,
    output: Optional[PathLike],
) -> Tuple[List[Component], List[List[WordScores]], Optional[np.ndarray]]:
    """Components, the scores of each sentence by each component, and the components' weights.

    The scorers of the components are `ScoredText`, which count the tokens of these sentences.
    Finished blocks are kept beside the output, if there is one, until all are finished.
    """
    workers = Blocks(pool, TextWorker, options, ngpu, context)
    with scored_blocks(
        workers,
        text_blocks(sentences, context=context),
        sentences=first_sentences(sentences) if chooses_form(options) else [],
        identity=f"{part_of(ComponentOptions, options)!r} {context}",
        output=output,
        desc="scoring",
        unit="sentence",
        total=len(sentences),
    ) as (facts, scored):
        named, weights = facts.of_worker
        texts: List[Any] = [ScoredText(name) for name, *_ in named]
        for block, of_components in scored:
            for text, of_block in zip(texts, of_components, strict=True):
                text.add(block, of_block)
    pairs = zip(named, texts, strict=True)
    components = [Component(name, kind, text, digest) for (name, kind, digest), text in pairs]
    return components, [text.scores for text in texts], weights

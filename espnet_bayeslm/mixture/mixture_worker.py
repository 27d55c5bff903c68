"""Mixtures that workers hold, and blocks of text or lists that they score."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections import Counter
from typing import (
    Any,
    Callable,
    ContextManager,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import numpy as np

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.engine.work import Blocks
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.mixture.facts import Forms, MixtureFacts
from espnet_bayeslm.mixture.word_mixture import Mixture, Sentences
from espnet_bayeslm.pretrained.text_forms import first_sentences
from espnet_bayeslm.scoring.perplexity import BLOCK_SIZE, UnknownWords
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.files import PathLike

Block = TypeVar("Block", bound=Sequence)
T = TypeVar("T")
# Words before the unknown ones are counted on
ENOUGH = 1000


class MixtureWorker:
    """A worker with a mixture, which a subclass loads and scores blocks by."""

    mixture: Mixture

    def facts(self, sentences: Optional[Sentences] = None) -> Optional[MixtureFacts]:
        """Facts of the mixture; None if a form is open, and sentences are wanted."""
        return self.mixture.facts if self.mixture.prepare(sentences) else None

    def score_in_forms(self, sent: Tuple[Forms, Any]) -> Any:
        """Scores of a block, whose text pretrained LMs read in the forms that were chosen."""
        forms, block = sent
        self.mixture.prepare(None, forms)
        return self.score(block)

    def score(self, block: Any) -> Any:
        """Scores of a block."""
        raise NotImplementedError

    def mends(self, asked: Tuple[int, Counter[str]]) -> List[str]:
        """Lines that say how unknown words differ from words that a component knows."""
        return self.mixture.mends(*asked)


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
) -> Iterator[Tuple[MixtureFacts, Iterator[Tuple[Block, Any]]]]:
    """Facts of the mixture, and an iterator of blocks and their scores, within the block.

    One worker chooses the forms of the text, and all read it in these. Scores of finished blocks
    are kept beside the output, if there is one, until the block of code ends well.

    Args:
        workers: Workers with a `MixtureWorker` each.
        blocks: The blocks.
        sentences: Gives the sentences by which pretrained LMs choose the forms, if one does.
        identity: All that scores depend on besides components, forms and blocks.
        output: The file or folder that is to be written.
        sent: Function of a block: the part that workers need.
        **progress: `desc`, `unit` and `total` of the progress bar.
    """
    facts: MixtureFacts = workers.ask("facts") or workers.ask("facts", sentences())
    if facts.kept:
        facts.warn_of_other_forms()
    method, part, forms = "score", sent, facts.text_forms
    if forms:
        method, part = "score_in_forms", lambda block: (forms, sent(block))
    kept: ContextManager[None] = contextlib.nullcontext()
    if output is not None:
        kept = workers.kept(output, f"{identity} {facts.signature}")
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


class TextWorker(MixtureWorker):
    """A mixture that scores blocks of sentences."""

    def __init__(self, options: MixtureOptions, ngpu: int, context: int):
        self.mixture = Mixture.load(options, device_of(ngpu), context=context, alone=True)

    def score(self, block: Sentences) -> Tuple[List[List[WordScores]], List[List[np.ndarray]]]:
        """Scores of a block by each component, and the tokens of its words."""
        return self.mixture.each(block), self.mixture.token_counts_of_each(block)


class TextScores(NamedTuple):
    """Scores of the sentences of a text.

    Attributes:
        mixture: Facts of the mixture.
        scores: Scores of each sentence by each component.
        tokens: (n + 1,) tokens of each word and `</s>` of each sentence, for each component.
    """

    mixture: MixtureFacts
    scores: List[List[WordScores]]
    tokens: List[List[np.ndarray]]


def score_text(
    pool: Optional[Pool],
    options: MixtureOptions,
    sentences: Sentences,
    *,
    ngpu: int,
    context: int,
    output: Optional[PathLike],
) -> TextScores:
    """Scores of the sentences of a text by the components of a mixture, on workers.

    Finished blocks are kept beside the output, if there is one, until all are finished.
    """
    if pool is None and output is None:
        mixture = Mixture.load(options, device_of(ngpu), context=context, alone=True)
        if not mixture.prepare(None):
            mixture.prepare(first_sentences(sentences))
        facts = mixture.facts
        if facts.kept:
            facts.warn_of_other_forms()
        scores = mixture.each(sentences)
        return TextScores(facts, scores, mixture.token_counts_of_each(sentences))
    workers = Blocks(pool, TextWorker, options, ngpu, context)
    # an LM with context reads the text as a whole
    size = sys.maxsize if context else BLOCK_SIZE
    with scored_blocks(
        workers,
        [sentences[n : n + size] for n in range(0, len(sentences), size)],
        sentences=functools.partial(first_sentences, sentences),
        identity=f"{dataclasses.replace(options, weights=None)!r} {context}",
        output=output,
        desc="scoring",
        unit="sentence",
        total=len(sentences),
    ) as (facts, scored):
        count = len(facts.components)
        found = TextScores(facts, [[] for _ in range(count)], [[] for _ in range(count)])
        kept: List[List[Any]] = [*found.scores, *found.tokens]
        for _, (scores, tokens) in scored:
            for of_component, more in zip(kept, [*scores, *tokens], strict=True):
                of_component.extend(more)
    return found

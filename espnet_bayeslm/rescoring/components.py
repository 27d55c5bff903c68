"""The components of a mixture, and their scores of a text and of the words of N-best lists."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from espnet_bayeslm.evaluation.perplexity import Perplexity, sentence_perplexity, token_counts
from espnet_bayeslm.evaluation.word_scores import ContextualScorer, WordScorer, WordScores
from espnet_bayeslm.nbest.counting import ALL_WORDS, Counting
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.decision import ListScores, distinct_hypotheses
from espnet_bayeslm.rescoring.interpolation import MixtureScorer, mix
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.utils.errors import InputError

UNITS = {"word": "words", "token": "tokens", "character": "characters"}
Sentences = Mapping[str, Sequence[str]]
Recording = Sequence[NBest]
"""The lists of its utterances, in the order of time."""
# Words before the unknown ones are counted on.
ENOUGH = 1000


class Component(NamedTuple):
    """One LM or n-gram of a mixture.

    Attributes:
        name: Its name, unique among the components; weights files go by it.
        kind: "lm" or "ngram".
        scorer: It scores sentences word by word.
        fingerprint: A digest of its files: by it weights find their component under any name.
    """

    name: str
    kind: str
    scorer: WordScorer
    fingerprint: str = ""


def inner_scorer(component: Component) -> WordScorer:
    """Scorer of a component itself, loaded where a cache stands before it."""
    scorer = component.scorer
    return scorer.scorer if isinstance(scorer, CachedScorer) else scorer


def score_components(
    components: Sequence[Component],
    sentences: Sequence[Sequence[str]],
    *,
    max_oov_rate: float = 1.0,
) -> List[List[WordScores]]:
    """Scores of each sentence by each component.

    Repeated ones are the scorers' own affair: an LM with context needs them where they stand.

    Raises:
        InputError: A component does not know more than `max_oov_rate` of the words.
    """
    scores = []
    for component in components:
        scores.append(component.scorer.word_scores(sentences))
        unknown = UnknownWords(component.name, max_oov_rate=max_oov_rate)
        unknown.add(sentences, scores[-1])
        unknown.check(report=True)
    return scores


class UnknownWords:
    """Counts the words that a component does not know.

    Args:
        name: The component's name.
        max_oov_rate: The largest part of the words that it may not know.
        counting: Whether words or characters are counted, and which words are not.
    """

    def __init__(self, name: str, *, max_oov_rate: float, counting: Counting = ALL_WORDS):
        self.name, self.max_oov_rate, self.counting = name, max_oov_rate, counting
        self.words: Counter = Counter()
        self.num_words = 0

    def add(self, sentences: Sequence[Sequence[str]], scores: Sequence[WordScores]) -> None:
        """Count the words of some sentences."""
        self.num_words += sum(map(self.counting.size, sentences))
        for words, score in zip(sentences, scores, strict=True):
            if score.oov.any():
                known = zip(words, score.oov[:-1], strict=True)
                for word in (word for word, oov in known if oov):
                    self.words[word] += self.counting.size((word,))
                self.words = +self.words  # without those that do not count

    def check(self, *, report: bool = False) -> None:
        """Raise an InputError where they are too many; `report`: write their rate into the log."""
        total, distinct = self.words.total(), len(self.words)
        words = "" if self.counting.unit == "word" else " words"
        rate = total / max(self.num_words, 1)
        examples = ", ".join(f"{word!r}" for word, _ in self.words.most_common(5))
        message = (
            f"{self.name} does not know {total} of {self.num_words} {self.counting.noun}"
            f" ({100 * rate:.2f} %, {distinct} distinct{words}{': ' if distinct else ''}{examples})"
        )
        if rate > self.max_oov_rate:
            raise InputError(
                f"{message}, and --max_oov_rate is {self.max_oov_rate}",
                remedy="Do text and LM agree in case, spelling and tokens?"
                " `--normalize lower,punct` makes text in upper case or with punctuation agree.",
            )
        if report:
            logging.info(message)


class TextScores:
    """The scores of a text under components and, where there are weights, their mixture.

    "Without OOVs" leaves out the words that any of the components does not know: the same words
    for all of them. What follows one counts there, and depends on how an LM takes <unk>; known
    sentences are those without any such word. The tokens of a mixture are words.

    Args:
        components: The components.
        sentences: Key -> words.
        scores: The components' scores.
        weights: (K,), or None.
    """

    def __init__(
        self,
        components: Sequence[Component],
        sentences: Sentences,
        scores: Sequence[Sequence[WordScores]],
        weights: Optional[np.ndarray] = None,
    ):
        self.sentences = sentences
        self.components = list(components)
        self.scores = list(scores)
        self._excluded = [
            np.logical_or.reduce([s.oov for s in row]) for row in zip(*scores, strict=True)
        ]
        if weights is not None and len(components) > 1:
            mixture = MixtureScorer([c.scorer for c in components], weights)
            self.components.append(Component(mixture.name, "mixture", mixture))
            self.scores.append(mix(scores, weights))

    def perplexities(self, index: int) -> List[Perplexity]:
        """Perplexity of each sentence under a component (the mixture comes last)."""
        scorer = self.components[index].scorer
        rows = zip(self.sentences.values(), self.scores[index], self._excluded, strict=True)
        return [
            sentence_perplexity(words, score, tokens=token_counts(scorer, words), excluded=excluded)
            for words, score, excluded in rows
        ]

    def summary(self, index: int) -> Dict[str, Any]:
        """Figures of a component over the whole text."""
        found = self.perplexities(index)
        total = sum(found, Perplexity())
        known = sum((sentence for sentence in found if not sentence.oov.words), Perplexity())
        num_words = total.all.words - total.sentences
        num_oovs = int(sum(score.oov.sum() for score in self.scores[index]))
        return {
            "name": self.components[index].name,
            "kind": self.components[index].kind,
            "log_prob": total.all.log_prob,
            "words": num_words,
            "sentences": total.sentences,
            "tokens": total.all.tokens,
            "characters": total.all.characters,
            "oovs": num_oovs,
            "oov_rate": num_oovs / num_words if num_words else 0.0,
            "excluded": total.oov.words,
            "perplexity": {u: total.all.perplexity(n) for u, n in UNITS.items()},
            "perplexity_without_oov": {u: total.known.perplexity(n) for u, n in UNITS.items()},
            "known_sentences": known.sentences,
            "perplexity_of_known_sentences": {u: known.all.perplexity(n) for u, n in UNITS.items()},
        }

    def summaries(self) -> List[Dict[str, Any]]:
        """Figures of every component, the mixture last."""
        return [self.summary(index) for index in range(len(self.components))]


def _list_scores(
    nbest: NBest, rows: Sequence[Sequence[WordScores]], counting: Counting
) -> ListScores:
    """A list with the scores of each hypothesis by each component."""
    log_probs = tuple(np.stack([score.log_probs for score in row]) for row in rows)
    unknown = tuple(
        np.array([_count_unknown(hyp.words, score, counting) for score in row])
        for hyp, row in zip(nbest.hypotheses, rows, strict=True)
    )
    return ListScores(nbest, log_probs, unknown=unknown)


def _count_unknown(words: Sequence[str], score: WordScores, counting: Counting) -> int:
    """Words, or characters of words, that a component does not know."""
    if not score.oov.any():
        return 0
    known = zip(words, score.oov[:-1], strict=True)
    return counting.size([word for word, oov in known if oov])


class ListScorer:
    """Scores the words of N-best lists under several components, block by block.

    Args:
        components: The LMs and n-grams.
        max_oov_rate: The largest part of the words that a component may not know.
        counting: Whether unknown words or their characters are counted, and which words are not.
    """

    def __init__(
        self,
        components: Sequence[Component],
        *,
        max_oov_rate: float,
        counting: Counting = ALL_WORDS,
    ):
        self.components, self.counting = list(components), counting
        self.unknown = [
            UnknownWords(c.name, max_oov_rate=max_oov_rate, counting=counting) for c in components
        ]

    def score(self, block: Sequence[Recording]) -> List[ListScores]:
        """Lists of a block with their scores; equal hypotheses are scored once.

        Raises:
            InputError: A component knows too few of the words so far.
        """
        items = [item for recording in block for item in recording]
        sentences = distinct_hypotheses(items)
        scores = [component.scorer.word_scores(sentences) for component in self.components]
        self._count(sentences, scores)
        found = dict(zip(sentences, zip(*scores, strict=True), strict=True))
        return [
            _list_scores(item, [found[hyp.words] for hyp in item.hypotheses], self.counting)
            for item in items
        ]

    def _count(
        self, sentences: Sequence[Sequence[str]], scores: Sequence[Sequence[WordScores]]
    ) -> None:
        for unknown, of_component in zip(self.unknown, scores, strict=True):
            unknown.add(sentences, of_component)
            if unknown.num_words >= ENOUGH:
                unknown.check()


Choose = Callable[["ListScores"], Sequence[str]]


class ContextScorer(ListScorer):
    """As `ListScorer`, but each LM goes on from the best hypotheses so far of a recording.

    N-grams begin each utterance anew.

    Args:
        components: As of `ListScorer`.
        max_oov_rate: As of `ListScorer`.
        choose: Returns the words that count as said, of a list with its scores.
        counting: As of `ListScorer`.
    """

    def __init__(
        self,
        components: Sequence[Component],
        *,
        max_oov_rate: float,
        choose: Choose,
        counting: Counting = ALL_WORDS,
    ):
        super().__init__(components, max_oov_rate=max_oov_rate, counting=counting)
        self.choose = choose
        # what a cache keeps are scores without context
        self.scorers: List[Any] = [inner_scorer(component) for component in components]

    def score(self, block: Sequence[Recording]) -> List[ListScores]:
        """Lists of a block with their scores, recording by recording."""
        found: List[List[ListScores]] = [[] for _ in block]
        with_context = [k for k, s in enumerate(self.scorers) if isinstance(s, ContextualScorer)]
        histories: Dict[int, List[Any]] = {k: [None] * len(block) for k in with_context}
        for step in range(max(map(len, block), default=0)):
            active = [r for r, recording in enumerate(block) if step < len(recording)]
            items = [block[r][step] for r in active]
            before = {k: [of_lm[r] for r in active] for k, of_lm in histories.items()}
            lists = self._score_items(items, before)
            said = [self.choose(item) for item in lists]
            for k, of_lm in before.items():
                extended = self.scorers[k].extended(of_lm, said)
                for r, history in zip(active, extended, strict=True):
                    histories[k][r] = history
            for r, item in zip(active, lists, strict=True):
                found[r].append(item)
        return [item for of_recording in found for item in of_recording]

    def _score_items(
        self, items: Sequence[NBest], histories: Dict[int, List[Any]]
    ) -> List[ListScores]:
        """Lists of one utterance of each recording with their scores."""
        groups = [[hyp.words for hyp in item.hypotheses] for item in items]
        sentences = [words for group in groups for words in group]
        scores: List[List[WordScores]] = []
        for k, scorer in enumerate(self.scorers):
            if k in histories:
                of_groups = scorer.scores_in_context(groups, histories[k])
                scores.append([score for group in of_groups for score in group])
            else:
                scores.append(scorer.word_scores(sentences))
        self._count(sentences, scores)
        rows = iter(zip(*scores, strict=True))
        return [
            _list_scores(item, [next(rows) for _ in item.hypotheses], self.counting)
            for item in items
        ]

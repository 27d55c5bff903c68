"""A mixture of LMs and n-grams, which scores words of lists, lattices, texts and searches."""

from __future__ import annotations

import functools
import itertools
import sys
from typing import Any, Counter, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import ArrayLike

from espnet_bayeslm.loading.component_options import ComponentOptions
from espnet_bayeslm.loading.components import load_components
from espnet_bayeslm.mixture.facts import ComponentFacts, Forms, MixtureFacts, forms_for
from espnet_bayeslm.mixture.weights_file import read_weights, subtracted_weights
from espnet_bayeslm.scoring.interpolation import combined
from espnet_bayeslm.scoring.perplexity import (
    BLOCK_SIZE,
    NO_IDS,
    ONE_FORM,
    UnknownWords,
    check_no_ids,
)
from espnet_bayeslm.scoring.unknown_words import mending_lines
from espnet_bayeslm.scoring.word_scores import Component, WordScorer, WordScores
from espnet_bayeslm.utils.errors import InputError

Sentences = Sequence[Sequence[str]]
NO_FACTS = MixtureFacts()
"""Nothing is known, as of an earlier tuning."""


class Mixture(WordScorer):
    """LMs and n-grams with their weights, as one scorer of words.

    ln p is that of the linear interpolation, plus ln p of each subtracted LM, weighted. A state of
    a prefix has one of each component. Scores of each component by itself have the subtracted ones
    last.

    Args:
        components: LMs and n-grams that are loaded.
        weights: Their weights, of sum 1, (K,); None: not known yet, or 1 of a single one.
        subtracted: LMs and n-grams that are subtracted.
        subtracted_weights: Their weights, at or below zero.
        kept: Option of a file -> forms of the text in the estimation that it tells of.
        max_oov_rate: Largest share of unknown words.
        context: Sentences of a text that LMs read before each sentence.
    """

    name = "mixture"

    def __init__(
        self,
        components: Sequence[Component],
        weights: Optional[ArrayLike] = None,
        *,
        subtracted: Sequence[Component] = (),
        subtracted_weights: Sequence[float] = (),
        kept: Mapping[str, Forms] = {},
        max_oov_rate: float = 1.0,
        context: int = 0,
    ):
        self.components, self.subtracted = components, subtracted
        self.every = [*components, *subtracted]
        if weights is None and len(components) == 1:
            weights = [1.0]
        self.weights = None if weights is None else np.asarray(weights)
        self.subtracted_weights, self.kept = subtracted_weights, kept
        self.max_oov_rate, self.context = max_oov_rate, context

    @classmethod
    def load(
        cls,
        options: ComponentOptions,
        device: str = "cpu",
        *,
        tuned: MixtureFacts = NO_FACTS,
        tunes: bool = False,
        context: int = 0,
        alone: bool = False,
        **reading: Any,
    ) -> Mixture:
        """Mixture of the LMs and n-grams that options name.

        Args:
            options: Options of the components, perhaps with their weights (`MixtureOptions`), and
                LMs that are subtracted (`SubtractOptions`).
            device: Where weights of LMs go.
            tuned: Facts of the mixture in the tuning of `--scales`.
            tunes: True if the weights of subtracted LMs are yet to be tuned.
            context: Sentences of a text that LMs read before each sentence.
            alone: True if without weights each component stands by itself.
            **reading: `max_context` and `unit`, as `load_components` has them.
        """
        every = load_components(options, device, context=context, **reading)
        count = len(options.lms) + len(options.ngrams)
        facts = [ComponentFacts(c.name, fingerprint=c.fingerprint) for c in every]
        weights, own, given = None, facts[:count], getattr(options, "weights", None)
        rows: Sequence[ComponentFacts] = ()
        if hasattr(options, "weights") and not (alone and given is None):
            names, digests = [row.name for row in own], [row.fingerprint for row in own]
            weights, rows = read_weights(given, names, fingerprints=digests)
        signs, less = getattr(options, "subtract_weights", ()), []
        if facts[count:] or tuned.subtracted or signs:
            less = subtracted_weights(facts[count:], tuned.subtracted, signs, tunes=tunes)
        readers = {c.name: c.fingerprint for c in every if c.scorer.reads_in_forms}
        kept = {"--scales": (*tuned.components, *tuned.subtracted), "--weights": rows}
        return cls(
            every[:count],
            weights,
            subtracted=every[count:],
            subtracted_weights=less,
            kept={name: forms_for(of, readers) for name, of in kept.items() if readers and of},
            max_oov_rate=options.max_oov_rate,
            context=context,
        )

    @property
    def facts(self) -> MixtureFacts:
        """Facts of the mixture, without its LMs."""
        given = [0.0] * len(self.components) if self.weights is None else self.weights.tolist()
        rows = [
            ComponentFacts(c.name, weight, c.fingerprint, c.scorer.text_form, c.kind)
            for c, weight in zip(self.every, [*given, *self.subtracted_weights], strict=True)
        ]
        count = len(self.components)
        return MixtureFacts(rows[:count], rows[count:], self.kept)

    def prepare(self, sentences: Optional[Sentences], form: Optional[Forms] = None) -> bool:
        """Let pretrained LMs read text in given forms; else in those that are kept, or chosen.

        Args:
            sentences: Sentences that choose the forms, where none is kept; None: there are none.
            form: The forms, which were chosen before, by the LMs' names.

        Returns:
            False where sentences are wanted, and nothing is chosen.
        """
        lms: Dict[str, Any] = {c.name: c.scorer for c in self.every if c.scorer.reads_in_forms}
        known: Dict[str, str] = {}
        for of_file in reversed([*self.kept.values()]):
            known.update(of_file)
        given = {n: known.get(n) if lm.chooses else None for n, lm in lms.items()}
        if form is not None:
            given = {name: form.get(name) for name in lms}
        elif sentences is None and any(lm.is_open and not given[n] for n, lm in lms.items()):
            return False
        for name, lm in lms.items():
            lm.prepare(sentences or (), given[name])
        return True

    def each(self, sentences: Sentences, *, checked: bool = False) -> List[List[WordScores]]:
        """Scores of each sentence by each component, those with context in one text.

        Repeated sentences are a component's own affair: with context each stands in its place.
        With `checked` the words that a component does not know are, before the next one scores.
        """
        size = sys.maxsize if self.context else BLOCK_SIZE
        blocks = [sentences[n : n + size] for n in range(0, len(sentences), size)]
        found = []
        for n, component in enumerate(self.every):
            found.append([s for block in blocks for s in component.scorer.word_scores(block)])
            if checked:
                count = UnknownWords(component.name, self.max_oov_rate)
                count.add(sentences, found[-1])
                count.check(functools.partial(self.mends, n), report=True)
        return found

    def mixed(self, log_probs: np.ndarray) -> np.ndarray:
        """Ln p, (n,), of ln p by each component, (K, n)."""
        if self.weights is None:
            raise InputError("a mixture without weights", remedy="Give MixtureOptions(weights=..).")
        count = len(self.weights)
        found = combined(log_probs[:count], self.weights)
        rows = zip(self.subtracted_weights, log_probs[count:], strict=True)
        return found + sum(weight * values for weight, values in rows if weight)

    def word_scores(self, sentences: Sentences) -> List[WordScores]:
        """Scores of each sentence; a word is OOV where a component does not know it."""
        return [
            WordScores(
                self.mixed(np.stack([s.log_probs for s in scores])),
                np.logical_or.reduce([s.oov for s in scores]),
            )
            for scores in zip(*self.each(sentences), strict=True)
        ]

    def token_counts_of_each(self, sentences: Sentences) -> List[List[np.ndarray]]:
        """(n + 1,) tokens of each word and `</s>` of each sentence, for each component."""
        return [[c.scorer.token_counts(words) for words in sentences] for c in self.every]

    def begin(
        self, *, anywhere: bool = False, vocabulary: Optional[Iterable[str]] = None
    ) -> Tuple[Any, ...]:
        """States of the components before the first word."""
        how: Any = dict(anywhere=anywhere, vocabulary=vocabulary)
        return tuple(c.scorer.begin(**how) for c in self.every)

    def after(self, state: Tuple[Any, ...], word: str) -> Tuple[Any, ...]:
        """States of the components after one more word."""
        return tuple(c.scorer.after(own, word) for c, own in zip(self.every, state, strict=True))

    def next_words(self, states: Sequence[Tuple[Any, ...]], words: Sequence[str]) -> np.ndarray:
        """Ln p of a word, or of `END`, after each state, (N,)."""
        columns = zip(self.every, zip(*states, strict=True), strict=True)
        return self.mixed(np.stack([c.scorer.next_words(own, words) for c, own in columns]))

    @functools.cached_property
    def has_stand_in(self) -> bool:
        """True if n-grams can stand in for LMs, which take longer."""
        return len({component.kind == "ngram" for component in self.components}) == 2

    def stand_in(self, states: Sequence[Tuple[Any, ...]], words: Sequence[str]) -> np.ndarray:
        """Ln p of a word after each state by the n-grams alone, (N,).

        Their weights sum to 1 here; they are equal where all are 0.
        """
        assert self.weights is not None
        rows = [n for n, c in enumerate(self.components) if c.kind == "ngram"]
        weights = self.weights[rows]
        weights = weights if weights.any() else np.ones(len(rows))
        log_probs = [
            self.components[n].scorer.next_words([own[n] for own in states], words) for n in rows
        ]
        return combined(np.stack(log_probs), weights / weights.sum())

    def check_plain(self, sentences: Sentences) -> None:
        """Raise an InputError if most sentences are in tokens already."""
        for component in self.every:
            component.scorer.check_plain(sentences)

    def unknown(self, words: Sequence[str]) -> List[bool]:
        """True for each word that no component knows."""
        return [*map(all, zip(*(c.scorer.unknown(words) for c in self.every), strict=True))]

    def unknown_in(self, words: Sequence[str]) -> List[UnknownWords]:
        """Counts of the words that each component does not know."""
        counts = [UnknownWords(c.name, self.max_oov_rate) for c in self.every]
        for count, component in zip(counts, self.every, strict=True):
            count.words.update(itertools.compress(words, component.scorer.unknown(words)))
            count.num_words = len(words)
        return counts

    def check_words(self, sentences: Sentences, *, remedy: str = ONE_FORM) -> None:
        """Raise an InputError where a component does not know too many words; tell their rate.

        The `remedy` is a sentence that tells how text and LMs agree.
        """
        for n, count in enumerate(self.unknown_in([*itertools.chain.from_iterable(sentences)])):
            count.check(functools.partial(self.mends, n), report=True, remedy=remedy)

    def check_no_ids(self, sentences: Sentences, scores: Sequence[Sequence[WordScores]]) -> None:
        """Raise an InputError where lines begin with utterance ids, which no component knows."""
        words = [*itertools.chain.from_iterable(sentences)]
        oov = ([s.oov[:-1] for s in of_component] for of_component in scores)
        unknown = [{*itertools.compress(words, np.concatenate([[], *own]))} for own in oov]
        is_known = lambda word: any(word not in own for own in unknown)  # noqa: E731
        check_no_ids(sentences, is_known, remedy=NO_IDS)

    def mends(self, index: int, words: Counter[str]) -> List[str]:
        """Lines that say how unknown words differ from words that a component knows."""
        return mending_lines(words, self.every[index].scorer)

"""Further hypotheses: words that a recogniser wrote in place of a listed name that sounds so.

Words of a hypothesis that are spelled nearly as a phrase of its bias list may stand for it. Such a
hypothesis has the scores of the one that it comes from, and the ln odds of its phrases beside them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import unicodedata
from typing import (
    AbstractSet,
    Callable,
    Container,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists
from espnet_bayeslm.evaluation.near_spellings import Near, SpellingIndex
from espnet_bayeslm.evaluation.wer import Counting
from espnet_bayeslm.nbest.types import Hypothesis, NBest, Rewriting
from espnet_bayeslm.rescoring.near_odds import (
    LEAST,
    NearWords,
    OddsWeights,
    WordRun,
    Words,
    columns_of,
    map_weights,
)
from espnet_bayeslm.utils.log import LOG

LONGEST_RUN = 3
"""Words that may stand for a listed one, at most."""
FEWEST_LETTERS = 3
MOST_OF_RUN, MOST_OF_HYPOTHESIS, MOST_TOGETHER = 2, 3, 3
"""Phrases in place of some words; replacements of a hypothesis; replacements in one of them."""
# The hardest pairs of a list that weights are found on, and rounds of finding them
HARDEST, ROUNDS = 3, 4
LENIENT = LEAST - 5.0
"""Ln odds, by the known weights, above which pairs may count when weights are found."""

Place = Tuple[int, int]
"""Where words of a hypothesis begin and end."""
Candidates = Mapping[Words, Sequence[Tuple[float, WordRun, Near]]]
"""Words -> ln odds of phrases near them, the highest first."""


def own_counts(nbest: NBest) -> Mapping[str, int]:
    """Counts of the words of a list's best hypothesis, as `NearWords` has them."""
    return collections.Counter(nbest.hypotheses[0].words)


def places(words: Words, biased: Container[str], longest: int) -> Iterator[Place]:
    """Yield the runs of words of a hypothesis in which none is listed."""
    for begin in range(len(words)):
        for end in range(begin + 1, min(begin + longest, len(words)) + 1):
            if words[end - 1] in biased:
                break
            if sum(map(len, words[begin:end])) >= FEWEST_LETTERS:
                yield begin, end


class NearList:
    """A bias list in which near spellings are looked up.

    Args:
        bias: The list.
    """

    def __init__(self, bias: BiasList):
        self.index, self.words = SpellingIndex(bias.weights), bias.words
        self.longest = max(LONGEST_RUN, bias.most_words + 1)

    def candidates(self, nbest: NBest, odds: NearWords, own: Mapping[str, int]) -> Candidates:
        """Phrases that are near some words of a list's hypotheses.

        `own` is the part of the odds' counts that is of this list.
        """
        if not len(self.index):
            return {}
        hyps = [frozenset(hyp.words) for hyp in nbest.hypotheses]
        runs = dict.fromkeys(
            hyp.words[begin:end]
            for hyp in nbest.hypotheses
            for begin, end in places(hyp.words, self.words, self.longest)
        )
        found: Dict[Words, List[Tuple[float, WordRun, Near]]] = {}
        for words in runs:
            agreement = sum(map(hyp_has(words), hyps)) / len(hyps)
            letters = unicodedata.normalize("NFC", "".join(words))
            run = WordRun(words, odds.ln_frequency(words, own), agreement, len(letters))
            most = odds.most_edits(run, len(self.index))
            near = self.index.near(letters, most) if most >= 0 else []
            rows = [(odds.ln_odds(run, each, len(self.index)), run, each) for each in near]
            if rows := [row for row in rows if row[0] >= odds.least]:
                found[words] = sorted(rows, key=lambda row: (-row[0], row[2].phrase))
        return found


@functools.lru_cache(maxsize=2)
def near_list(bias: BiasList) -> NearList:
    """A bias list in which near spellings are looked up; that of the last utterance is kept."""
    return NearList(bias)


def hyp_has(words: Words) -> Callable[[AbstractSet[str]], bool]:
    """Test if a hypothesis has some words, wherever they stand."""
    return frozenset(words).issubset


class Replacement(NamedTuple):
    """A phrase in place of some words of a hypothesis."""

    ln_odds: float
    place: Place
    phrase: str


def replacements(
    words: Words, candidates: Candidates, biased: Container[str], longest: int, said: Container[str]
) -> List[Replacement]:
    """Replacements in a hypothesis, those of the highest odds first; none by what was said."""
    found = []
    for begin, end in places(words, biased, longest):
        rows = [row for row in candidates.get(words[begin:end], ()) if row[2].phrase not in said]
        for ln_odds, _, near in rows[:MOST_OF_RUN]:
            found.append(Replacement(ln_odds, (begin, end), near.phrase))
    found.sort(key=lambda each: (-each.ln_odds, each.place, each.phrase))
    return found[:MOST_OF_HYPOTHESIS]


def combinations_of(found: Sequence[Replacement]) -> Iterator[Tuple[Replacement, ...]]:
    """Yield each replacement alone, then the best ones that do not overlap together."""
    yield from ((each,) for each in found)
    chosen: Tuple[Replacement, ...] = ()
    for each in found:
        if all(each.place[1] <= a or b <= each.place[0] for a, b in (c.place for c in chosen)):
            chosen = (*chosen, each)
            if len(chosen) > 1:
                yield chosen
        if len(chosen) == MOST_TOGETHER:
            break


def rewritten(words: Words, chosen: Iterable[Replacement], *, upper: bool = False) -> Words:
    """Words with phrases in place of some."""
    new = list(words)
    for each in sorted(chosen, key=lambda each: each.place, reverse=True):
        begin, end = each.place
        new[begin:end] = (each.phrase.upper() if upper else each.phrase).split()
    return tuple(new)


def with_near_words(
    nbest: NBest,
    bias: BiasList,
    odds: NearWords,
    saids: Sequence[Container[str]] = ((),),
    *,
    is_counted: bool = False,
) -> NBest:
    """List with further hypotheses, in which listed phrases stand for words that are near them.

    Args:
        nbest: The list; its `source` gets the hypotheses too.
        bias: Its bias list.
        odds: Odds of near words.
        saids: Phrases that no hypothesis gets: (), and for a decoy those that were said. There are
            hypotheses of each.
        is_counted: True if the list is among those whose words the odds have counted.
    """
    near = near_list(bias)
    candidates = near.candidates(nbest, odds, own_counts(nbest) if is_counted else {})
    known = {hyp.words for hyp in nbest.hypotheses}
    source = nbest.source or nbest
    hyps: List[Hypothesis] = []
    as_came: List[Hypothesis] = []
    for origin, hyp in enumerate(nbest.hypotheses if candidates else ()):
        before = source.hypotheses[origin]
        same_words = before.words if len(before.words) == len(hyp.words) else hyp.words
        upper = " ".join(before.words).isupper()
        for said in saids:
            found = replacements(hyp.words, candidates, near.words, near.longest, said)
            for chosen in combinations_of(found):
                words = rewritten(hyp.words, chosen)
                if words in known:
                    continue
                known.add(words)
                phrases = tuple(each.phrase for each in chosen)
                rewriting = Rewriting(origin, phrases, sum(each.ln_odds for each in chosen))
                extra = {"near_words": list(phrases)}
                new = dataclasses.replace(hyp, words=words, extra=extra, rewriting=rewriting)
                hyps.append(new)
                spelled = rewritten(same_words, chosen, upper=upper)
                as_came.append(dataclasses.replace(before, words=spelled, extra=extra))
    if not hyps:
        return nbest
    longer = dataclasses.replace(nbest, hypotheses=(*nbest.hypotheses, *hyps))
    if nbest.source is None:
        return longer
    source = dataclasses.replace(source, hypotheses=(*source.hypotheses, *as_came))
    return dataclasses.replace(longer, source=source)


class Pair(NamedTuple):
    """Words of a best hypothesis, and a phrase that may stand in their place.

    Attributes:
        values: Values that the weights weigh, (K,).
        offset: Part of the ln odds that has no weight.
        place: Where the words are.
        phrase: The phrase.
    """

    values: Tuple[float, ...]
    offset: float
    place: Place
    phrase: str

    def ln_odds(self, weights: OddsWeights) -> float:
        """Ln odds by some weights."""
        return weights.total(self.values) + self.offset


class OddsTuning:
    """Weights of the odds, found on lists with references.

    The pairs are replacements in best hypotheses, by the lists and by decoys. Most are hopeless, so
    those of the highest odds count, found anew a few times.

    Args:
        nbests: The lists.
        refs: Utterance id -> words.
        bias: Bias lists of the utterances.
        counting: How errors are counted.
    """

    def __init__(
        self,
        nbests: Sequence[NBest],
        refs: Mapping[str, Sequence[str]],
        bias: BiasLists,
        counting: Counting,
    ):
        counts: Dict[str, int] = collections.Counter()
        for nbest in nbests:
            counts.update(own_counts(nbest))
        self._known = NearWords(counts=counts, least=LENIENT)
        self._refs, self._counting = refs, counting
        # of each list those of its bias list, then those of its decoy
        self._groups = [
            (nbest, pairs) for nbest in nbests for pairs in self._pairs(nbest, bias.of(nbest.utt))
        ]

    def odds(self) -> NearWords:
        """Odds with the weights that were found."""
        odds = self._known.at_least(LEAST)
        for _ in range(ROUNDS):
            rows = [
                (pair.values, pair.offset, self._is_right(nbest, pair))
                for nbest, pairs in self._groups
                for pair in heapq.nlargest(
                    HARDEST, pairs, key=lambda pair: pair.ln_odds(odds.weights)
                )
            ]
            if not rows:
                break
            values, offsets, labels = map(np.array, zip(*rows, strict=True))
            weights = map_weights(values, offsets, labels.astype(float), self._known.weights)
            odds = dataclasses.replace(odds, weights=weights)
        LOG.debug("near words: %s", odds.weights)
        return odds

    def _pairs(self, nbest: NBest, bias: BiasList) -> Tuple[List[Pair], List[Pair]]:
        """Pairs of a list, and those of its decoy."""
        near, words = near_list(bias), nbest.hypotheses[0].words
        candidates = near.candidates(nbest, self._known, own_counts(nbest))
        offset = self._known.offset(len(bias))
        pairs = [
            Pair(columns_of(run, each), offset, (begin, end), each.phrase)
            for begin, end in places(words, near.words, near.longest)
            for _, run, each in candidates.get(words[begin:end], ())
        ]
        said = bias.said(self._refs[nbest.utt])
        return pairs, [pair for pair in pairs if pair.phrase not in said]

    def _is_right(self, nbest: NBest, pair: Pair) -> bool:
        """True if the best hypothesis has fewer errors with the phrase in its place."""
        words, ref = nbest.hypotheses[0].words, self._refs[nbest.utt]
        new = rewritten(words, [Replacement(0.0, pair.place, pair.phrase)])
        errors = self._counting.errors
        return errors(ref, new).errors < errors(ref, words).errors

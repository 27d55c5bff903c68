"""Texts with listed phrases in place of words that are near them, for a recogniser to score.

Where the recogniser is at hand, its own scores tell whether a phrase was said. The odds of near
words then only choose the texts that are tried.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Callable, Counter, Dict, List, Mapping, Sequence, Tuple

from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.features import NEAR
from espnet_bayeslm.rescoring.near_odds import KNOWN, NearWords, Words
from espnet_bayeslm.rescoring.near_words import with_near_words

RARE = 3.0
"""Ln of 20 words in a million. All words count as being so rare: a recogniser scores the texts."""
TRIED = NearWords(KNOWN._replace(frequency=0.0, intercept=KNOWN.intercept + RARE * KNOWN.frequency))

NearTexts = Callable[[Sequence[Hypothesis], BiasList], Mapping[Words, Tuple[str, ...]]]
"""Hypotheses of a recording and its bias list -> texts to score, with the phrases in them."""


def with_phrases(hypothesis: Hypothesis, phrases: Sequence[str]) -> Hypothesis:
    """Hypothesis whose further entries name the phrases that were put into it."""
    extra = {**hypothesis.extra, NEAR: list(phrases)}
    return dataclasses.replace(hypothesis, extra=extra)


def near_texts(
    hypotheses: Sequence[Hypothesis],
    bias: BiasList,
    *,
    normalised: Callable[[Sequence[str]], Sequence[str]],
    most: int,
) -> Mapping[Words, Tuple[str, ...]]:
    """Texts to score, as the recogniser writes them, with the listed phrases that were put in.

    Of each set of phrases the text comes first that is made of the best hypothesis.

    Args:
        hypotheses: Hypotheses of a recording, the best first.
        bias: Its bias list.
        normalised: Words of a hypothesis -> words as those of the list are.
        most: Number of the texts, at most.
    """
    if not hypotheses:
        return {}
    came = NBest("", tuple(hypotheses))
    compared = came.with_words(lambda words: tuple(normalised(words)))
    nbest = NBest("", compared.hypotheses, source=came)
    longer = with_near_words(nbest, bias, TRIED)
    rows: List[Tuple[int, float, Words, Tuple[str, ...]]] = []
    times: Counter[Tuple[str, ...]] = collections.Counter()
    for hyp, spelled in zip(
        longer.hypotheses[len(hypotheses) :],
        (longer.source or longer).hypotheses[len(hypotheses) :],
        strict=True,
    ):
        assert hyp.rewriting is not None
        phrases = tuple(sorted(hyp.rewriting.phrases))
        rows.append((times[phrases], -hyp.rewriting.ln_odds, spelled.words, phrases))
        times[phrases] += 1
    rows.sort(key=lambda row: row[:2])
    found: Dict[Words, Tuple[str, ...]] = {}
    for _, _, words, phrases in rows:
        found.setdefault(words, phrases)
    return dict(list(found.items())[:most])

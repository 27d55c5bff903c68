"""Words from the tokens of a search, and what they are paid: by a mixture, and by a bias list.

When a token begins a word, the word before it is complete and due. Its ln P is paid then, one step
late, or at each so many tokens. A hypothesis that may end pays its last word and the sentence's end
too. What stood in for a word until then, such as a small LM that looks ahead, is taken back when
the word is paid. The phrases of a bias list pay at once, and their letters before them.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Collection, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.decoding.bias_search import BiasTokens, BiasTree, HeardPhrases, read_search_bias
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.scoring.word_scores import END
from espnet_bayeslm.utils.files import PathLike

# An end is ruled out that is so many nats less likely than the likeliest token
END_MARGIN = 8.0
# A margin with which each hypothesis may end
ALL_END = 1e9

Payment = Tuple[Any, str]
"""A word, or `END`, after some words, for which the state of the mixture stands."""


class PaidText(NamedTuple):
    """Words of a hypothesis.

    Attributes:
        words: State of the mixture after the complete words.
        due: Complete words that are not paid yet.
        owed: What stood in for these words, in nats.
        piece: Letters of the word that has begun.
        spent: What stood in for this word, in nats.
        length: Number of tokens.
        bias: Phrases of the complete words; None without a bias list.
        spelled: Letters of the word that has begun, as words are normalised.
        given: Weight of phrases that has been paid.
        gains: Weight of phrases that each next token pays, (V,); None without a bias list.
    """

    words: Any
    due: Tuple[Payment, ...] = ()
    owed: float = 0.0
    piece: str = ""
    spent: float = 0.0
    length: int = 0
    bias: Optional[HeardPhrases] = None
    spelled: str = ""
    given: float = 0.0
    gains: Optional[np.ndarray] = None


class Paid(NamedTuple):
    """Payments of a step.

    Attributes:
        shifts: Nats that each hypothesis pays now, whatever its next token is.
        ends: Nats that its end pays beside them; -inf where it cannot end.
        texts: Hypotheses after the payments.
    """

    shifts: List[float]
    ends: List[float]
    texts: List[PaidText]


class WordPayments:
    """Words of a search, which a mixture and a bias list pay.

    Args:
        words: How the tokens make words.
        normalization: What is done to a word before it is paid.
        interval: Words are paid at each so many tokens of a hypothesis, and before its end.
    """

    def __init__(self, words: TokenWords, normalization: Normalization, interval: int = 1):
        self.interval, self._words, self._normalization = interval, words, normalization
        self.spelled = words.normalised(normalization.words)
        self._bias_tokens = BiasTokens(self.spelled)

    def words(self, ids: Sequence[int]) -> Sequence[str]:
        """Words of some tokens, normalised."""
        return self.normalised(self._words.words(ids))

    def normalised(self, words: Sequence[str]) -> Sequence[str]:
        """Words as they are paid."""
        return self._normalization.words(words)

    def read_bias(self, path: PathLike, utts: Collection[str]) -> BiasLists:
        """Bias lists of a file, normalised as words are; a warning where tokens lack letters.

        Args:
            path: The file.
            utts: The utterances.
        """
        return read_search_bias(path, self._words, self._normalization, utts)

    def begin(self, state: Any, bias: Optional[BiasTree] = None) -> PaidText:
        """Hypothesis without words.

        Args:
            state: State of the mixture before the first word; None without a mixture.
            bias: The utterance's bias list; None: there is none.
        """
        return self._with_gains(PaidText(state, bias=None if bias is None else bias.begin()))

    def after(
        self, text: PaidText, token: int, mixture: Optional[Mixture], spent: float = 0.0
    ) -> PaidText:
        """Hypothesis after one more token.

        Args:
            text: The hypothesis.
            token: The token.
            mixture: The mixture; None: there is none.
            spent: What stands in for the word's ln P, that the token has been paid.
        """
        state, due, owed, piece, stood_in, length, bias, spelled, given, gains = text
        if gains is not None:
            given += float(gains[token])
        if self._words.opens[token] and piece:
            words = self._last_words(text)
            new = _payments(state, words, mixture)
            state, due, owed = _after(state, new, mixture), (*due, *new), owed + stood_in
            piece, stood_in, spelled, bias = "", 0.0, "", _heard(bias, words)
        piece += self._words.texts[token]
        spelled += self.spelled.texts[token]
        return self._with_gains(
            PaidText(state, due, owed, piece, stood_in + spent, length + 1, bias, spelled, given)
        )

    def pay(
        self, texts: Sequence[PaidText], can_end: Sequence[bool], mixture: Optional[Mixture]
    ) -> Paid:
        """Pay the words that are due, and the ends of hypotheses that may end; all at once.

        Args:
            texts: The hypotheses.
            can_end: True for each that may end.
            mixture: The mixture; None: there is none.
        """
        rows = [*zip(texts, can_end, strict=True)]
        pays = [end or text.length % self.interval == 0 for text, end in rows]
        due = [text.due if now else () for text, now in zip(texts, pays, strict=True)]
        due += [self._end(text, mixture) if end else () for text, end in rows]
        paid = _paid(due, mixture)
        stand_ins = _stand_ins(
            [() if now else text.due for text, now in zip(texts, pays, strict=True)], mixture
        )
        shifts, ends, after = [0.0] * len(texts), [-math.inf] * len(texts), []
        for n, text in enumerate(texts):
            if can_end[n]:
                ends[n] = paid[len(texts) + n] - text.spent
            if pays[n] and (text.due or text.owed):
                shifts[n] = paid[n] - text.owed
                text = text._replace(due=(), owed=0.0)
            elif stand_ins is not None:
                shifts[n] = stand_ins[n] - text.owed
                text = text._replace(owed=stand_ins[n])
            after.append(text)
        return Paid(shifts, ends, after)

    def rests(self, texts: Sequence[PaidText], mixture: Optional[Mixture]) -> List[float]:
        """Nats that each hypothesis has yet to pay if it ends: words that are due, and its end."""
        paid = _paid([(*text.due, *self._end(text, mixture)) for text in texts], mixture)
        return [nats - text.owed - text.spent for nats, text in zip(paid, texts, strict=True)]

    def end_gain(self, text: PaidText) -> float:
        """Weight of phrases that the end of a hypothesis pays."""
        last = _heard(text.bias, self._last_words(text))
        return 0.0 if last is None else last.total - text.given

    def _last_words(self, text: PaidText) -> Sequence[str]:
        """Words of the letters after the complete words, as they are paid."""
        return self._normalization.words([self._words.word(text.piece)]) if text.piece else ()

    def _with_gains(self, text: PaidText) -> PaidText:
        """Hypothesis with the weight of phrases that each next token pays."""
        if text.bias is None:
            return text
        last = _heard(text.bias, self._last_words(text))
        totals = self._bias_tokens.totals(text.bias, text.spelled, last)
        return text._replace(gains=totals - text.given)

    def _end(self, text: PaidText, mixture: Optional[Mixture]) -> Tuple[Payment, ...]:
        """Payments of the last word, and of the sentence's end."""
        last = _payments(text.words, self._last_words(text), mixture)
        return (*last, (_after(text.words, last, mixture), END))


def _heard(bias: Optional[HeardPhrases], words: Sequence[str]) -> Any:
    """Phrases after some words."""
    if bias is not None:
        for word in words:
            bias = bias.after(word)
    return bias


def _payments(state: Any, words: Sequence[str], mixture: Optional[Mixture]) -> Tuple[Payment, ...]:
    """Words, each after the words before it; none without a mixture."""
    found: List[Payment] = []
    for word in words if mixture is not None else ():
        found.append((state, word))
        state = _after(state, found[-1:], mixture)
    return tuple(found)


def _after(state: Any, payments: Sequence[Payment], mixture: Optional[Mixture]) -> Any:
    """State after the last of some payments; the state given without any."""
    return mixture.after(*payments[-1]) if payments and mixture is not None else state


def _stand_ins(
    due: Sequence[Sequence[Payment]], mixture: Optional[Mixture]
) -> Optional[List[float]]:
    """Sums of ln P of some payments by the mixture's n-grams; None where it has no stand-in."""
    if not any(due) or not getattr(mixture, "has_stand_in", False):
        return None
    return _paid(due, mixture, stand_in=True)


def _paid(
    due: Sequence[Sequence[Payment]], mixture: Optional[Mixture], *, stand_in: bool = False
) -> List[float]:
    """Sums of ln P of some payments by the mixture, or by its n-grams; computed at once."""
    payments = [payment for own in due for payment in own]
    if not payments or mixture is None:
        return [0.0] * len(due)
    states, words = zip(*payments, strict=True)
    log_probs = iter((mixture.stand_in if stand_in else mixture.next_words)(states, words).tolist())
    return [sum(itertools.islice(log_probs, len(own)), 0.0) for own in due]

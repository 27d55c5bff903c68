"""Hotwords: words and phrases that a search prefers, each with a weight.

A phrase of n words pays n times its weight where it stands whole. Before that, each of its letters
pays its share, so that the search follows its beginning; the share is taken back where the phrase
is left. Phrases that overlap do not pay both: the best choice of phrases counts.
"""

from __future__ import annotations

import math
import re
from typing import Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines
from espnet_bayeslm.utils.words import lower_case

HOTWORD_WEIGHT = 10.0
_WEIGHT = re.compile(r"(.*?)(?:\t\s*|\s+:)(\S*)\s*")


class PhraseNode:
    """Node of the tree of all phrases: some first words.

    Attributes:
        letters: Number of letters of these words.
        weight: Weight of the phrase that ends here; 0: none does.
        after: The nodes after one more word.
        rates: {first letters of a next word: the most that one letter of a phrase pays there}.
    """

    def __init__(self, letters: int):
        self.letters = letters
        self.weight = 0.0
        self.after: Dict[str, PhraseNode] = {}
        self.rates: Dict[str, float] = {}

    def add(self, words: Sequence[str], weight: float, rate: float) -> None:
        """Add a phrase, of which these words remain."""
        if not words:
            self.weight = max(self.weight, weight)
            return
        word = words[0]
        for end in range(len(word) + 1):
            self.rates[word[:end]] = max(self.rates.get(word[:end], 0.0), rate)
        if word not in self.after:
            self.after[word] = PhraseNode(self.letters + len(word))
        self.after[word].add(words[1:], weight, rate)

    def share(self, letters: str) -> float:
        """Share of a phrase's weight after some letters of its next word; 0: none has them."""
        return self.rates.get(letters, 0.0) * (self.letters + len(letters))


class HotwordState(NamedTuple):
    """The phrases of some words.

    Attributes:
        score: Weight of the phrases that stand whole.
        begun: (first words of a phrase, score before them) of each phrase that has begun.
    """

    score: float = 0.0
    begun: Tuple[Tuple[PhraseNode, float], ...] = ()


class Hotwords:
    """Words and phrases with their weights.

    Args:
        weights: {word or phrase: weight of each of its words}.

    Attributes:
        most: The most that one phrase pays.
    """

    def __init__(self, weights: Mapping[str, float]):
        self._root = PhraseNode(0)
        self.most = 0.0
        for phrase, weight in weights.items():
            words = phrase.split()
            if not 0 < weight < math.inf or not words:
                raise InputError(
                    f"the hotword {phrase!r} has the weight {weight:g}: a word, and a weight above"
                    " 0 were expected",
                    remedy="Leave it out.",
                )
            whole = weight * len(words)
            self._root.add(words, whole, whole / sum(map(len, words)))
            self.most = max(self.most, whole)

    def after(self, state: HotwordState, word: str) -> HotwordState:
        """State after one more word."""
        if not state.begun and word not in self._root.after:
            return state
        score, begun = state.score, []
        for node, before in (*state.begun, (self._root, state.score)):
            if (new := node.after.get(word)) is not None:
                score = max(score, before + new.weight)
                if new.after:
                    begun.append((new, before))
        return HotwordState(score, tuple(begun))

    def ahead(self, state: HotwordState, letters: str) -> Optional[float]:
        """Gain of phrases that go on with the first letters of a word; None: none does."""
        share = self._root.share(letters)
        for node, before in state.begun:
            if letters in node.rates:
                share = max(share, node.share(letters) + before - state.score)
        return share or None


def read_hotwords(
    path: PathLike, weight: float, words: TokenWords, *, lower: bool = False
) -> Hotwords:
    """Hotwords of a file: a word or phrase on each line, perhaps with a tab or ` :` and its weight.

    Args:
        path: The file.
        weight: Weight of hotwords without one.
        words: The tokens that must have the hotwords' letters.
        lower: True if hotwords are written in lower case.
    """
    weights: Dict[str, float] = {}
    for number, line in read_lines(path):
        found = _WEIGHT.fullmatch(line)
        phrase, own = (found[1], found[2]) if found else (line, None)
        phrase = " ".join(lower_case(phrase).split() if lower else phrase.split())
        if not phrase and own is None:
            continue
        try:
            value = weight if own is None else float(own)
            written = letters_of(phrase, words)
            Hotwords({phrase: value})
        except ValueError as error:
            problem = str(error)
            if not isinstance(error, InputError):
                problem = f"the weight {own!r} is no number. Write WORDS :WEIGHT, or WORDS"
            raise InputError(problem, path=path, line=number) from None
        weights[written] = value
    if not weights:
        raise InputError("no hotwords", path=path, remedy="Put one on each line.")
    return Hotwords(weights)


def letters_of(phrase: str, words: TokenWords) -> str:
    """Hotword in the letters of tokens; an InputError where no token has one of its letters."""
    missing = words.missing_letters("".join(phrase.split()))
    if missing:
        other = missing.swapcase()
        advice = "Write it in the letters of the tokens."
        if other != missing and not words.missing_letters(other):
            case = "upper" if other.isupper() else "lower"
            advice = f"Write it in {case} case, as the tokens are."
        raise InputError(
            f"the hotword {phrase!r} has {missing!r}, and no token has such letters", remedy=advice
        )
    return " ".join(map(words.letters, phrase.split()))

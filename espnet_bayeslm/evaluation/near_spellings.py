"""Phrases of a bias list that are spelled nearly as some letters: fewest edits, and an index."""

from __future__ import annotations

import itertools
from typing import Dict, Iterable, List, NamedTuple, Set

FARTHEST = 0.5
"""Most edits of a near spelling, as a share of the letters of the longer one."""


class Near(NamedTuple):
    """A phrase that is spelled nearly as some letters.

    Attributes:
        phrase: The phrase.
        size: Number of its letters, without blanks.
        edits: Letters that are inserted, deleted or replaced.
    """

    phrase: str
    size: int
    edits: int


class SpellingIndex:
    """Phrases by pairs of their letters: near ones are found without a look at the others.

    An edit changes two pairs of neighbouring letters at most. So a spelling with few edits shares
    most pairs, and at least one of any few of them: the rarest few are looked up. Phrases without a
    common pair of letters are never near.

    Args:
        phrases: The phrases; blanks between their words do not count.
    """

    def __init__(self, phrases: Iterable[str]):
        self._phrases = sorted(phrases)
        self._letters = ["".join(phrase.split()) for phrase in self._phrases]
        self._places: Dict[str, List[int]] = {}
        for place, letters in enumerate(self._letters):
            for pair in _pairs(letters):
                self._places.setdefault(pair, []).append(place)

    def __len__(self) -> int:
        return len(self._phrases)

    def near(self, letters: str, most: int) -> List[Near]:
        """Phrases within some edits, at most `FARTHEST` of the longer spelling, in any order.

        Args:
            letters: Letters without blanks.
            most: The most edits, at most one for each letter.
        """
        from rapidfuzz.distance import Levenshtein
        from rapidfuzz.process import cdist

        pairs = sorted(_pairs(letters), key=lambda pair: len(self._places.get(pair, ())))
        looked_up = pairs[: 1 + min(2 * most, len(pairs) - 1)]
        places = [*set().union(*(self._places.get(pair, ()) for pair in looked_up))]
        if not places:
            return []
        others = [self._letters[place] for place in places]
        edits = cdist([letters], others, scorer=Levenshtein.distance, score_cutoff=most)[0]
        found = []
        for n in (edits <= most).nonzero()[0].tolist():
            size, number = len(others[n]), int(edits[n])
            if number <= FARTHEST * max(len(letters), size):
                found.append(Near(self._phrases[places[n]], size, number))
        return found


def _pairs(letters: str) -> Set[str]:
    """Pairs of neighbouring letters, the ends among them."""
    return {a + b for a, b in itertools.pairwise(f" {letters} ")}

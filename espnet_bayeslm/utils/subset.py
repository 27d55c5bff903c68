"""A subset of many texts at even distances, chosen while they are read."""

from __future__ import annotations

from typing import Dict, Sequence

MOST = 5000
"""Texts of a subset."""


class Subset:
    """At most `MOST` of many texts by utterance id, chosen in one reading.

    Attributes:
        texts: Utterance id -> words.
    """

    def __init__(self) -> None:
        self.texts: Dict[str, Sequence[str]] = {}
        self._seen, self._step = 0, 1

    def add(self, utt: str, words: Sequence[str]) -> None:
        """Take a text, or leave it out."""
        if self._seen % self._step == 0:
            self.texts[utt] = words
        self._seen += 1
        if len(self.texts) > MOST:
            self.texts = {utt: self.texts[utt] for utt in list(self.texts)[::2]}
            self._step *= 2

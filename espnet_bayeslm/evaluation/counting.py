"""Units in which errors are counted, and words that do not count."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import unicodedata
from typing import Collection, Dict, FrozenSet, Mapping, Sequence, Union

from espnet_bayeslm.evaluation.markup import Words, mapped
from espnet_bayeslm.evaluation.wer import RATES, ErrorCounts, word_errors
from espnet_bayeslm.utils.casing import nfc
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import option

UNITS = tuple(RATES)
# How the names of characters begin in scripts that put no blanks between words
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
# A line without a blank that has as many characters holds several words in any script
_LONG = 40


@dataclasses.dataclass(frozen=True)
class Counting:
    """Unit of error counts and words left out of them. Lists and texts keep their words.

    Attributes:
        unit: "word", or "char": code points without blanks; both after NFC.
        ignored: Words that are left out of references and hypotheses.
    """

    unit: str = "word"
    ignored: FrozenSet[str] = frozenset()

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InputError(
                f"--unit {self.unit}: no such unit", remedy=f"The units are: {', '.join(UNITS)}."
            )

    @classmethod
    def of(cls, unit: str, ignore_words: Union[PathLike, Collection[str], None]) -> Counting:
        """`Counting` whose ignored words may be in a file, one a line."""
        if isinstance(ignore_words, (str, os.PathLike)):
            ignore_words = read_word_list(ignore_words)
        return cls(unit, frozenset(ignore_words or ()))

    def facts(self) -> Dict[str, Union[str, Sequence[str]]]:
        """Differences from the default counting, for files that say how errors were counted."""
        facts = {"unit": self.unit, "ignore_words": sorted(self.ignored)}
        return {name: value for name, value in facts.items() if value not in ("word", [])}

    def units(self, words: Sequence[str]) -> Words:
        """Words or characters that are counted; markup between them stays."""
        return mapped(words, self._plain_units)

    def _plain_units(self, words: Sequence[str]) -> Words:
        kept = tuple(nfc(word) for word in words if word not in self.ignored)
        return kept if self.unit == "word" else tuple(itertools.chain.from_iterable(kept))

    def text(self, texts: Mapping[str, Sequence[str]]) -> Dict[str, Words]:
        """Utterance id -> the units that are counted."""
        return {utt: self.units(words) for utt, words in texts.items()}

    def errors(self, ref: Sequence[str], hyp: Sequence[str]) -> ErrorCounts:
        """Errors of a hypothesis."""
        return word_errors(self.units(ref), self.units(hyp))

    def size(self, words: Sequence[str]) -> int:
        """Number of words or characters of a hypothesis, which has no markup, that are counted."""
        return len(self._plain_units(words))


ALL_WORDS = Counting()


def read_word_list(path: PathLike) -> FrozenSet[str]:
    """Words of a file, one a line; blank lines are left out."""
    words = set()
    for number, line in read_lines(path):
        words_of_line = line.split()
        if len(words_of_line) > 1:
            raise InputError(
                f"{line[:80]!r} has {len(words_of_line)} words, where one was expected",
                path=path,
                line=number,
                remedy="Put each word on a line of its own.",
            )
        words.update(words_of_line)
    if not words:
        raise InputError("no words", path=path, remedy="Put one word on each line.")
    return frozenset(words)


def warn_without_blanks(texts: Mapping[str, Sequence[str]], counting: Counting) -> None:
    """Warn where words are counted, and most references are written without blanks."""
    if counting.unit != "word":
        return
    lines = [words for words in texts.values() if words]

    def is_unspaced(word: str) -> bool:
        letters = sum(unicodedata.name(c, "").startswith(_UNSPACED) for c in word)
        return letters > 2 or len(word) >= _LONG

    unspaced = [words[0] for words in lines if len(words) == 1 and is_unspaced(words[0])]
    if 2 * len(unspaced) > len(lines):
        LOG.warning(
            "%d of %d references have no blanks between words, such as %r, and each counts as one"
            " word: --unit char counts characters",
            *(len(unspaced), len(lines), unspaced[0][:40]),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingOptions:
    """Options of counting errors: the unit and the words that are ignored."""

    unit: str = option(
        "What errors are counted in: words, or characters (CER; Unicode code points after NFC,"
        " blanks left out)",
        "word",
        choices=UNITS,
    )
    ignore_words: Union[PathLike, Collection[str], None] = option(
        "Words that do not count, one a line, such as [laugh]: they are left out of references"
        " and hypotheses before errors are counted; what is written keeps them",
        None,
        metavar="FILE",
    )

    @functools.cached_property
    def counting(self) -> Counting:
        """Counting of these options; `ignore_words` is read where it is a file."""
        return Counting.of(self.unit, self.ignore_words)

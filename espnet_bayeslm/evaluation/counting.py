"""Units in which errors are counted, and counts of unknown words with what mends them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
import unicodedata
from collections import Counter
from typing import Any, Callable, Collection, Dict, FrozenSet, List, Mapping, Sequence, Tuple, Union

from espnet_bayeslm.evaluation.markup import Words, mapped
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import RATES, ErrorCounts, word_errors
from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.utils.casing import nfc
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import check_least, option

UNITS = tuple(RATES)
# How the names of characters begin in scripts that put no blanks between words
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
# A line without a blank that has as many characters holds several words in any script
_LONG = 40
# Part of the words above which the differences from an LM's words are told
HIGH_OOV_RATE = 0.02

# Says of each word whether an LM does not know it
Unknown = Callable[[Sequence[str]], Sequence[bool]]
# Difference -> the steps of --normalize that undo it; the first that does counts
MENDING_STEPS: Mapping[str, str] = {
    "case": "lower",
    "punctuation": "punct",
    "accents": "nfc",
    "full-width letters and ligatures": "nfkc",
    "case of Turkish": "lower_tr",
    "contractions": "contractions",
    "numbers": "numbers",
    "case and punctuation": "lower,punct",
    "case and contractions": "lower,contractions",
    "numbers and punctuation": "lower,numbers,punct",
    "contractions and punctuation": "lower,contractions,punct",
}
FILLERS, CAPITALS, OTHERS = "fillers and noises", "capitals in the LM's text", "other words"
REMEDIES = {name: f"--normalize {steps}" for name, steps in MENDING_STEPS.items()}
REMEDIES[FILLERS] = "--ignore_words FILE leaves them out of the counts"
REMEDIES[CAPITALS] = "write the LM's training text in lower case"
# Words that transcripts write in many ways, or leave out
_FILLER = re.compile(
    r"[\[<({].*[\])>}]|[%&+*#]\w.*|(uh|um|uhm|erm?|eh|hm+|mm+|ah+|huh|mhm|uh-huh|mm-hmm|mm-hm)",
    re.IGNORECASE,
)
# Distinct unknown words that are looked at, the most frequent first, and examples shown
LOOKED_AT, SHOWN = 2000, 3


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


class UnknownWords:
    """Counts the words that a component does not know, at most `max_oov_rate` of all.

    Without the component's scorer, which no other process gets, no differences are told.
    """

    def __init__(
        self, name: str, *, max_oov_rate: float, counting: Counting = ALL_WORDS, scorer: Any = None
    ):
        check_least(0, max_oov_rate=max_oov_rate)
        self.name, self.max_oov_rate, self.counting = name, max_oov_rate, counting
        # Lines that say how words differ from known words
        self.mends: Callable[[Counter[str]], List[str]] = functools.partial(
            mending_lines, scorer=scorer
        )
        self.words: Counter = Counter()
        self.num_words = 0

    def __getstate__(self) -> Dict[str, Any]:
        """Counts as another process gets them, without the LM."""
        return {**vars(self), "mends": mending_lines}

    def add(self, sentences: Sequence[Sequence[str]], scores: Sequence[WordScores]) -> None:
        """Count the words of some sentences."""
        self.num_words += sum(map(self.counting.size, sentences))
        for words, score in zip(sentences, scores, strict=True):
            if score.oov.any():
                for word in itertools.compress(words, score.oov):
                    self.words[word] += self.counting.size((word,))
                self.words = +self.words  # without those that do not count

    def join(self, other: UnknownWords) -> None:
        """Count the words of another count too."""
        self.num_words += other.num_words
        self.words.update(other.words)

    def check(self, *, report: bool = False) -> None:
        """Raise an InputError where too many words are unknown; `report`: log their rate."""
        total, distinct = self.words.total(), len(self.words)
        noun, words = ("words", "") if self.counting.unit == "word" else ("characters", " words")
        rate = total / max(self.num_words, 1)
        examples = ", ".join(f"{word!r}" for word, _ in self.words.most_common(5))
        message = (
            f"{self.name} does not know {total} of {self.num_words} {noun}"
            f" ({100 * rate:.2f} %, {distinct} distinct{words}{': ' if distinct else ''}{examples})"
        )
        if rate > self.max_oov_rate:
            remedy = (
                "Do text and LM agree in case, spelling and tokens?"
                " `--normalize lower,punct` makes text in upper case or with punctuation agree."
            )
            if mends := self.mends(self.words):
                remedy += f" {'; '.join(mends)}."
            problem = f"{message}, and --max_oov_rate is {self.max_oov_rate}"
            raise InputError(problem, remedy=remedy)
        if report:
            lines = self.mends(self.words) if rate > HIGH_OOV_RATE else []
            (LOG.warning if lines else LOG.info)("\n  ".join([message, *lines]))


def differences(words: Counter[str], unknown: Unknown) -> Dict[str, List[Tuple[str, int, str]]]:
    """(word, times, known words in its place) by the difference, the most frequent first."""
    found: Dict[str, List[Tuple[str, int, str]]] = {}
    for word, count in words.most_common(LOOKED_AT):
        name, known = _difference(word, unknown)
        found.setdefault(name, []).append((word, count, known))
    return dict(sorted(found.items(), key=lambda item: -sum(count for _, count, _ in item[1])))


def _difference(word: str, unknown: Unknown) -> Tuple[str, str]:
    """Name of the difference of one unknown word, and the known words in its place."""
    for name, steps in MENDING_STEPS.items():
        try:
            mended = Normalization(steps).words((word,))
        except InputError:  # a number without a name
            continue
        if mended != (word,) and not any(unknown(mended)):
            return name, " ".join(mended)
    if _FILLER.fullmatch(word):
        return FILLERS, ""
    capitals = [other for other in (word.upper(), word.capitalize()) if other != word]
    for other, is_unknown in zip(capitals, unknown(capitals), strict=True):
        if not is_unknown:
            return CAPITALS, other
    return OTHERS, ""


def mending_lines(words: Counter[str], scorer: Any = None) -> List[str]:
    """Lines that say how unknown words differ, and the option that mends each difference.

    There are none where all are words of another kind, or no scorer tells which words it knows.
    """
    unknown = getattr(scorer, "unknown", None)
    if unknown is None:
        return []
    lines = []
    found = differences(words, unknown)
    for name, rows in found.items() if found.keys() != {OTHERS} else ():
        pairs = [(word, known) for word, _, known in rows[:SHOWN]]
        examples = ", ".join(f"{w!r} for {known!r}" if known else repr(w) for w, known in pairs)
        remedy = f": {REMEDIES[name]}" if name in REMEDIES else ""
        times = sum(count for _, count, _ in rows)
        lines.append(f"{times} of them: {name} ({examples}){remedy}")
    return lines


def read_word_list(path: PathLike) -> FrozenSet[str]:
    """Words of a file, one a line; blank lines are left out."""
    words = set()
    for number, line in read_lines(path):
        found = line.split()
        if len(found) > 1:
            raise InputError(
                f"{line[:80]!r} has {len(found)} words, where one was expected",
                path=path,
                line=number,
                remedy="Put each word on a line of its own.",
            )
        words.update(found)
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

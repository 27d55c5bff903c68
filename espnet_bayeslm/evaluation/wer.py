"""Word errors: counts that add, their units, derived rates, and sclite's alignment."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import os
import unicodedata
from typing import Collection, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

import kaldialign
import numpy as np

from espnet_bayeslm import __version__
from espnet_bayeslm.evaluation.markup import (
    SUBSTITUTION,
    UNPAIRED,
    MarkedWords,
    Pair,
    align_marked,
    mapped,
)
from espnet_bayeslm.evaluation.transcripts import Words as Words
from espnet_bayeslm.evaluation.transcripts import read_transcripts as read_transcripts
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, option

FIRST_PASS, ORACLE = "first pass", "oracle"
"""Names of a list's hypotheses in tables: the recogniser's best, and the one with least errors."""


@dataclasses.dataclass(frozen=True)
class ErrorCounts:
    """Word errors of one or many utterances; counts of several add.

    Attributes:
        substitutions: Reference words that another word replaces.
        deletions: Reference words that the hypothesis lacks.
        insertions: Hypothesis words that the reference lacks.
        words: Words of the reference.

    Raises:
        ValueError: A count is negative, or more reference words are wrong than there are.
    """

    substitutions: int
    deletions: int
    insertions: int
    words: int

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0:
            raise ValueError(f"error counts must not be negative: {self}")
        if self.substitutions + self.deletions > self.words:
            raise ValueError(f"more reference words are wrong than there are: {self}")

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        if not isinstance(other, ErrorCounts):
            return NotImplemented
        return ErrorCounts(*map(operator.add, vars(self).values(), vars(other).values()))

    @property
    def errors(self) -> int:
        """S + D + I."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors / reference words (inf where errors face an empty reference)."""
        if self.words == 0:
            return math.inf if self.errors else 0.0
        return self.errors / self.words


NO_WORDS = ErrorCounts(0, 0, 0, 0)
# Unit -> error rate
RATES = {"word": "WER", "char": "CER"}

UNITS = tuple(RATES)
# How the names of characters begin in scripts that put no blanks between words
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
# A line without a blank that has as many characters holds several words in any script
_LONG = 40

Alignment = Sequence[Pair]

# What two words cost less as a pair than as an insertion and a deletion.
SAVED_BY_EQUAL = 2 * UNPAIRED
SAVED_BY_OTHER = 2 * UNPAIRED - SUBSTITUTION


def word_errors(ref: Sequence[str], hyp: Sequence[str]) -> ErrorCounts:
    """Fewest errors that turn `ref` into `hyp` (unit costs, by kaldialign).

    Words with markup have the readings of sclite's cheapest alignment.
    """
    if isinstance(ref, MarkedWords) or isinstance(hyp, MarkedWords):
        pairs = align_marked(ref, hyp)
        both = [pair for pair in pairs if None not in pair]
        wrong = sum(a != b for a, b in both)
        words = sum(a is not None for a, _ in pairs)
        return ErrorCounts(wrong, words - len(both), len(pairs) - words, words)
    counts = kaldialign.edit_distance(ref, hyp)
    return ErrorCounts(int(counts["sub"]), int(counts["del"]), int(counts["ins"]), len(ref))


def count_errors(
    refs: Mapping[str, Sequence[str]], hyps: Mapping[str, Sequence[str]]
) -> ErrorCounts:
    """Summed `ErrorCounts` of hypotheses."""
    check_same_utterances(refs, hyps)
    return sum((word_errors(refs[utt], hyps[utt]) for utt in refs), NO_WORDS)


def oracle_errors(
    refs: Mapping[str, Sequence[str]], nbests: Mapping[str, Sequence[Sequence[str]]]
) -> ErrorCounts:
    """Summed `ErrorCounts` of the hypothesis with the fewest errors in each list."""
    check_same_utterances(refs, nbests)
    total = NO_WORDS
    for utt, hypotheses in nbests.items():
        counts = [word_errors(refs[utt], hyp) for hyp in hypotheses]
        total += min(counts, key=lambda count: count.errors)
    return total


def check_same_utterances(
    refs: Collection[str],
    hyps: Collection[str],
    *,
    ref_path: PathLike = "the reference",
    hyp_path: PathLike = "the hypotheses",
) -> None:
    """Check that both have the same utterance ids."""
    missing = [utt for utt in refs if utt not in hyps]
    extra = [utt for utt in hyps if utt not in refs]
    if not missing and not extra:
        return
    problems = []
    if missing:
        problems.append(f"{len(missing)} utterances have no hypothesis (first: {missing[0]!r})")
    if extra:
        problems.append(f"{len(extra)} utterances have no reference (first: {extra[0]!r})")
    some = extra and not missing and len(extra) < len(hyps)
    raise InputError(
        f"{len(hyps)} utterances, {len(refs)} in {ref_path}: {'; '.join(problems)}",
        path=hyp_path,
        remedy="Leave out the others; `bayeslm score --partial_ref true` does that by itself."
        if some
        else "Give files with the same utterances, or filter one of them by the other's ids.",
    )


def align(ref: Sequence[str], hyp: Sequence[str]) -> List[Pair]:
    """Alignment of the lowest cost: 3 for an insertion or deletion, 4 for another word.

    Of several with that cost it is sclite's: from the last word to the first, a pair is preferred
    to an insertion, and that to a deletion. (kaldialign prefers them the other way round.)
    Words with markup are aligned in the cheapest pair of readings.
    """
    if isinstance(ref, MarkedWords) or isinstance(hyp, MarkedWords):
        return align_marked(ref, hyp)
    if list(ref) == list(hyp):
        return [(word, word) for word in ref]
    saved = _most_saved(ref, hyp)
    pairs: List[Pair] = []
    i, j = len(ref), len(hyp)
    while i or j:
        by_pair = SAVED_BY_EQUAL if i and j and ref[i - 1] == hyp[j - 1] else SAVED_BY_OTHER
        if i and j and saved[i, j] == saved[i - 1, j - 1] + by_pair:
            i, j = i - 1, j - 1
            pairs.append((ref[i], hyp[j]))
        elif j and saved[i, j] == saved[i, j - 1]:
            j -= 1
            pairs.append((None, hyp[j]))
        else:
            i -= 1
            pairs.append((ref[i], None))
    return pairs[::-1]


def closest_reading(ref: Sequence[str], hyp: Sequence[str]) -> Words:
    """Words of the reading of a reference that a hypothesis is compared with."""
    if not isinstance(ref, MarkedWords):
        return tuple(ref)
    return tuple(word for word, _ in align_marked(ref, hyp) if word is not None)


def _most_saved(ref: Sequence[str], hyp: Sequence[str]) -> np.ndarray:
    """(R + 1, H + 1) costs that pairs save at most, of the first i and the first j words."""
    ids = {word: number for number, word in enumerate(dict.fromkeys([*ref, *hyp]))}
    hyp_ids = np.array([ids[word] for word in hyp], dtype=np.int64)
    saved = np.zeros((len(ref) + 1, len(hyp) + 1), dtype=np.int32)
    for i, word in enumerate(ref):
        paired = saved[i, :-1] + np.where(hyp_ids == ids[word], SAVED_BY_EQUAL, SAVED_BY_OTHER)
        np.maximum.accumulate(np.maximum(saved[i, 1:], paired), out=saved[i + 1, 1:])
    return saved


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

    def units(self, words: Sequence[str]) -> Words:
        """Words or characters that are counted; markup between them stays."""
        if isinstance(words, MarkedWords):
            return mapped(words, self.units)
        kept = [word for word in words if word not in self.ignored]
        composed = tuple(unicodedata.normalize("NFC", word) for word in kept)
        return composed if self.unit == "word" else tuple(itertools.chain.from_iterable(composed))

    def text(self, texts: Mapping[str, Sequence[str]]) -> Dict[str, Words]:
        """Utterance id -> the units that are counted."""
        return {utt: self.units(words) for utt, words in texts.items()}

    def errors(self, ref: Sequence[str], hyp: Sequence[str]) -> ErrorCounts:
        """Errors of a hypothesis."""
        return word_errors(self.units(ref), self.units(hyp))

    def size(self, words: Sequence[str]) -> int:
        """Number of words or characters of a hypothesis, which has no markup, that are counted."""
        kept = [word for word in words if word not in self.ignored]
        return len(kept) if self.unit == "word" else len(self.units(kept))


ALL_WORDS = Counting()


@dataclasses.dataclass(frozen=True)
class Counted:
    """Facts of how the errors of a table were counted and its outputs tuned.

    Rates compare only where unit, normalisation and ignored words are the same. The other fields
    differ between systems.

    Attributes:
        unit: One of `UNITS`.
        normalize: Steps of `--normalize`.
        ignored: Words that are left out, sorted.
        text_forms: Form in which each pretrained LM read text, by the LM's name.
        tuned_on: File that the weights of the scores were tuned on; None: none that is known.
        version: Version of this package.
    """

    unit: str = "word"
    normalize: Tuple[str, ...] = ()
    ignored: Tuple[str, ...] = ()
    text_forms: Dict[str, str] = dataclasses.field(default_factory=dict)
    tuned_on: Optional[str] = None
    version: str = __version__

    def __str__(self) -> str:
        """Line below a table, with all fields."""
        lms: Dict[str, List[str]] = {}
        for name, form in self.text_forms.items():
            lms.setdefault(form, []).append(name)
        forms = [f"{form} ({', '.join(names)})" for form, names in lms.items()]
        return (
            f"counted: {self.unit}s; normalisation {','.join(self.normalize) or 'none'};"
            f" ignored {', '.join(self.ignored) or 'none'};"
            f" text form {', '.join(forms) or 'none'}; tuned on {self.tuned_on or 'none'};"
            f" espnet_bayeslm {self.version}"
        )


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
    alone = [words[0] for words in lines if len(words) == 1]
    # of a short one, letters of scripts that write no blanks
    letters = [sum(unicodedata.name(c, "").startswith(_UNSPACED) for c in w) for w in alone]
    unspaced = [w for w, n in zip(alone, letters, strict=True) if n > 2 or len(w) >= _LONG]
    if 2 * len(unspaced) > len(lines):
        LOG.warning(
            "%d of %d references have no blanks between words, such as %r, and each counts as one"
            " word: --unit char counts characters",
            *(len(unspaced), len(lines), unspaced[0][:40]),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountingOptions(ToolOptions):
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
        words = self.ignore_words
        if isinstance(words, (str, os.PathLike)):
            words = read_word_list(words)
        return Counting(self.unit, frozenset(words or ()))

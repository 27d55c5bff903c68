"""Bias lists: words and phrases that an utterance may hold, such as the names of a meeting.

Terms as in Le et al., "Contextualized streaming end-to-end speech recognition with trie-based deep
biasing and shallow fusion", Interspeech 2021 (arXiv 2104.02194).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import math
import types
import unicodedata
from typing import (
    AbstractSet,
    Callable,
    Collection,
    Container,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from espnet_bayeslm.evaluation.normalization import AS_IT_IS, Normalization
from espnet_bayeslm.utils.errors import InputError, reason_of
from espnet_bayeslm.utils.files import PathLike, read_lines
from espnet_bayeslm.utils.log import LOG

Phrase = Tuple[str, Optional[float]]
"""A word, or several with blanks between them, and its own weight or None."""
Row = Tuple[Optional[str], List[Phrase]]
"""An utterance, or None for all of them, and phrases of its list."""

WEIGHT = 1.0
"""Weight of a phrase that has none of its own."""
# A list biases everything where it holds this part of the commonest words, and so many of them
COMMON_PART, FEWEST_COMMON = 0.1, 3


class BiasState(NamedTuple):
    """State of a bias list after the first words of a hypothesis; equal ones go on alike.

    Attributes:
        held: Phrases that the words hold, whatever follows.
        begun: The last words, where they begin a phrase of more words.
    """

    held: FrozenSet[str] = frozenset()
    begun: Tuple[str, ...] = ()


class BiasList:
    """Words and phrases that one utterance may hold. They are compared in NFC, and never change.

    Args:
        phrases: (phrase, weight of its own or None) of each.

    Raises:
        InputError: A weight is no finite number from 0, or a phrase has two weights.
    """

    __slots__ = ("_begun", "_weights", "_words")

    def __init__(self, phrases: Iterable[Phrase] = ()):
        self._weights: Dict[str, Optional[float]] = {}
        for phrase, weight in phrases:
            if weight is not None and not 0 <= weight < math.inf:
                raise InputError(
                    f"{phrase!r} has the weight {weight:g}: a finite number from 0 was expected"
                )
            known = " ".join(spelled_words(phrase))
            if self._weights.setdefault(known, weight) != weight:
                both = ("none" if w is None else f"{w:g}" for w in (self._weights[known], weight))
                raise InputError(
                    f"the phrase {known!r} has two weights, {' and '.join(both)}",
                    remedy="Keep one of them.",
                )
        self._weights.pop("", None)
        several = [phrase.split() for phrase in self._weights if " " in phrase]
        # first words of longer phrases
        self._begun = frozenset(" ".join(p[:n]) for p in several for n in range(1, len(p)))
        self._words = frozenset(w for p in self._weights for w in p.split()) if several else None

    @property
    def weights(self) -> Mapping[str, Optional[float]]:
        """{phrase: weight of its own, or None}."""
        return types.MappingProxyType(self._weights)

    @property
    def words(self) -> AbstractSet[str]:
        """Words of all phrases: the biased words of U-WER and B-WER."""
        return self._weights.keys() if self._words is None else self._words

    @property
    def most_words(self) -> int:
        """Number of words of the longest phrase; 0 in an empty list."""
        begun = max((phrase.count(" ") + 2 for phrase in self._begun), default=1)
        return begun if self._weights else 0

    def held(self, words: Sequence[str]) -> Tuple[str, ...]:
        """Phrases that a hypothesis holds, each once.

        Hypotheses are read from the left: at each word the longest phrase that begins there counts,
        and reading goes on after it. The time does not depend on the number of phrases.
        """
        text = spelled_words(" ".join(words))
        found: Dict[str, None] = {}
        place = 0
        while place < len(text):
            place += self._read(text, place, found)
        return tuple(found)

    def _read(self, text: Sequence[str], place: int, found: Dict[str, None]) -> int:
        """Number of words of the longest phrase at a place, which joins `found`; 1 without one."""
        size, longest, phrase = 1, "", text[place]
        for end in range(place + 1, len(text) + 1):
            if phrase in self._weights:
                size, longest = end - place, phrase
            if phrase not in self._begun or end == len(text):
                break
            phrase = f"{phrase} {text[end]}"
        if longest:
            found[longest] = None
        return size

    def after(self, state: BiasState, word: str) -> BiasState:
        """State with one more word. The time does not depend on the number of phrases."""
        text, place = (*state.begun, *spelled_words(word)), 0
        found: Dict[str, None] = {}
        # words that may still become a longer phrase wait
        while place < len(text) and " ".join(text[place:]) not in self._begun:
            place += self._read(text, place, found)
        return BiasState(state.held.union(found), text[place:])

    def total_at(self, state: BiasState) -> float:
        """`total` of the words that led to a state, as if the hypothesis ended there."""
        return self._sum(state.held.union(self.held(state.begun)))

    def said(self, words: Sequence[str]) -> FrozenSet[str]:
        """Phrases that stand somewhere in some words, within longer ones too."""
        text = spelled_words(" ".join(words))
        sizes = range(1, 1 + self.most_words)
        heard = (" ".join(text[n : n + size]) for size in sizes for n in range(len(text)))
        return frozenset(phrase for phrase in heard if phrase in self._weights)

    def without(self, phrases: Container[str]) -> BiasList:
        """List without some phrases."""
        return BiasList(row for row in self._weights.items() if row[0] not in phrases)

    def total(self, words: Sequence[str]) -> float:
        """Sum of the weights of the phrases that a hypothesis holds, `WEIGHT` by default."""
        return self._sum(self.held(words))

    def _sum(self, phrases: Iterable[str]) -> float:
        """Sum of the weights of phrases, in any order the same."""
        weights = map(self._weights.__getitem__, phrases)
        return math.fsum(WEIGHT if weight is None else weight for weight in weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __eq__(self, other: object) -> bool:
        return self._weights == other._weights if isinstance(other, BiasList) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._weights.items()))


def spelled_words(text: str) -> List[str]:
    """Words of a text, in NFC."""
    return unicodedata.normalize("NFC", text).split()


@dataclasses.dataclass(frozen=True, repr=False)
class BiasLists:
    """Bias lists of utterances.

    Attributes:
        lists: Utterance id -> its own list.
        shared: List of every utterance that has none of its own.
    """

    lists: Mapping[str, BiasList] = dataclasses.field(default_factory=dict)
    shared: BiasList = dataclasses.field(default_factory=BiasList)

    def of(self, utt: str) -> BiasList:
        """List of an utterance."""
        return self.lists.get(utt, self.shared)

    def __repr__(self) -> str:
        """Number of lists and a digest of all, which tells two apart."""
        rows = [(utt, [*own.weights.items()]) for utt, own in sorted(self.lists.items())]
        content = repr((rows, [*self.shared.weights.items()])).encode()
        return f"<bias lists of {len(rows)} utterances, {hashlib.sha256(content).hexdigest()}>"

    @property
    def all(self) -> List[BiasList]:
        """Every list that has a phrase."""
        return [item for item in (*self.lists.values(), self.shared) if len(item)]


def read_bias(
    path: PathLike, normalization: Normalization = AS_IT_IS, *, utts: Collection[str] = ()
) -> BiasLists:
    """Bias lists of a file, which may be compressed.

    The form of the file is the first of these that fits:

    1. JSON lines, if its first character that is no blank is `{`: `{"utt": .., "words": [..]}`. An
       item is a word or a phrase. `{"words": {"new york": 2.5}}` gives weights, null for none.
    2. A Kaldi archive `UTT WORD WORD`, if some line begins with one of `utts`.
    3. Plain text, one list for all utterances: a word or phrase on each line, perhaps with a tab
       and its weight.

    Args:
        path: The file.
        normalization: Steps that each phrase goes through. One that loses all words is left out.
        utts: Utterances of the N-best lists or references; those without a list get a warning.

    Raises:
        InputError: A line is of no such form, or no list is of one of the utterances.
    """
    lines = [(number, line) for number, line in read_lines(path) if line.strip()]
    known = frozenset(utts)
    parse = _form(lines, known)
    # lists repeat their words, and share them here
    spelled = functools.cache(lambda phrase: " ".join(normalization.words(phrase.split())))
    lists: Dict[str, BiasList] = {}
    shared: List[Phrase] = []
    for number, line in lines:
        try:
            utt, phrases = parse(line)
            phrases = [(spelled(phrase), weight) for phrase, weight in phrases]
            of_line = BiasList(phrases)
            if utt is None:
                shared += phrases
            elif utt in lists:
                raise InputError(f"the utterance {utt!r} comes twice", remedy="Join its lists.")
            else:
                lists[utt] = of_line
        except InputError as error:
            raise InputError(str(error), path=path, line=number) from None
    try:
        bias = BiasLists(lists, BiasList(shared))
    except InputError as error:
        raise InputError(str(error), path=path) from None
    if parse is _plain_row:
        LOG.info("%s: one bias list of %d phrases for all utterances", path, len(bias.shared))
    elif known:
        _check_utterances(lists, known, path)
    _warn_of_letters(bias, path)
    return bias


def _form(lines: Sequence[Tuple[int, str]], utts: AbstractSet[str]) -> Callable[[str], Row]:
    """Reader of the rows of a file."""
    if lines and lines[0][1].lstrip().startswith("{"):
        return _json_row
    return _kaldi_row if any(line.split()[0] in utts for _, line in lines) else _plain_row


def _json_row(line: str) -> Row:
    try:
        row = json.loads(line)
        utt, words = row["utt"], row["words"]
        weights = words if isinstance(words, dict) else dict.fromkeys(words)
        if isinstance(words, str) or not all(isinstance(text, str) for text in (utt, *weights)):
            raise ValueError("not all of them are texts")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(
            f'expected {{"utt": .., "words": [..]}}, got {line[:80]!r} ({reason_of(error)})'
        ) from error
    return utt, [(phrase, _number(phrase, weight)) for phrase, weight in weights.items()]


def _kaldi_row(line: str) -> Row:
    utt, *words = line.split()
    return utt, [(word, None) for word in words]


def _plain_row(line: str) -> Row:
    phrase, tab, weight = line.partition("\t")
    return None, [(phrase, _number(phrase, weight if tab else None))]


def _number(phrase: str, weight: object) -> Optional[float]:
    """Weight of a phrase, as a file has it."""
    try:
        return None if weight is None else float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"the weight {weight!r} of {phrase!r} is no number", remedy="Give a number, or none."
        ) from None


def _check_utterances(
    lists: Mapping[str, BiasList], utts: AbstractSet[str], path: PathLike
) -> None:
    """Warn in one line of utterances without a list, and of lists without an utterance."""
    extra = [utt for utt in lists if utt not in utts]
    missing = sorted(utts - lists.keys())
    if lists and len(extra) == len(lists):
        raise InputError(
            f"none of its {len(lists)} utterances (first: {extra[0]!r}) is among the {len(utts)}"
            f" that are read (first: {min(utts)!r})",
            path=path,
            remedy="Give the lists of these utterances, or one list: a phrase on each line.",
        )
    found = []
    if missing:
        found.append(f"{len(missing)} utterances have no bias list (first: {missing[0]!r})")
    if extra:
        found.append(f"{len(extra)} bias lists are of other utterances (first: {extra[0]!r})")
    if found:
        LOG.warning("%s: %s", path, "; ".join(found))


def _warn_of_letters(bias: BiasLists, path: PathLike) -> None:
    """Warn of phrases of one letter, in scripts that have two cases."""
    phrases = {phrase for item in bias.all for phrase in item.weights if len(phrase) == 1}
    letters = sorted(phrase for phrase in phrases if phrase.lower() != phrase.upper())
    if letters:
        LOG.warning(
            "%s: %d phrases of the bias lists are one letter, such as %r: is it a word?",
            *(path, len(letters), letters[0]),
        )


def warn_of_text(bias: BiasLists, texts: Iterable[Sequence[str]]) -> bool:
    """Warn of lists in another case than a text, and of lists that hold its commonest words.

    These make half of the text, and a tenth of them is too many.

    Args:
        bias: The lists.
        texts: Words of each sentence of references, or of the text of an LM.

    Returns:
        True where the lists are in another case.
    """
    counts = collections.Counter(word for words in texts for word in words)
    is_in_another_case = _warn_of_case(bias, counts.keys())
    rest = sum(counts.values()) / 2
    common = []
    for word, count in counts.most_common():
        if rest <= 0:
            break
        common.append(word)
        rest -= count
    least = max(FEWEST_COMMON, COMMON_PART * len(common))
    held = [[word for word in common if word in item.words] for item in bias.all]
    wide = [words for words in held if len(words) >= least]
    if wide:
        LOG.warning(
            "%d of %d bias lists hold a tenth or more of the %d commonest words, such as %r: they"
            " bias every sentence. Give names and rare words only.",
            *(len(wide), len(held), len(common), wide[0][0]),
        )
    return is_in_another_case


def _warn_of_case(bias: BiasLists, known: AbstractSet[str]) -> bool:
    """Warn where no word of the lists is known as it is written, and some are in another case."""
    words = {word for item in bias.all for word in item.words}
    folded = {word.casefold() for word in known}
    others = sorted(word for word in words if word.casefold() in folded)
    if not others or words & known:
        return False
    LOG.warning(
        "the bias lists have %d words of these texts, and all in another case, such as %r: give"
        " --normalize lower, or write them as the texts do.",
        *(len(others), others[0]),
    )
    return True

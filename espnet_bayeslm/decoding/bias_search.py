"""Bias lists word by word and letter by letter, as a search needs them.

A finished hypothesis has exactly `BiasList.total` of its words. Before a phrase is whole, each of
its letters gives a share of its weight, so that the search follows its beginning. The share is
taken back where the letters turn out to be another word, and a phrase that is found gives no more.
The time of a step does not depend on the length of the list.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import (
    Any,
    Collection,
    Dict,
    FrozenSet,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.evaluation.bias_lists import WEIGHT, BiasList, BiasLists, read_bias
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.rescoring.bias import bias_lists
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG

MARKS = 62
"""Phrases are told apart by so many marks."""
NO_PHRASES: FrozenSet[int] = frozenset()


class Phrases(NamedTuple):
    """Phrases of a list in columns, those that pay most for a letter first.

    Attributes:
        letters: Their letters, as tokens write them, with a blank between words.
        weights: Their weights.
        rates: Weight of a phrase for each of its letters; 0 where no token has one of them.
    """

    letters: Sequence[str]
    weights: Sequence[float]
    rates: Sequence[float]


class PhraseNode:
    """First letters of some phrases; the letters after them are parted where they are asked for.

    Args:
        phrases: All phrases of the list.
        rows: Rows of those that begin with these letters, those that pay most for a letter first.
        depth: Number of letters and blanks.
        size: Number of letters.

    Attributes:
        phrase: Row of the phrase that these letters are; None: there is none.
    """

    __slots__ = ("_after", "_depth", "_phrases", "_rows", "_size", "phrase", "token_steps")

    def __init__(self, phrases: Phrases, rows: Sequence[int], depth: int = 0, size: int = 0):
        self._phrases, self._rows, self._depth, self._size = phrases, rows, depth, size
        self._after: Optional[Dict[str, PhraseNode]] = None
        ends = (row for row in rows if len(phrases.letters[row]) == depth)
        self.phrase = next(ends, None)
        self.token_steps: Dict[bool, TokenSteps] = {}

    @property
    def after(self) -> Dict[str, PhraseNode]:
        """Nodes after one more letter, or after the blank between two words."""
        if self._after is None:
            parted: Dict[str, List[int]] = {}
            depth, letters = self._depth, self._phrases.letters
            for row in self._rows:
                if len(letters[row]) > depth:
                    parted.setdefault(letters[row][depth], []).append(row)
            self._after = {
                letter: PhraseNode(self._phrases, rows, depth + 1, self._size + (letter != " "))
                for letter, rows in parted.items()
            }
        return self._after

    def follow(self, letters: str) -> Optional[PhraseNode]:
        """Node after more letters; None: no phrase has them."""
        node = self
        for letter in letters:
            found = node.after.get(letter)
            if found is None:
                return None
            node = found
        return node

    @property
    def best(self) -> int:
        """Row of the phrase that pays most for a letter; -1 in an empty list."""
        return self._rows[0] if self._rows else -1

    def share(self, found: FrozenSet[int] = NO_PHRASES) -> float:
        """Weight that the letters have of the best phrase, those aside that are found."""
        row = next((row for row in self._rows if row not in found), None)
        return 0.0 if row is None else self._phrases.rates[row] * self._size


class Opening(NamedTuple):
    """First letters of phrases, within their first word.

    Attributes:
        share: Weight that these letters have of the best phrase.
        mark: Mark of that phrase.
        is_word: True if the letters are a phrase, or its first word.
    """

    share: float
    mark: int
    is_word: bool


class Start(NamedTuple):
    """Words that may begin a phrase, and those before them.

    Attributes:
        words: The words; none of the last start.
        node: Their letters among the phrases.
        found: Phrases before them.
        total: Weight of these phrases.
    """

    words: Tuple[str, ...]
    node: PhraseNode
    found: FrozenSet[int]
    total: float

    def follow(self, letters: str) -> Optional[PhraseNode]:
        """Node after letters of one more word; None: no phrase has them."""
        return self.node.follow(f" {letters}" if self.words else letters)


class HeardPhrases:
    """Phrases of some words.

    Args:
        tree: The list.
        starts: Words that may yet become a phrase, the longest first; the last one has none.

    Attributes:
        total: Weight of the phrases if the text ended here.
    """

    __slots__ = ("_after", "_ahead", "_tree", "opening", "starts", "total")

    def __init__(self, tree: BiasTree, starts: Sequence[Start]):
        self._tree, self.starts, self.total = tree, starts, starts[-1].total
        self._after: Dict[str, HeardPhrases] = {}
        self._ahead: Dict[str, float] = {}
        self.opening: Optional[np.ndarray] = None

    @property
    def has_begun(self) -> bool:
        """True if words may yet become a phrase."""
        return len(self.starts) > 1

    @property
    def marks(self) -> int:
        """Marks of the phrases before the next word, some of which share one."""
        marks = 0
        for row in self.starts[-1].found:
            marks |= 1 << row % MARKS
        return marks

    def after(self, word: str) -> HeardPhrases:
        """State after one more word."""
        if word not in self._after:
            state = self
            for part in unicodedata.normalize("NFC", word).split():
                state = state._with(self._tree.words.letters(part))
            self._after[word] = state
        return self._after[word]

    def _with(self, letters: str) -> HeardPhrases:
        """State after the letters of one more word."""
        first = self.starts[0]
        if len(self.starts) == 1 and first.node.follow(letters) is None:
            return self
        return HeardPhrases(self._tree, self._tree.starts(first, (*first.words, letters)))

    def ahead(self, letters: str) -> float:
        """Gain of a word that has begun with some letters, of which a phrase may yet become."""
        if letters not in self._ahead:
            gain = 0.0
            for start in self.starts:
                if (node := start.follow(letters)) is not None:
                    gain = max(gain, start.total + node.share(start.found) - self.total)
            self._ahead[letters] = gain
        return self._ahead[letters]


class BiasTree:
    """A bias list over the letters of a recogniser's tokens.

    Args:
        bias: The list, normalised as the words of the search are.
        words: How the tokens make words, and which letters they have.

    Attributes:
        most: The largest weight of a phrase.
    """

    def __init__(self, bias: BiasList, words: TokenWords):
        self.words = words
        rows = []
        for phrase, own in bias.weights.items():
            letters = " ".join(map(words.letters, phrase.split()))
            weight = WEIGHT if own is None else own
            lacking = words.lacks(letters.replace(" ", ""))
            rate = 0.0 if lacking else weight / max(len(letters) - letters.count(" "), 1)
            rows.append((letters, weight, rate))
        rows.sort(key=lambda row: -row[2])
        columns = Phrases(*zip(*rows, strict=True)) if rows else Phrases((), (), ())
        self._phrases, self.most = columns, max(columns.weights, default=0.0)
        self._root = PhraseNode(columns, range(len(rows)))

    def begin(self) -> HeardPhrases:
        """State before the first word; what it and those after it keep goes with them."""
        return HeardPhrases(self, [Start((), self._root, NO_PHRASES, 0.0)])

    @functools.cached_property
    def openings(self) -> Dict[str, Opening]:
        """First letters of all phrases, within their first word."""
        firsts = [letters.partition(" ")[0] for letters in self._phrases.letters]
        whole, found = frozenset(firsts), {}
        for row, (word, rate) in enumerate(zip(firsts, self._phrases.rates, strict=True)):
            for end in range(1, len(word) + 1):
                letters = word[:end]
                if letters not in found:
                    found[letters] = Opening(rate * end, 1 << row % MARKS, letters in whole)
        return found

    def starts(self, first: Start, words: Tuple[str, ...]) -> List[Start]:
        """Words that may yet become a phrase, read from the left as `BiasList.held` reads them.

        Args:
            first: Phrases before the words.
            words: Letters of the words.
        """
        found, total, starts = first.found, first.total, []
        while words:
            node: Optional[PhraseNode] = self._root
            phrase, size = None, 1
            for n, word in enumerate(words, 1):
                node = node and node.follow(word if n == 1 else f" {word}")
                if node is not None and node.phrase is not None:
                    phrase, size = node.phrase, n
            if node is not None and " " in node.after:
                starts.append(Start(words, node, found, total))
            if phrase is not None and phrase not in found:
                found, total = found | {phrase}, total + self._phrases.weights[phrase]
            words = words[size:]
        return [*starts, Start((), self._root, found, total)]


class TokenSteps(NamedTuple):
    """Tokens whose letters go on from a node.

    Attributes:
        ids: The tokens, (K,).
        nodes: Nodes after them.
        shares: Share of the best phrase after each, (K,).
        rows: Row of that phrase, (K,).
    """

    ids: np.ndarray
    nodes: Sequence[PhraseNode]
    shares: np.ndarray
    rows: np.ndarray

    def values(self, found: FrozenSet[int]) -> np.ndarray:
        """Share of the best phrase after each token, those aside that are found, (K,)."""
        if not found:
            return self.shares
        shares = self.shares.copy()
        for n in np.flatnonzero(np.isin(self.rows, [*found])).tolist():
            shares[n] = self.nodes[n].share(found)
        return shares


class LetterTree:
    """Letters of tokens: the tokens that are these letters, and the letters after them."""

    __slots__ = ("after", "ids")

    def __init__(self) -> None:
        self.ids: List[int] = []
        self.after: Dict[str, LetterTree] = {}

    def add(self, letters: str, token: int) -> None:
        """Add a token."""
        node = self
        for letter in letters:
            node = node.after.setdefault(letter, LetterTree())
        node.ids.append(token)

    def shared(self, phrases: PhraseNode) -> Iterator[Tuple[int, PhraseNode]]:
        """Yield each token whose letters phrases have, with the node after them."""
        pairs: List[Tuple[LetterTree, PhraseNode]] = [(self, phrases)]
        while pairs:
            own, node = pairs.pop()
            for token in own.ids:
                yield token, node
            if own.after:
                both = own.after.keys() & node.after.keys()
                pairs += [(own.after[letter], node.after[letter]) for letter in both]


class BiasTokens:
    """Gains of all next tokens of a hypothesis at once.

    Args:
        words: How the tokens make words, with their letters as the words are normalised.
    """

    def __init__(self, words: TokenWords):
        self._opens = np.array(words.opens)
        self._trees = {True: LetterTree(), False: LetterTree()}
        for token, (opens, text) in enumerate(zip(words.opens, words.texts, strict=True)):
            self._trees[opens].add(text, token)

    def totals(self, state: HeardPhrases, letters: str, after: HeardPhrases) -> np.ndarray:
        """Weight of the phrases of a hypothesis with each next token, (V,).

        Args:
            state: Its complete words.
            letters: Letters of the word that has begun.
            after: Its words, if the word is complete.
        """
        if after.opening is None:
            after.opening = np.full(len(self._opens), after.total)
            for start in after.starts:
                self._raise(after.opening, start, start.follow(""), opens=True)
        totals = np.where(self._opens, after.opening, state.total)
        for start in state.starts:
            self._raise(totals, start, start.follow(letters), opens=False)
        return totals

    def _raise(
        self, totals: np.ndarray, start: Start, node: Optional[PhraseNode], *, opens: bool
    ) -> None:
        """Raise the totals of tokens with which phrases go on from a node."""
        if node is None:
            return
        if opens not in node.token_steps:
            pairs = sorted(self._trees[opens].shared(node), key=lambda pair: pair[0])
            nodes = [after for _, after in pairs]
            node.token_steps[opens] = TokenSteps(
                np.array([token for token, _ in pairs], np.int64),
                nodes,
                np.array([after.share() for after in nodes]),
                np.array([after.best for after in nodes], np.int64),
            )
        steps = node.token_steps[opens]
        gained = start.total + steps.values(start.found)
        totals[steps.ids] = np.maximum(totals[steps.ids], gained)


def read_search_bias(
    path: PathLike, words: TokenWords, normalization: Normalization, utts: Collection[str]
) -> BiasLists:
    """Bias lists of a file for a search, of which phrases have letters that tokens have.

    Args:
        path: The file.
        words: How the tokens make words.
        normalization: What is done to the words of the search, and to phrases.
        utts: The utterances.
    """
    bias = read_bias(path, normalization, utts=utts)
    if not bias.all:
        raise InputError("no phrases", path=path, remedy="Put one on each line.")
    try:
        check_letters(bias, words.normalised(normalization.words))
    except InputError as error:
        raise InputError(str(error), path=path) from None
    return bias


def checked_bias(given: Any, words: TokenWords, normalization: Normalization) -> BiasList:
    """Bias list of every utterance of a search.

    Args:
        given: A file, a list, or phrases, perhaps with weights of their own.
        words: How the tokens make words.
        normalization: What is done to the words of the search, and to phrases.
    """
    bias = bias_lists(given, normalization, ())
    if bias.lists:
        raise InputError(
            f"bias lists of {len(bias.lists)} utterances, and one list for all was expected",
            remedy="Give them to the search: bayeslm nbest --bias FILE.",
        )
    check_letters(bias, words.normalised(normalization.words))
    return bias.shared


def check_letters(bias: BiasLists, words: TokenWords) -> None:
    """Warn in one line of phrases with letters that no token has.

    Raises:
        InputError: All phrases of all lists are so.
    """
    phrases = dict.fromkeys(phrase for item in bias.all for phrase in item.weights)
    missing = {phrase: words.missing_letters("".join(phrase.split())) for phrase in phrases}
    strange = [phrase for phrase in phrases if missing[phrase]]
    if not strange:
        return
    first = strange[0]
    problem = f"{len(strange)} of the {len(phrases)} phrases of the bias lists have letters that no"
    problem += f" token has, as {first!r} ({missing[first]})"
    if len(strange) == len(phrases):
        raise InputError(problem, remedy=case_advice(missing[first], words))
    LOG.warning("%s: a search never finds them. %s", problem, case_advice(missing[first], words))


def case_advice(missing: str, words: TokenWords) -> str:
    """Sentence that says how letters that no token has may be written."""
    other = missing.swapcase()
    if other != missing and not words.missing_letters(other):
        case = "upper" if other.isupper() else "lower"
        return f"Write them in {case} case, as the tokens are."
    return "Write them in the letters of the tokens."

"""NIST's markup in transcripts: alternatives, null words, words that may be left out, fragments.

Format and costs agree with sclite (`sclite -F -D -s -i spu_id`); words keep their case.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

Words = Tuple[str, ...]
# (reference word, hypothesis word): None in place of the first is an insertion, of the second a
# deletion
Pair = Tuple[Optional[str], Optional[str]]
# A word, or the branches of an alternation
Item = Union[str, Tuple[Tuple["Item", ...], ...]]
Items = Tuple[Item, ...]

NULL = "@"
# sclite's costs
UNPAIRED, SUBSTITUTION, DELETABLE = 3, 4, 2


class Deletable(str):
    """A word that a system may leave out, with its parentheses: `(uh)`."""


class MarkedWords(Tuple[str, ...]):
    """A transcript with markup; as a tuple it holds the tokens of its first reading."""

    items: Items

    def __new__(cls, items: Items) -> MarkedWords:
        """Make the tuple of the first reading."""
        words = super().__new__(cls, _first_reading(items))
        words.items = items
        return words

    def __getnewargs__(self) -> Tuple[Items]:  # type: ignore[override]
        return (self.items,)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MarkedWords):
            return self.items == other.items
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def _first_reading(items: Items) -> Iterator[str]:
    for item in items:
        if isinstance(item, str):
            yield str(item)
        else:
            yield from _first_reading(item[0])


def bare(word: str) -> str:
    """Word without the parentheses that make it deletable."""
    return word[1:-1] if isinstance(word, Deletable) else word


def items_of(words: Sequence[str]) -> Items:
    """Words and alternations of a transcript."""
    return words.items if isinstance(words, MarkedWords) else tuple(words)


def transcript(items: Sequence[Item]) -> Words:
    """Plain words, or `MarkedWords` where an item is more than a word that counts as it stands."""
    plain = all(
        isinstance(item, str) and not isinstance(item, Deletable) and not _is_fragment(item)
        for item in items
    )
    return tuple(map(str, items)) if plain else MarkedWords(tuple(items))  # type: ignore[arg-type]


def mapped(words: MarkedWords, function: Callable[[Sequence[str]], Sequence[str]]) -> Words:
    """Words after a function of each stretch without markup; the markup between them stays."""
    return transcript(_mapped_items(words.items, function))


def _mapped_items(items: Items, function: Callable[[Sequence[str]], Sequence[str]]) -> List[Item]:
    mapped_items: List[Item] = []
    run: List[str] = []
    for item in items:
        if isinstance(item, str) and not isinstance(item, Deletable):
            run.append(item)
            continue
        mapped_items.extend(function(run))
        run = []
        if isinstance(item, str):
            mapped_items.extend(Deletable(f"({word})") for word in function([bare(item)]))
        else:
            mapped_items.append(tuple(tuple(_mapped_items(branch, function)) for branch in item))
    return [*mapped_items, *function(run)]


def parse_markup(text: str) -> Words:
    """Words of a trn line without its utterance id: `a { b c / d / { e / @ } } (uh) f`.

    Raises:
        ValueError: A brace has no partner.
    """
    marks = re.sub(r"([{}])", r" \1 ", text).split()
    # a slash separates within braces only, and may touch the words there
    tokens: List[str] = []
    depth = 0
    for mark in marks:
        depth += (mark == "{") - (mark == "}")
        tokens.extend(mark.replace("/", " / ").split() if depth else [mark])
    items, _place = _parse(tokens, 0, nested=False)
    return transcript(items[0])


def _parse(tokens: Sequence[str], place: int, *, nested: bool) -> Tuple[Tuple[Items, ...], int]:
    """Branches up to a closing brace or the end, and the place after it."""
    branches: List[List[Item]] = [[]]
    while place < len(tokens):
        token = tokens[place]
        place += 1
        if token == "{":
            alternation, place = _parse(tokens, place, nested=True)
            branches[-1].append(alternation)
        elif token == "}" and nested:
            return tuple(map(tuple, branches)), place
        elif token == "}":
            raise ValueError("`}` without `{`")
        elif token == "/" and nested:
            branches.append([])
        elif token != NULL:
            branches[-1].append(_word(token))
    if nested:
        raise ValueError("`{` without `}`")
    return tuple(map(tuple, branches)), place


def _word(token: str) -> str:
    """Word of a token, without tags (`word;tag`), perhaps deletable."""
    if len(token) > 2 and token[0] + token[-1] == "()":
        return Deletable(f"({_word(token[1:-1])})")
    return re.split(r"(?<!\\);", token, maxsplit=1)[0].replace("\\;", ";") or token


class MarkedAlignment(List[Pair]):
    """Alignment with a reference or hypothesis that has markup.

    A word that may be left out, and a fragment, is paired with itself where it counts as right.

    Attributes:
        items: Items of the reference.
        places: Index of the item of each pair's reference word; for an insertion, the item that
            follows it.
    """

    items: Items
    places: List[int]


class _Arc(NamedTuple):
    """A word of a network: arcs that may come before it, and its item's place."""

    word: str
    before: Tuple[int, ...]
    place: int


def align_marked(ref: Sequence[str], hyp: Sequence[str]) -> MarkedAlignment:
    """Alignment of the cheapest pair of readings, at sclite's costs."""
    # networks of words: arc 0 is the start
    refs, hyps = [_Arc("", (), -1)], [_Arc("", (), -1)]
    ref_ends, hyp_ends = _add(items_of(ref), refs, (0,)), _add(items_of(hyp), hyps, (0,))
    back = _cheapest(refs, hyps)
    a, b = min(((a, b) for a in ref_ends for b in hyp_ends), key=lambda cell: back[cell][0])
    alignment = MarkedAlignment()
    alignment.items, alignment.places = items_of(ref), []
    place = len(alignment.items)
    while a or b:
        _, before_a, before_b = back[a, b]
        ref_word = refs[a].word if before_a != a else None
        hyp_word = hyps[b].word if before_b != b else None
        place = refs[a].place if before_a != a else place
        alignment.append(_judged(ref_word, hyp_word))
        alignment.places.append(place)
        a, b = before_a, before_b
    alignment.reverse()
    alignment.places.reverse()
    return alignment


def _add(
    items: Items, arcs: List[_Arc], before: Tuple[int, ...], place: Optional[int] = None
) -> Tuple[int, ...]:
    """Add the arcs of items, all of one `place` within an alternation; returns those at the end."""
    for number, item in enumerate(items):
        at = number if place is None else place
        if isinstance(item, str):
            arcs.append(_Arc(item, before, at))
            before = (len(arcs) - 1,)
        else:
            ends = [end for branch in item for end in _add(branch, arcs, before, at)]
            before = tuple(dict.fromkeys(ends))
    return before


_Cells = Dict[Tuple[int, int], Tuple[int, int, int]]


def _cheapest(refs: Sequence[_Arc], hyps: Sequence[_Arc]) -> _Cells:
    """{(reference arc, hypothesis arc): (cost up to both, the two arcs before)}."""
    cells: _Cells = {(0, 0): (0, 0, 0)}
    for a, ref in enumerate(refs):
        for b, hyp in enumerate(hyps):
            ways = []
            if a and b:
                cost = 0 if _is_right(ref.word, hyp.word) else SUBSTITUTION
                ways += [(cells[i, j][0] + cost, i, j) for i in ref.before for j in hyp.before]
            if b:
                ways += [(cells[a, j][0] + _alone(hyp.word), a, j) for j in hyp.before]
            if a:
                ways += [(cells[i, b][0] + _alone(ref.word), i, b) for i in ref.before]
            if ways:  # of equal ones the first, as sclite: a pair, an insertion, a deletion
                cells[a, b] = min(ways, key=lambda way: way[0])
    return cells


def _alone(word: str) -> int:
    return DELETABLE if isinstance(word, Deletable) else UNPAIRED


def _judged(ref: Optional[str], hyp: Optional[str]) -> Pair:
    """A pair of words that are equal where they count as right."""
    ref_word, hyp_word = (None if word is None else bare(word) for word in (ref, hyp))
    if isinstance(ref, Deletable) and hyp is None:
        return ref_word, ref_word
    if isinstance(hyp, Deletable) and ref is None:
        return hyp_word, hyp_word
    if ref is not None and hyp is not None and _is_right(ref, hyp):
        return ref_word, ref_word
    return ref_word, hyp_word


def _is_fragment(word: str) -> bool:
    return len(word) > 1 and "-" in (word[0], word[-1])


def _is_right(ref: str, hyp: str) -> bool:
    """True if words are equal, or one is a fragment (`fi-`, `-sh`) of the other."""
    ref, hyp = bare(ref), bare(hyp)
    for part, word in ((ref, hyp), (hyp, ref)):
        if _is_fragment(part):
            return word.endswith(part[1:]) if part[0] == "-" else word.startswith(part[:-1])
    return ref == hyp

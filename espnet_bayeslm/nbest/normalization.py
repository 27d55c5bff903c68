"""Text as another system would have written it: lists, references and LM made to agree.

What is scored and counted is the normalised text; what is written is the list's own.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import unicodedata
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Sequence,
    Tuple,
)

from espnet_bayeslm.evaluation.markup import mapped
from espnet_bayeslm.nbest.lattice import NULL, Arc, Lattice
from espnet_bayeslm.nbest.spoken_numbers import spoken_numbers
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError

Words = Tuple[str, ...]
LABEL = "label as it came"
"""Name of the original label among the details of an arc of a normalised lattice."""

TextFunction = Callable[[str], str]

# Format characters that shape the letters beside them
_JOINERS = "\u200c\u200d"
# What makes an emoji of a sign or a digit
_EMOJI = frozenset((*map(chr, range(0xFE00, 0xFE10)), "\u20e3"))
_APOSTROPHES = str.maketrans("\u2019\u2018\u02bc\uff07", "''''")
# n't and what follows it; ambiguous ones ('s: is, has or the genitive; 'd: had or would) stay
_CONTRACTIONS: Dict[str, str] = {
    r"\b(wo)n't\b": "will not",
    r"\b(sha)n't\b": "shall not",
    r"\b(ca)n't\b": "can not",
    r"\bcannot\b": "can not",
    r"n't\b": " not",
    r"'re\b": " are",
    r"'ve\b": " have",
    r"'ll\b": " will",
    r"\bi'm\b": "i am",
    r"\blet's\b": "let us",
    r"\bgonna\b": "going to",
    r"\bwanna\b": "want to",
    r"\bgotta\b": "got to",
}


def contractions(text: str) -> str:
    """Text whose contractions with one reading are written out: I'm, don't, we'll."""
    text = text.translate(_APOSTROPHES)
    for pattern, words in _CONTRACTIONS.items():
        text = re.sub(pattern, words, text, flags=re.IGNORECASE)
    return text


def nfc(text: str) -> str:
    """Text whose letters have their accents with them: e and U+0301 are the one letter U+00E9."""
    return unicodedata.normalize("NFC", text)


def punct(text: str) -> str:
    """Text without punctuation; an apostrophe between letters stays, a hyphen parts words."""
    return re.sub(r"[^\w\s]|_", _kept, text.translate(_APOSTROPHES))


def _kept(match: re.Match[str]) -> str:
    """A sign where it is a part of a word; of an emoji nothing stays, of others a blank."""
    sign, text, place = match[0], match.string, match.start()
    if sign in _EMOJI:
        return ""
    is_mark = unicodedata.category(sign)[0] == "M"  # \w has none
    if is_mark or sign in _JOINERS:
        return sign if _follows_letter(text, place) else ""
    joins = sign == "'" and place + 1 < len(text) and text[place + 1].isalnum()
    return sign if joins and _follows_letter(text, place) else " "


def _follows_letter(text: str, place: int) -> bool:
    """Whether a letter or digit is before a place, perhaps with marks, such as vowel signs."""
    for sign in reversed(text[:place]):
        if not (sign in _JOINERS or unicodedata.category(sign)[0] == "M"):
            return sign.isalnum()
    return False


def _whisper(text: str) -> str:
    return str(_whisper_normalizer()(text))


@functools.cache
def _whisper_normalizer() -> Any:
    for module in ("whisper.normalizers", "whisper_normalizer.english"):
        try:
            found: Any = __import__(module, fromlist=["EnglishTextNormalizer"])
        except ImportError:
            continue
        return found.EnglishTextNormalizer()
    raise InputError(
        "--normalize whisper needs Whisper's own normaliser",
        remedy="pip install whisper-normalizer (or openai-whisper).",
    )


# In the order in which they are applied: what reads a sign comes before what takes it away.
STEPS: Mapping[str, TextFunction] = {
    "nfc": nfc,
    "whisper": _whisper,
    "lower": str.lower,
    "contractions": contractions,
    "numbers": spoken_numbers,
    "punct": punct,
}


class Normalization:
    """Steps that are applied to the words of hypotheses, references and text.

    Args:
        steps: Names of `STEPS` with commas between them; none of them: text stays as it is.
        kept: Words that no step changes, such as `[laugh]`.

    Attributes:
        steps: Their names, in the order in which they are applied.

    Raises:
        InputError: One is unknown.
    """

    def __init__(self, steps: str = "", *, kept: Collection[str] = ()):
        names = [name.strip() for name in steps.split(",") if name.strip()]
        unknown = [name for name in names if name not in STEPS]
        if unknown:
            raise InputError(
                f"--normalize {steps}: unknown step {unknown[0]!r}",
                remedy=f"The steps are: {', '.join(STEPS)}.",
            )
        self.steps = tuple(name for name in STEPS if name in names)
        self._kept = frozenset(kept)

    def __bool__(self) -> bool:
        return bool(self.steps)

    def words(self, words: Sequence[str]) -> Words:
        """Words as the steps leave them; markup between the words stays."""
        return mapped(words, self._plain_words if self.steps else tuple)

    def _plain_words(self, words: Sequence[str]) -> Words:
        for place, word in enumerate(words):
            if word in self._kept:
                rest = self._plain_words(words[place + 1 :])
                return (*self._plain_words(words[:place]), word, *rest)
        text = " ".join(words)
        for name in self.steps:
            text = STEPS[name](text)
        return tuple(text.split())

    def each(self, words: Iterable[str]) -> Words:
        """Words as the steps leave each by itself: as those of a lattice."""
        return tuple(found for word in words for found in self.words((word,)))

    def text(self, texts: Mapping[str, Sequence[str]]) -> Dict[str, Words]:
        """Utterance id -> normalised words."""
        return {utt: self.words(words) for utt, words in texts.items()}


AS_IT_IS = Normalization()


def restored(nbest: NBest) -> NBest:
    """A list as it came, before any normalisation."""
    return nbest if nbest.source is None else nbest.source


def normalized(
    lists: Iterable[NBest], normalization: Normalization, *, report: bool = True
) -> Iterator[NBest]:
    """Yield lists with normalised words, which remember how they came.

    Args:
        lists: N-best lists.
        normalization: What is applied to their hypotheses and references.
        report: Whether the log says at the end what it did.
    """
    num_changed = num_hyps = 0
    emptied: List[str] = []
    for nbest in lists:
        hypotheses = []
        for hyp in nbest.hypotheses:
            words = normalization.words(hyp.words)
            num_hyps += 1
            num_changed += words != hyp.words
            if hyp.words and not words:
                emptied.append(f"{' '.join(hyp.words)[:40]!r} of {nbest.utt}")
            hypotheses.append(dataclasses.replace(hyp, words=words))
        ref = None if nbest.ref is None else normalization.words(nbest.ref)
        source = restored(nbest)
        yield dataclasses.replace(nbest, hypotheses=tuple(hypotheses), ref=ref, source=source)
    if not report:
        return
    steps = ",".join(normalization.steps)
    logging.info("--normalize %s changes %d of %d hypotheses", steps, num_changed, num_hyps)
    if emptied:
        logging.warning(
            "--normalize %s leaves no word of %d hypotheses, the first %s: they count as empty",
            *(steps, len(emptied), emptied[0]),
        )


def normalized_lattice(lattice: Lattice, normalization: Normalization) -> Lattice:
    """Lattice with the normalised words of its arcs; `restored_lattice` gives their labels back.

    A word that becomes several is an arc for each, in a chain whose first arc has all scores. A
    word that becomes none is an arc without a word.
    """
    if not normalization:
        return lattice
    outgoing = [[(arc, _arc_labels(arc, normalization)) for arc in a] for a in lattice.outgoing()]
    place, count = [], 0
    for pairs in outgoing:
        place.append(count)
        count += 1 + sum(len(labels) - 1 for _, labels in pairs)
    arcs: List[Arc] = []
    for node, pairs in enumerate(outgoing):
        inner = place[node]
        for arc, labels in pairs:
            nodes = [place[node], *range(inner + 1, inner + len(labels)), place[arc.target]]
            inner += len(labels) - 1
            arcs += _chain(arc, labels, nodes)
    times = dict(zip(place, lattice.times, strict=False))
    return dataclasses.replace(
        lattice,
        num_nodes=count,
        end=place[lattice.end],
        arcs=tuple(sorted(arcs, key=lambda arc: arc.source)),
        times=tuple(times.get(node) for node in range(count)) if times else (),
    )


def _arc_labels(arc: Arc, normalization: Normalization) -> Words:
    """Labels of the arcs that an arc becomes, one or more."""
    if arc.word is None:
        return (arc.label,)
    return normalization.words((arc.word,)) or (NULL,)


def _chain(arc: Arc, labels: Words, nodes: Sequence[int]) -> Iterator[Arc]:
    """Yield arcs with these labels from each node to the next; the first has the scores."""
    rest = Arc(0, 0, NULL, details=((LABEL, NULL),))
    for number, label in enumerate(labels):
        kept = rest if number else arc._replace(details=(*arc.details, (LABEL, arc.label)))
        yield kept._replace(source=nodes[number], target=nodes[number + 1], label=label)


def restored_lattice(lattice: Lattice) -> Lattice:
    """Lattice with the labels that its arcs had before any normalisation."""
    arcs = []
    for arc in lattice.arcs:
        label = dict(arc.details).get(LABEL, arc.label)
        kept = tuple(pair for pair in arc.details if pair[0] != LABEL)
        arcs.append(arc._replace(label=label, details=kept))
    return dataclasses.replace(lattice, arcs=tuple(arcs))

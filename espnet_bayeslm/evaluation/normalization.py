"""Text as another system would have written it: lists, references and LM made to agree."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import unicodedata
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    Mapping,
    Sequence,
    Tuple,
)

from espnet_bayeslm.evaluation.markup import mapped
from espnet_bayeslm.evaluation.spoken_numbers import spoken_numbers
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import option

Words = Tuple[str, ...]
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
    """Text with contractions written out that have one reading: I'm, don't, we'll."""
    text = text.translate(_APOSTROPHES)
    for pattern, words in _CONTRACTIONS.items():
        text = re.sub(pattern, words, text, flags=re.IGNORECASE)
    return text


def nfc(text: str) -> str:
    """Text with its letters and accents composed: e and U+0301 are the one letter U+00E9."""
    return unicodedata.normalize("NFC", text)


def punct(text: str) -> str:
    """Text without punctuation; an apostrophe between letters stays, a hyphen parts words."""
    return re.sub(r"[^\w\s]|_", _kept, text.translate(_APOSTROPHES))


def _kept(match: re.Match[str]) -> str:
    """Replacement of a sign: itself within a word, nothing for an emoji, a blank for any other."""
    sign, text, place = match[0], match.string, match.start()
    if sign in _EMOJI:
        return ""
    is_mark = unicodedata.category(sign)[0] == "M"  # \w has none
    if is_mark or sign in _JOINERS:
        return sign if _follows_letter(text, place) else ""
    joins = sign == "'" and place + 1 < len(text) and text[place + 1].isalnum()
    return sign if joins and _follows_letter(text, place) else " "


def _follows_letter(text: str, place: int) -> bool:
    """True if a letter or digit stands before a place; marks, as vowel signs, may stand between."""
    for sign in reversed(text[:place]):
        if not (sign in _JOINERS or unicodedata.category(sign)[0] == "M"):
            return sign.isalnum()
    return False


@functools.cache
def _whisper_normalizer() -> TextFunction:
    for module in ("whisper.normalizers", "whisper_normalizer.english"):
        with contextlib.suppress(ImportError):
            normalize: TextFunction = importlib.import_module(module).EnglishTextNormalizer()
            return normalize
    raise InputError(
        "--normalize whisper needs Whisper's own normaliser",
        remedy="pip install whisper-normalizer (or openai-whisper).",
    )


# In the order in which they are applied: a step that reads a sign comes before one that removes it.
STEPS: Mapping[str, TextFunction] = {
    "nfc": nfc,
    "whisper": lambda text: _whisper_normalizer()(text),
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
        """Words, each normalised by itself, as a lattice needs them."""
        return tuple(found for word in words for found in self.words((word,)))

    def text(self, texts: Mapping[str, Sequence[str]]) -> Dict[str, Words]:
        """Utterance id -> normalised words."""
        return {utt: self.words(words) for utt, words in texts.items()}


AS_IT_IS = Normalization()


def normalize_option(what: str) -> Any:
    """Field that says how text is normalised; `what` text goes into its help."""
    return option(
        f"Normalise {what} for scoring and counting; what is written stays as it came."
        f" Steps with commas between them: {', '.join(STEPS)}",
        "",
    )

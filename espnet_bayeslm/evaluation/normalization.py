"""Text as another system would have written it: lists, references and LM made to agree."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import re
import unicodedata
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence

from espnet_bayeslm.evaluation.markup import MarkedWords, Words, mapped
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import option
from espnet_bayeslm.utils.words import lower_case, turkish_lower_case

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
# Digits beside a letter are a name or a unit (mp3, 10km), and so are digits of other scripts.
_NUMBER = re.compile(
    r"""
    (?<![\w$£€]) (?<![0-9]\.)
    (?P<minus>(?<![^\s(])[-\u2212](?=[$£€]?\.?[0-9]))?
    (?P<currency>[$£€])?
    (?: (?P<hour>2[0-3]|[01]?[0-9]) : (?P<minute>[0-5][0-9])(?![:0-9])
      | (?P<dotted>[0-9]+(?:\.[0-9]+){2,})
      | (?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?P<decimals>\.[0-9]+)?
      | (?<!\.)(?P<point>\.[0-9]+)
    )
    (?: (?P<ordinal>st|nd|rd|th) | (?P<plural>s) | (?P<percent>\s?%) | (?P<sign>\s?[£€])
      | (?P<half>\s?[ap]\.?m)
      | (?P<scale>\s(?:hundred|thousand|million|billion|trillion)s?)
    )?
    (?! \w | \.[0-9] | ,[0-9]{3}(?![0-9]) )
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Sign -> (one unit, several, a hundredth, several)
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
}
# Four digits without a comma within these are a year
_YEARS = range(1100, 2100)

Found = Dict[str, Optional[str]]


def contractions(text: str) -> str:
    """Text with contractions written out that have one reading: I'm, don't, we'll."""
    text = text.translate(_APOSTROPHES)
    for pattern, words in _CONTRACTIONS.items():
        text = re.sub(pattern, words, text, flags=re.IGNORECASE)
    return text


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


def spoken_numbers(text: str) -> str:
    """Text whose numbers are English words."""
    return _NUMBER.sub(_spoken, text)


def _spoken(match: re.Match[str]) -> str:
    groups = match.groupdict()
    try:
        words = _words(groups)
    except Exception as error:  # numbers beyond what it has names for
        raise InputError(
            f"{match[0][:80]!r} cannot be written in words ({error})",
            remedy="Leave `numbers` out of --normalize.",
        ) from error
    if words is None:
        return match[0]
    return " ".join(["minus"] * bool(groups["minus"]) + words.split())


def _words(found: Found) -> Optional[str]:
    """Words of a number's parts, without its minus; None: the number stays as it is."""
    half, scale = found["half"] or "", found["scale"] or ""
    currency = found["currency"] or (found["sign"] or "").strip()
    if found["hour"]:
        return None if currency else f"{_time(found)} {half}"
    if found["dotted"]:
        return " point ".join(map(_cardinal, found["dotted"].split(".")))
    whole = (found["whole"] or "").replace(",", "")
    decimals = found["decimals"] or found["point"] or ""
    if found["plural"]:
        decade = whole.isdigit() and len(whole) in (2, 4) and whole.endswith("0")
        return _decade(whole) if decade and not (decimals or currency) else None
    if currency:
        return _money(whole, decimals, currency, scale)
    if found["ordinal"]:
        return str(_engine().ordinal(_cardinal(whole + decimals)))
    bare = not any(found[name] for name in ("minus", "decimals", "percent", "half", "scale"))
    if bare and found["whole"] and len(found["whole"]) == 4 and int(whole) in _YEARS:
        return _year(whole)
    return f"{_cardinal(whole + decimals)} {half} {scale} {'percent' * bool(found['percent'])}"


def _cardinal(digits: str) -> str:
    """Words of a number; one that begins with 0 is read digit by digit."""
    is_code = len(digits) > 1 and digits.startswith("0") and "." not in digits
    if digits.startswith("."):
        return "point " + _digits(digits)
    words = _digits(digits) if is_code else _engine().number_to_words(digits, andword="")
    return re.sub(r"[-,]", " ", words)


def _digits(digits: str) -> str:
    return " ".join(_engine().number_to_words(digit) for digit in digits if digit.isdigit())


def _year(year: str) -> str:
    """Words of a year, in two pairs of digits unless it is one of 2000 to 2009."""
    century, rest = year[:2], year[2:]
    if year.startswith("200"):
        return _cardinal(year)
    if rest == "00":
        return f"{_cardinal(century)} hundred"
    return f"{_cardinal(century)} {_minute(rest)}"


def _minute(digits: str) -> str:
    """Words of two digits after an hour or a century: 05 is `oh five`."""
    return f"oh {_cardinal(digits[1])}" if digits.startswith("0") else _cardinal(digits)


def _decade(digits: str) -> str:
    """Words of a decade: `nineteen nineties` for 1990."""
    year = _year(digits) if len(digits) == 4 else _cardinal(digits)
    *before, last = year.split()
    return " ".join([*before, _engine().plural(last)])


def _time(found: Found) -> str:
    hour, minute = found["hour"] or "", found["minute"] or ""
    words = _cardinal(str(int(hour)))
    if minute != "00":
        return f"{words} {_minute(minute)}"
    if found["half"]:
        return words
    return f"{words} o'clock" if int(hour) <= 12 else f"{words} hundred"


def _money(whole: str, decimals: str, currency: str, scale: str) -> str:
    """Words of an amount; two decimals are cents."""
    unit, units, cent, cents = _CURRENCIES[currency]
    if scale or len(decimals) not in (0, 3):
        return f"{_cardinal(whole + decimals)} {scale} {units}"
    amount = f"{_cardinal(whole)} {unit if int(whole) == 1 else units}" if whole else ""
    hundredths = int(decimals[1:] or 0)
    if not hundredths:
        return amount
    change = f"{_cardinal(str(hundredths))} {cent if hundredths == 1 else cents}"
    return f"{amount} {change}" if int(whole or 0) else change


@functools.cache
def _engine() -> Any:
    import inflect  # takes a while

    return inflect.engine()


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
    "nfc": functools.partial(unicodedata.normalize, "NFC"),
    "nfkc": functools.partial(unicodedata.normalize, "NFKC"),
    "lower_tr": turkish_lower_case,
    "whisper": lambda text: _whisper_normalizer()(text),
    "lower": lower_case,
    "contractions": contractions,
    "numbers": spoken_numbers,
    "punct": punct,
}

# Steps that read more than a word at once, such as `5 %` or `three million`
BEYOND_A_WORD = frozenset({"whisper", "numbers"})


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

    def check_by_word(self, where: str) -> None:
        """Raise an InputError if a step reads more than a word; `where` words come one by one."""
        wider = [name for name in self.steps if name in BEYOND_A_WORD]
        if wider:
            rest = ",".join(name for name in self.steps if name not in wider)
            raise InputError(
                f"{where}: --normalize {','.join(wider)} reads the words around a word, and a"
                " search has each word by itself",
                remedy=f"Leave it out{f': --normalize {rest}' if rest else ''}; rescore the lists"
                " of the search with it.",
            )

    def words(self, words: Sequence[str]) -> Words:
        """Words as the steps leave them; markup between the words stays."""
        if not self.steps:  # a tuple stays, which may have markup
            return words if isinstance(words, tuple) else tuple(words)
        if isinstance(words, MarkedWords):
            return mapped(words, self.words)
        normalized: List[str] = []
        for is_kept, run in itertools.groupby(words, self._kept.__contains__):
            text = " ".join(run)
            for name in () if is_kept else self.steps:
                text = STEPS[name](text)
            normalized += text.split()
        return tuple(normalized)

    def each(self, words: Iterable[str]) -> Words:
        """Words, each normalised by itself, as a lattice needs them."""
        return tuple(normalized for word in words for normalized in self.words((word,)))

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

"""English numbers as a speaker says them: `$1.50`, `1990s`, `10:30`, `21st`."""

from __future__ import annotations

import functools
import re
from typing import Any, Dict, Optional, Tuple

from espnet_bayeslm.utils.errors import InputError

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


def spoken_numbers(text: str) -> str:
    """Text whose numbers are English words."""
    return _NUMBER.sub(_spoken, text)


def _spoken(match: re.Match[str]) -> str:
    found = match.groupdict()
    try:
        words = _words(found)
    except Exception as error:  # numbers beyond what it has names for
        raise InputError(
            f"{match[0][:80]!r} cannot be written in words ({error})",
            remedy="Leave `numbers` out of --normalize.",
        ) from error
    if words is None:
        return match[0]
    return " ".join(["minus"] * bool(found["minus"]) + words.split())


def _words(found: Found) -> Optional[str]:
    """Words of a number's parts, without its minus; None: the number stays as it is."""
    half, scale = found["half"] or "", found["scale"] or ""
    currency = found["currency"] or (found["sign"] or "").strip()
    if found["hour"]:
        return None if currency else f"{_time(found)} {half}"
    if found["dotted"]:
        return " point ".join(map(_cardinal, found["dotted"].split(".")))
    whole, decimals = _parts(found)
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


def _parts(found: Found) -> Tuple[str, str]:
    """Digits before the decimal point, without commas, and the decimal point with its digits."""
    return (found["whole"] or "").replace(",", ""), found["decimals"] or found["point"] or ""


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

"""Words of any language in lower case."""

from __future__ import annotations

import re
import unicodedata

# Python writes the lower case of the Turkish capital with a dot as i and U+0307, the dot once more;
# Lithuanian dictionaries write the dot below an accent
_SECOND_DOT = re.compile("([ij\u012f]\u0328?)\u0307")


def lower_case(text: str) -> str:
    """Text in lower case, such that words that differ in case alone are equal.

    A dotted capital I (U+0130) is i. Letters that are words' own stay: the sharp s (U+00DF), the
    dotless i (U+0131), and a sigma at the end of a word. Text in NFC stays in NFC.
    """
    lowered = _SECOND_DOT.sub(r"\1", text.lower())
    if unicodedata.is_normalized("NFC", text):
        return unicodedata.normalize("NFC", lowered)
    # a word is written alike beside words in NFC and others
    return lowered if " " not in text else " ".join(map(lower_case, text.split(" ")))


def turkish_lower_case(text: str) -> str:
    """Text in lower case by the rules of Turkish and Azerbaijani, in NFC: I is U+0131."""
    return lower_case(unicodedata.normalize("NFC", text).replace("I", "\u0131"))

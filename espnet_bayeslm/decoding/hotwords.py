"""Hotwords: words and phrases that a CTC search prefers, each with a weight for each of its words.

They are a bias list: a phrase pays where it stands whole, the longest first, each once.
"""

from __future__ import annotations

import math
import re
from typing import Dict, Mapping

from espnet_bayeslm.decoding.bias_search import case_advice
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines
from espnet_bayeslm.utils.words import lower_case

HOTWORD_WEIGHT = 10.0
_WEIGHT = re.compile(r"(.*?)(?:\t\s*|\s+:)(\S*)\s*")


def hotword_list(weights: Mapping[str, float]) -> BiasList:
    """Bias list of hotwords.

    Args:
        weights: {word or phrase: weight of each of its words}.
    """
    for phrase, weight in weights.items():
        if not 0 < weight < math.inf or not phrase.split():
            raise InputError(
                f"the hotword {phrase!r} has the weight {weight:g}: a word, and a weight above"
                " 0 were expected",
                remedy="Leave it out.",
            )
    return BiasList((phrase, weight * len(phrase.split())) for phrase, weight in weights.items())


def read_hotwords(
    path: PathLike, weight: float, words: TokenWords, *, lower: bool = False
) -> BiasList:
    """Hotwords of a file: a word or phrase on each line, perhaps with a tab or ` :` and its weight.

    Args:
        path: The file.
        weight: Weight of hotwords without one.
        words: The tokens that must have the hotwords' letters.
        lower: True if hotwords are written in lower case.
    """
    weights: Dict[str, float] = {}
    for number, line in read_lines(path):
        found = _WEIGHT.fullmatch(line)
        phrase, own = (found[1], found[2]) if found else (line, None)
        phrase = " ".join(lower_case(phrase).split() if lower else phrase.split())
        if not phrase and own is None:
            continue
        try:
            value = weight if own is None else float(own)
            check_hotword(phrase, words)
            hotword_list({phrase: value})
        except ValueError as error:
            problem = str(error)
            if not isinstance(error, InputError):
                problem = f"the weight {own!r} is no number. Write WORDS :WEIGHT, or WORDS"
            raise InputError(problem, path=path, line=number) from None
        weights[phrase] = value
    if not weights:
        raise InputError("no hotwords", path=path, remedy="Put one on each line.")
    return hotword_list(weights)


def check_hotword(phrase: str, words: TokenWords) -> None:
    """Raise an InputError where no token has one of the letters of a hotword."""
    missing = words.missing_letters("".join(phrase.split()))
    if missing:
        raise InputError(
            f"the hotword {phrase!r} has {missing!r}, and no token has such letters",
            remedy=case_advice(missing, words),
        )

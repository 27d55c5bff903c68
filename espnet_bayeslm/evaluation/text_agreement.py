"""Differences of lists from the words that an LM knows, and the option that mends each."""

from __future__ import annotations

import re
from typing import Callable, Counter, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from espnet_bayeslm.evaluation.normalization import Normalization

Unknown = Callable[[Sequence[str]], Sequence[bool]]
"""Says of each word whether an LM does not know it."""

# Difference -> the steps of --normalize that undo it; the first that does counts
STEPS: Mapping[str, str] = {
    "case": "lower",
    "punctuation": "punct",
    "accents": "nfc",
    "contractions": "contractions",
    "numbers": "numbers",
    "case and punctuation": "lower,punct",
    "case and contractions": "lower,contractions",
    "numbers and punctuation": "lower,numbers,punct",
    "contractions and punctuation": "lower,contractions,punct",
}
FILLERS, CAPITALS, OTHERS = "fillers and noises", "capitals in the LM's text", "other words"
REMEDIES = {name: f"--normalize {steps}" for name, steps in STEPS.items()}
REMEDIES[FILLERS] = "--ignore_words FILE leaves them out of the counts"
REMEDIES[CAPITALS] = "write the LM's training text in lower case"
# Words that transcripts write in many ways, or leave out
_FILLER = re.compile(
    r"[\[<({].*[\])>}]|[%&+*#]\w.*|(uh|um|uhm|erm?|eh|hm+|mm+|ah+|huh|mhm|uh-huh|mm-hmm|mm-hm)",
    re.IGNORECASE,
)
# Distinct unknown words that are looked at, the most frequent first, and examples shown
LOOKED_AT, SHOWN = 2000, 3


class Difference(NamedTuple):
    """Unknown words that differ from known words in one way.

    Attributes:
        times: How often they stand in the lists.
        words: The words as the lists have them, the most frequent first.
        known: The words that the LM knows in their place; none where there are none.
    """

    times: int
    words: List[str]
    known: List[str]


def differences(words: Counter[str], unknown: Unknown) -> Dict[str, Difference]:
    """Ways in which unknown words differ from known ones, the most frequent first."""
    found: Dict[str, Difference] = {}
    for word, count in words.most_common(LOOKED_AT):
        name, known = _difference(word, unknown)
        before = found.get(name, Difference(0, [], []))
        mended = [*before.known, known] if known else before.known
        found[name] = Difference(before.times + count, [*before.words, word], mended)
    return dict(sorted(found.items(), key=lambda item: -item[1].times))


def _difference(word: str, unknown: Unknown) -> Tuple[str, str]:
    """Name of the difference of one unknown word, and the known words in its place."""
    for name, steps in STEPS.items():
        mended = Normalization(steps).words((word,))
        if mended != (word,) and not any(unknown(mended)):
            return name, " ".join(mended)
    if _FILLER.fullmatch(word):
        return FILLERS, ""
    capitals = [other for other in (word.upper(), word.capitalize()) if other != word]
    for other, is_unknown in zip(capitals, unknown(capitals), strict=True):
        if not is_unknown:
            return CAPITALS, other
    return OTHERS, ""


def mending_lines(words: Counter[str], unknown: Unknown) -> List[str]:
    """Lines that say how unknown words differ, and the option that mends each difference.

    There are none where all are words of another kind.
    """
    lines = []
    found = differences(words, unknown)
    for name, item in found.items() if found.keys() != {OTHERS} else ():
        examples = ", ".join(map(repr, item.words[:SHOWN]))
        if item.known:
            pairs = zip(item.words[:SHOWN], item.known[:SHOWN], strict=False)
            examples = ", ".join(f"{word!r} for {other!r}" for word, other in pairs)
        remedy = f": {REMEDIES[name]}" if name in REMEDIES else ""
        lines.append(f"{item.times} of them: {name} ({examples}){remedy}")
    return lines

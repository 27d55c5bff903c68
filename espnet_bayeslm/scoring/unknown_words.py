"""Words that an LM does not know: what mends them, and how many `<unk>` stands for.

`<unk>` is one token for all words that the LM does not know, and they share its probability. If
each of them had the whole probability, lists would gain by unknown words.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Callable, Collection, Dict, List, Mapping, Sequence, Tuple

from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.utils.errors import InputError

# Words of a vocabulary of one for which nothing was counted: by Zipf's law half of a text's
# different words occur once and a sixth twice, of which Chao's estimate makes three quarters.
ZIPF_SHARE = 0.75


# Says of each word whether an LM does not know it
Unknown = Callable[[Sequence[str]], Sequence[bool]]
# Difference -> the steps of --normalize that undo it; the first that does counts
MENDING_STEPS: Mapping[str, str] = {
    "case": "lower",
    "punctuation": "punct",
    "accents": "nfc",
    "full-width letters and ligatures": "nfkc",
    "case of Turkish": "lower_tr",
    "contractions": "contractions",
    "numbers": "numbers",
    "case and punctuation": "lower,punct",
    "case and contractions": "lower,contractions",
    "numbers and punctuation": "lower,numbers,punct",
    "contractions and punctuation": "lower,contractions,punct",
}
FILLERS, CAPITALS, OTHERS = "fillers and noises", "capitals in the LM's text", "other words"
REMEDIES = {name: f"--normalize {steps}" for name, steps in MENDING_STEPS.items()}
REMEDIES[FILLERS] = "--ignore_words FILE leaves them out of the counts"
REMEDIES[CAPITALS] = "write the LM's training text in lower case"
# Words that transcripts write in many ways, or leave out
_FILLER = re.compile(
    r"[\[<({].*[\])>}]|[%&+*#]\w.*|(uh|um|uhm|erm?|eh|hm+|mm+|ah+|huh|mhm|uh-huh|mm-hmm|mm-hm)",
    re.IGNORECASE,
)
# Distinct unknown words that are looked at, the most frequent first, and examples shown
LOOKED_AT, SHOWN = 2000, 3


def differences(words: Counter[str], unknown: Unknown) -> Dict[str, List[Tuple[str, int, str]]]:
    """(word, times, known words in its place) by the difference, the most frequent first."""
    by_difference: Dict[str, List[Tuple[str, int, str]]] = {}
    for word, count in words.most_common(LOOKED_AT):
        name, known = _difference(word, unknown)
        by_difference.setdefault(name, []).append((word, count, known))
    return dict(
        sorted(by_difference.items(), key=lambda item: -sum(count for _, count, _ in item[1]))
    )


def _difference(word: str, unknown: Unknown) -> Tuple[str, str]:
    """Name of the difference of one unknown word, and the known words in its place."""
    for name, steps in MENDING_STEPS.items():
        try:
            mended = Normalization(steps).words((word,))
        except InputError:  # a number without a name
            continue
        if mended != (word,) and not any(unknown(mended)):
            return name, " ".join(mended)
    if _FILLER.fullmatch(word):
        return FILLERS, ""
    capitals = [other for other in (word.upper(), word.capitalize()) if other != word]
    for other, is_unknown in zip(capitals, unknown(capitals), strict=True):
        if not is_unknown:
            return CAPITALS, other
    return OTHERS, ""


def mending_lines(words: Counter[str], scorer: Any) -> List[str]:
    """Lines that say how unknown words differ, and the option that mends each difference.

    There are none where all are words of another kind.
    """
    lines = []
    by_difference = differences(words, scorer.unknown)
    for name, rows in by_difference.items() if by_difference.keys() != {OTHERS} else ():
        pairs = [(word, known) for word, _, known in rows[:SHOWN]]
        examples = ", ".join(f"{w!r} for {known!r}" if known else repr(w) for w, known in pairs)
        remedy = f": {REMEDIES[name]}" if name in REMEDIES else ""
        times = sum(count for _, count, _ in rows)
        lines.append(f"{times} of them: {name} ({examples}){remedy}")
    return lines


def unknown_words(counts: Mapping[str, int], known: Collection[str]) -> Dict[str, float]:
    """Size of `<unk>`: unknown words of a text, and words that the text has not shown.

    Good-Turing counts estimate the number of words that it has not shown (Chao 1984).

    Returns:
        `unk_size`, and the counts that it is made of.
    """
    once, twice = (sum(count == n for count in counts.values()) for n in (1, 2))
    unseen = once**2 / (2 * twice) if twice else once * (once - 1) / 2
    left_out = sum(word not in known for word in counts)
    return {
        "unk_size": max(left_out + unseen, 1.0),
        "left_out": left_out,
        "seen_once": once,
        "seen_twice": twice,
    }


def usual_unk_size(vocab_size: int) -> float:
    """Size of `<unk>` where the training text's words were not counted."""
    return max(ZIPF_SHARE * vocab_size, 1.0)

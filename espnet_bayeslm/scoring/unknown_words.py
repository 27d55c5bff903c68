"""Words that an LM does not know: their counts, what mends them, and how many `<unk>` stands for.

`<unk>` is one token for all words that the LM does not know, and they share its probability. If
each of them had the whole probability, lists would gain by unknown words.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import Counting
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

# Words of a vocabulary of one for which nothing was counted: by Zipf's law half of a text's
# different words occur once and a sixth twice, of which Chao's estimate makes three quarters.
ZIPF_SHARE = 0.75
# Part of the words above which the differences from an LM's words are told
HIGH_OOV_RATE = 0.02


# Says of each word whether an LM does not know it
Unknown = Callable[[Sequence[str]], Sequence[bool]]
# Lines that say how some words differ from words that an LM knows
Mends = Callable[[Counter[str]], List[str]]
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


@dataclasses.dataclass
class UnknownWords:
    """Counts the words that a component does not know, at most `max_oov_rate` of all.

    Attributes:
        name: The component's name.
        max_oov_rate: Largest share of unknown words.
        counting: How words are counted; None: each as one.
        words: Each unknown word, with its number.
        num_words: Number of all words.
    """

    name: str
    max_oov_rate: float
    counting: Optional[Counting] = None
    words: Counter[str] = dataclasses.field(default_factory=Counter)
    num_words: int = 0

    def add(self, sentences: Sequence[Sequence[str]], scores: Sequence[WordScores]) -> None:
        """Count the words of some sentences."""
        size = len if self.counting is None else self.counting.size
        self.num_words += sum(map(size, sentences))
        for words, score in zip(sentences, scores, strict=True):
            if score.oov.any():
                for word in itertools.compress(words, score.oov):
                    self.words[word] += size((word,))
                self.words = +self.words  # without those that do not count

    def join(self, other: UnknownWords) -> None:
        """Count the words of another count too."""
        self.num_words += other.num_words
        self.words.update(other.words)

    def check(self, mends: Mends, *, report: bool = False) -> None:
        """Raise an InputError where too many words are unknown; `report`: log their rate.

        `mends` says how these words differ from words that the component knows.
        """
        total, distinct = self.words.total(), len(self.words)
        by_word = self.counting is None or self.counting.unit == "word"
        noun, words = ("words", "") if by_word else ("characters", " words")
        rate = total / max(self.num_words, 1)
        examples = ", ".join(f"{word!r}" for word, _ in self.words.most_common(5))
        message = (
            f"{self.name} does not know {total} of {self.num_words} {noun}"
            f" ({100 * rate:.2f} %, {distinct} distinct{words}{': ' if distinct else ''}{examples})"
        )
        if rate > self.max_oov_rate:
            remedy = (
                "Do text and LM agree in case, spelling and tokens?"
                " `--normalize lower,punct` makes text in upper case or with punctuation agree."
            )
            if lines := mends(self.words):
                remedy += f" {'; '.join(lines)}."
            problem = f"{message}, and --max_oov_rate is {self.max_oov_rate}"
            raise InputError(problem, remedy=remedy)
        if report:
            lines = mends(self.words) if rate > HIGH_OOV_RATE else []
            (LOG.warning if lines else LOG.info)("\n  ".join([message, *lines]))


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


def mending_lines(words: Counter[str], scorer: Any = None) -> List[str]:
    """Lines that say how unknown words differ, and the option that mends each difference.

    There are none where all are words of another kind, or no scorer tells which words it knows.
    """
    if scorer is None:
        return []
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

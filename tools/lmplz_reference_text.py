"""Write the texts of tests/ngram/data: `lmplz_reference_text.py FOLDER`.

The discounts of orders 1 to 4 can all be estimated from `reference.txt`, and only some of them from
`tiny.txt`; the seeds were searched for that. Both texts hold what estimators disagree on: blank
lines, tabs and runs of spaces, a no-break space inside a word, words beyond ASCII, and at the end a
new word that repeats in one context.
"""

import random
import sys
from pathlib import Path

PHRASES = [
    "the committee met in the old hall",
    "we will begin",
    "thank you",
    "i think so",
    "it is in the report",
    "that is true",
    "if you agree",
    "on the other hand",
    "at the end of the week",
    "the price of the house",
    "more or less",
    "and so on",
    "i do not know",
    "what do you say",
    "let us go on",
    "to the point",
    "of course",
    "as i said before",
    "the first question",
    "the second question",
    "is there any reason",
    "in the café",
    "für uns",
    "she asked for it",
    "he did not answer",
    "you know",
    "in any case",
]


def sentence(rng: random.Random) -> str:
    """Return stock phrases and rare words, so that every count of counts is met."""
    parts = []
    for _ in range(rng.randint(1, 2)):
        parts.append(PHRASES[int(len(PHRASES) * rng.random() ** 2)])
        if rng.random() < 0.5:
            parts.append(f"w{int(400 * rng.random() ** 3)}")
        if rng.random() < 0.2:
            parts.append(rng.choice(PHRASES).split()[0])
    return " ".join(parts)


def text(seed: int, num_lines: int) -> str:
    """Return a text of `num_lines` sentences and the special cases."""
    rng = random.Random(seed)
    lines = [sentence(rng) for _ in range(num_lines)]
    lines[3:3] = ["", "  thank\tyou  ", "no\u00a0break thank you"]
    return "\n".join([*lines, *["you know zebra"] * 3]) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "reference.txt").write_text(text(20, 300), encoding="utf-8")
    (folder / "tiny.txt").write_text(text(9, 8), encoding="utf-8")

"""Number of words that an LM's `<unk>` stands for, and that share its probability.

`<unk>` is one token for all words that the LM does not know. If each of them had the whole
probability, lists would gain by unknown words.
"""

from __future__ import annotations

from typing import Collection, Dict, Mapping

# Words of a vocabulary of one for which nothing was counted: by Zipf's law half of a text's
# different words occur once and a sixth twice, of which Chao's estimate makes three quarters.
ZIPF_SHARE = 0.75


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

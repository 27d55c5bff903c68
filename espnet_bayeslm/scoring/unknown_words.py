"""How many words an LM's `<unk>` stands for: its probability is shared among them.

`<unk>` is one token for all words that the LM does not know. Were its probability given to each of
them, lists would gain by unknown words.
"""

from __future__ import annotations

from typing import Collection, Dict, Mapping

# Words of a vocabulary of one for which nothing was counted: by Zipf's law half of a text's
# different words occur once and a sixth twice, of which Chao's estimate makes three quarters.
ZIPF_SHARE = 0.75


def unknown_words(counts: Mapping[str, int], known: Collection[str]) -> Dict[str, float]:
    """Size of `<unk>`: the different words of a text that are not known, and those not in it.

    How many it has not shown is estimated by Good-Turing counts (Chao 1984).

    Args:
        counts: Word -> how often it occurs in the training text.
        known: The LM's words.

    Returns:
        `unk_size`, and what it was made of.
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

"""Ln P of given texts by the logits of a CTC recogniser, over all tokens that write them."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

import numpy as np

from espnet_bayeslm.decoding.ctc_tokens import CTCTokens

Arc = Tuple[int, int, int]
"""Token, place before it and place after it."""


def text_log_prob(log_probs: np.ndarray, words: Sequence[str], tokens: CTCTokens) -> float:
    """Ln of the sum over all alignments of all tokens that write a text; -inf where none does.

    The forward recursion of CTC, over the places between the text's letters, in place of one
    sequence of tokens.

    Args:
        log_probs: Ln P of each token at each frame, (T, V).
        words: Words of the text, as the recogniser writes them.
        tokens: The recogniser's tokens.
    """
    arcs, num_places, lasts = _arcs([tokens.words.letters(word) for word in words], tokens)
    ids, begins, ends = np.array(arcs, dtype=int).reshape(-1, 3).T
    into = (ends[:, None] == np.arange(num_places)).astype(float)
    # the same token again is one token, unless a blank stands between
    follows = (begins[:, None] == ends) & (ids[:, None] != ids)
    probs = np.exp(log_probs)
    blanks, said, total = np.zeros(num_places), np.zeros(len(arcs)), 0.0
    blanks[0] = 1.0
    for frame in probs:
        entered = blanks[begins] + follows @ said
        blanks = frame[tokens.blank] * (blanks + said @ into)
        said = frame[ids] * (said + entered)
        scale = blanks.sum() + said.sum()
        if not scale:
            return -np.inf
        blanks, said, total = blanks / scale, said / scale, total + float(np.log(scale))
    found = (blanks + said @ into)[lasts].sum()
    return total + float(np.log(found)) if found else -np.inf


def _arcs(words: Sequence[str], tokens: CTCTokens) -> Tuple[List[Arc], int, List[int]]:
    """Tokens that lead from one place of a text to another, number of places, and the last ones.

    A place is a number of letters of a word; 0 letters stand after a token between words.
    """
    places: Dict[Tuple[int, int], int] = {}
    for n, word in enumerate([*words, ""]):
        for size in range(len(word) + 1):
            places[n, size] = len(places)
    by_text: Dict[Tuple[str, bool], List[int]] = {}
    for token, (text, opens) in enumerate(zip(tokens.words.texts, tokens.words.opens, strict=True)):
        if token != tokens.blank and tokens.spoken[token]:
            by_text.setdefault((text, opens), []).append(token)
    longest = max((len(text) for text, _ in by_text), default=0)
    arcs: List[Arc] = []

    def add(key: Tuple[str, bool], begin: int, end: int) -> None:
        arcs.extend((token, begin, end) for token in by_text.get(key, ()))

    for (n, size), place in places.items():
        is_whole = n < len(words) and size == len(words[n]) > 0
        if is_whole or not size:
            add(("", True), place, places[n + is_whole, 0])
        # a token that opens a word stands at its beginning only
        for at, start, kinds in ((n, size, (False, True)), (n + 1, 0, (True,))):
            if at >= len(words) or (at > n and not is_whole):
                continue
            for length in range(1, min(longest, len(words[at]) - start) + 1):
                text = words[at][start : start + length]
                for opens in kinds:
                    if not (opens and start):
                        add((text, opens), place, places[at, start + length])
    lasts = [places[len(words), 0]]
    if words:
        lasts.append(places[len(words) - 1, len(words[-1])])
    return arcs, len(places), lasts

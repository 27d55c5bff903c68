"""CTC by brute force: the ln P of every text, over all alignments."""

import itertools
from collections import defaultdict

import numpy as np


def collapsed(path, blank):
    """Tokens of an alignment: repeats are one, and blanks are none."""
    return tuple(token for token, _ in itertools.groupby(path) if token != blank)


def text_of(tokens, opens, texts):
    """Words of some tokens."""
    words = [""]
    for token in tokens:
        if opens[token]:
            words.append("")
        words[-1] += texts[token]
    return tuple(filter(None, words))


def all_texts(log_probs, blank, opens, texts):
    """{words: ln P} of all texts of an utterance, (T, V)."""
    found = defaultdict(lambda: -np.inf)
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        words = text_of(collapsed(path, blank), opens, texts)
        score = log_probs[np.arange(len(path)), path].sum()
        found[words] = np.logaddexp(found[words], score)
    return dict(found)


def best_frames(log_probs, words, blank, opens, texts):
    """(first frame, frame after the last one) of each word, on the likeliest path of a text."""
    paths = itertools.product(range(log_probs.shape[1]), repeat=len(log_probs))
    of_text = [path for path in paths if text_of(collapsed(path, blank), opens, texts) == words]
    best = max(of_text, key=lambda path: log_probs[np.arange(len(path)), path].sum())
    frames, is_new = [], True
    for frame, token in enumerate(best):
        repeats = frame > 0 and best[frame - 1] == token
        is_new |= opens[token] and not repeats
        if token != blank and texts[token]:
            if is_new:
                frames.append((frame, frame + 1))
            frames[-1] = (frames[-1][0], frame + 1)
            is_new = False
    return frames

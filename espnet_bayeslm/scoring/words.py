"""Words of token sequences: the tokens of each word, and the word's log-probability.

A sentencepiece or character LM says that a word has ended only by its next token, which opens the
next word. With e(prefix) = P(the next token opens a word or is `</s>` | prefix), the probability
of a word is

    P(its tokens | prefix) * e(prefix with the word) / e(prefix).

Over all words and `</s>` these probabilities sum to one, as an n-gram's do, so that both can be
interpolated word by word. The factors cancel in a sentence's total. At a sentence's start e is 1:
probability that the LM gives to tokens with which no sentence starts is lost.
"""

from __future__ import annotations

from typing import (
    Callable,
    Collection,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import torch

from espnet_bayeslm.utils.errors import InputError

# a token that opens a word: sentencepiece's mark at its start; ESPnet's character for a space
WORD_MARK = "\u2581"
SPACE = "<space>"
# Signs of a blank in word pieces: sentencepiece's, and GPT-2's
PIECE_MARKS = (WORD_MARK, "\u0120")


def marked_tokens(tokens: Iterable[str]) -> FrozenSet[str]:
    """Tokens with the sign of a blank, which plain text has nowhere."""
    return frozenset(t for t in tokens if t.startswith(PIECE_MARKS) or t == SPACE)


def check_is_plain(
    sentences: Iterable[Sequence[str]], marked: Collection[str], *, name: str
) -> None:
    """Raise an InputError if most sentences are in tokens already: they have `marked` tokens."""
    filled = [words for words in sentences if words]
    found = [next((word for word in words if word in marked), None) for words in filled]
    pieces = [piece for piece in found if piece is not None]
    if 2 * len(pieces) > len(filled):
        examples = ", ".join(map(repr, dict.fromkeys(pieces[:3])))
        raise InputError(
            f"{name}: the text is in tokens ({examples}) already, where words were expected:"
            " they would be cut again",
            remedy="Give plain text; `bayeslm interpolate --unit token` mixes by tokens.",
        )


def tokens_of_words(
    words: Sequence[str], tokenize: Callable[[str], List[str]], cache: Dict[str, List[str]]
) -> Tuple[List[str], List[int]]:
    """Tokens of a sentence, and where each word and `</s>` start in them.

    All tokens between two blanks of the text belong to the word there. This holds even where the
    tokenizer's normalisation replaces a character of the word by a blank. A word may have no
    token. A token over several words belongs to the first.

    Args:
        words: The n words.
        tokenize: Text -> tokens.
        cache: Tokens of words by themselves, which are added.

    Returns:
        The tokens, and n + 1 indices that do not fall.
    """
    tokens = tokenize(" ".join(words)) if words else []
    parts = []
    for n, word in enumerate(words):
        alone = f" {word}" if n else word
        if alone not in cache:
            cache[alone] = tokenize(alone)
        parts.append(cache[alone])
    if [token for part in parts for token in part] == tokens:
        ends = np.cumsum([len(part) for part in parts], dtype=int)
    else:
        # the tokens of a word depend on the words beside it
        counts = [len(tokenize(" ".join(words[:n]))) for n in range(1, len(words))]
        ends = np.minimum(np.maximum.accumulate([*counts, len(tokens)]), len(tokens))
    return tokens, [0, *ends.tolist()]


def opening_tokens(token_list: Sequence[str], token_type: str) -> Optional[torch.Tensor]:
    """(V,) bool, True for the tokens that end the word before them.

    The tokens are all that open a word, and `<sos/eos>`, the last.

    Returns:
        None where a word does not end by the next token: a token is a word, or a sentencepiece
        goes on after a blank or ends with one.
    """
    if token_type == "word":
        return None
    if token_type == "char":
        opens = [token == SPACE for token in token_list]
    elif any(WORD_MARK in token.lstrip(WORD_MARK) for token in token_list):
        return None
    else:
        opens = [token.startswith(WORD_MARK) for token in token_list]
    return torch.tensor([*opens[:-1], True])


def word_sums(values: np.ndarray, starts: Sequence[int]) -> np.ndarray:
    """(..., n + 1) sums of values over the tokens of each word and of `</s>`, which have starts.

    The values are of tokens and `</s>`, (..., number of tokens + 1). A word without tokens has 0.
    """
    sums = np.add.reduceat(values, starts, axis=-1)
    # reduceat takes the next value for an empty run
    sums[..., :-1][..., np.diff(starts) == 0] = 0
    return sums


def word_log_probs(
    log_probs: np.ndarray, starts: Sequence[int], openings: Optional[np.ndarray] = None
) -> np.ndarray:
    """(..., n + 1) ln p of each word and of `</s>`, from their tokens' ln p.

    Args:
        log_probs: Ln p of the tokens and `</s>`, (..., number of tokens + 1).
        starts: Where each word, and `</s>`, begins.
        openings: Ln e in the context of each token, as `log_probs`; None: e is 1.
    """
    sums = word_sums(log_probs, starts)
    if openings is not None:
        ends = np.where(np.array(starts) > 0, openings[..., starts], 0.0)
        sums += np.diff(ends, axis=-1, append=0.0)
    return sums

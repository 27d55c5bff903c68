"""Sentences as token sequences: the tokens of each word, the marks around a sentence.

A reader turns words into token ids and says where each word starts. A new type of LM brings one
reader and one `TreeLM`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.utils.errors import InputError

if TYPE_CHECKING:
    import torch

# a token that opens a word: sentencepiece's mark at its start; ESPnet's character for a space
WORD_MARK = "\u2581"
SPACE = "<space>"


class Encoded(NamedTuple):
    """Tokens of a sentence.

    Attributes:
        ids: Tokens of the words and of the sentence's end.
        starts: Where each of the n words, and `</s>`, begins in them, (n + 1,).
    """

    ids: List[int]
    starts: List[int]


class WordReader:
    """Cuts sentences into the tokens of an LM.

    Attributes:
        start: Tokens before a sentence.
        end: Tokens after a sentence.
        unk: Token of unknown text; -1: there is none.
        openings: (V,) bool, True for the tokens that end the word before them; None: a word ends
            with its last token.
        joins: True if the end of a sentence is the start of the next in a text; False: a text has
            one start, and each of its sentences an end.
        words: Words that are tokens, in an LM over words.
    """

    start: Sequence[int]
    end: Sequence[int]
    unk: int = -1
    openings: Optional[torch.Tensor] = None
    joins: bool = False
    words: Sequence[str] = ()

    def encode(self, words: Sequence[str]) -> Encoded:
        """Tokens of a sentence and its end; all tokens between two blanks are of the word there."""
        raise NotImplementedError

    def is_token(self, word: str) -> bool:
        """True if a word of the text is one of the LM's tokens, which plain text has not."""
        raise NotImplementedError


class TokenReader(WordReader):
    """Cuts sentences into the words, pieces or characters of a trained ESPnet LM.

    Args:
        trained: The LM with its tokenizer (`loading.trained_lm.TrainedLM`).
    """

    joins = True

    def __init__(self, trained: Any):
        self._trained, tokens = trained, trained.token_list
        self._is_word = trained.token_type == "word"
        self.words = tokens if self._is_word else ()
        self.start = self.end = (len(tokens) - 1,)
        self.unk = tokens.index("<unk>")
        self.openings = opening_tokens(tokens, trained.token_type)
        # an LM over words may have pieces as words
        self._pieces = frozenset(() if self._is_word else tokens)
        self._tokens: Dict[str, List[str]] = {}

    def encode(self, words: Sequence[str]) -> Encoded:
        """Tokens of a sentence and its end; of an LM over words, one for each word."""
        trained = self._trained
        if self._is_word:
            tokens = trained.tokenize(" ".join(words)) if words else []
            starts = list(range(len(words) + 1))
            if len(tokens) != len(words):
                raise InputError(
                    f"{trained.name}: the sentence {' '.join(words)!r} has {len(words)} words, and"
                    f" {len(tokens)} word tokens: {tokens}",
                    remedy="The tokenizer drops or splits words: normalise the text as for"
                    " training.",
                )
        else:
            tokens, starts = tokens_of_words(words, trained.tokenize, self._tokens)
        return Encoded([*trained.ids(tokens), *self.end], starts)

    def is_token(self, word: str) -> bool:
        """True for pieces and characters of the LM."""
        return word in self._pieces


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
    import torch  # readers are named where nothing of torch is needed

    if token_type == "word":
        return None
    if token_type == "char":
        opens = [token == SPACE for token in token_list]
    elif any(WORD_MARK in token.lstrip(WORD_MARK) for token in token_list):
        return None
    else:
        opens = [token.startswith(WORD_MARK) for token in token_list]
    return torch.tensor([*opens[:-1], True])

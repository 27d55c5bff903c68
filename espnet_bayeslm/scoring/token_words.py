"""Words from the tokens of a recogniser: which tokens begin a word, and the letters of each."""

from __future__ import annotations

from typing import Dict, Sequence

from espnet_bayeslm.scoring.reader import PIECE_MARKS, SPACE, WORD_MARK
from espnet_bayeslm.utils.casing import lower_case
from espnet_bayeslm.utils.errors import InputError

DELIMITERS = (" ", SPACE)
BAR = "|"
"""The delimiter of wav2vec2, where no other delimiter is among the tokens."""
CONTINUES = "##"
"""Beginning of the word pieces of BERT that continue a word."""
BYTES_MARK = PIECE_MARKS[1]
MARKS = frozenset(
    [
        "<s>",
        "</s>",
        "<sos/eos>",
        "<sos>",
        "<eos>",
        "<pad>",
        "<mask>",
        "<blank>",
        "<blk>",
        "[CLS]",
        "[SEP]",
        "[PAD]",
        "[MASK]",
    ]
)
"""Tokens that are no text."""


class TokenWords:
    """Rules by which the tokens of a recogniser make words.

    Word pieces begin a word by their mark. Letters have a delimiter among them, which ends a word
    and adds no letter. Without either, each token is a word.

    Args:
        tokens: The tokens.
        lower: True if words are written in lower case.

    Attributes:
        opens: (V,), True for each token that begins a word, or stands between words.
        texts: (V,), the letters that each token adds to a word; empty for tokens that are no text.

    Raises:
        InputError: The tokens make no words, since they are bytes, hold the ends of words, or have
            no letters.
    """

    def __init__(self, tokens: Sequence[str], *, lower: bool = False):
        is_text = [token not in MARKS for token in tokens]
        delimiters = [token for token in DELIMITERS if token in tokens] or [BAR]
        if any(token.startswith(WORD_MARK) for token in tokens):
            opens = [token.startswith(WORD_MARK) for token in tokens]
            texts = [token.removeprefix(WORD_MARK) for token in tokens]
        elif any(token.startswith(CONTINUES) for token in tokens):
            opens = [not token.startswith(CONTINUES) for token in tokens]
            texts = [token.removeprefix(CONTINUES) for token in tokens]
        elif any(token in delimiters for token in tokens):
            opens = [token in delimiters for token in tokens]
            texts = ["" if token in delimiters else token for token in tokens]
        else:
            opens, texts = [True] * len(tokens), list(tokens)
        self.opens = [each and text for each, text in zip(opens, is_text, strict=True)]
        self.texts = [each * text for each, text in zip(texts, is_text, strict=True)]
        self._check(tokens)
        if lower:
            self.texts = [lower_case(text) for text in self.texts]
        self._letters: Dict[str, None] = dict.fromkeys("".join(self.texts))

    def missing_letters(self, word: str) -> str:
        """Letters of a word that no token has."""
        return "".join(letter for letter in dict.fromkeys(word) if letter not in self._letters)

    def _check(self, tokens: Sequence[str]) -> None:
        """Raise an InputError where the tokens make no words."""
        problem = remedy = ""
        of_bytes = [token for token in tokens if token.startswith(BYTES_MARK)]
        within = [
            token
            for token, text in zip(tokens, self.texts, strict=True)
            if WORD_MARK in text or text != "".join(text.split())
        ]
        if of_bytes:
            problem = f"are bytes, as {of_bytes[0]!r}"
            remedy = f"Write pieces of text, whose first piece of a word begins with {WORD_MARK}."
        elif within:
            problem = f"hold the end of a word within them, as {within[0]!r}"
            remedy = "Use a recogniser whose tokens belong to one word each."
        elif not any(self.texts):
            problem = "have no letters"
            remedy = f"Give letters with {SPACE}, {BAR} or a blank, or pieces with {WORD_MARK}."
        if problem:
            raise InputError(
                f"the {len(tokens)} tokens make no words: they {problem}", remedy=remedy
            )

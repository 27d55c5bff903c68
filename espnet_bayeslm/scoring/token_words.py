"""Words from the tokens of a recogniser: which tokens begin a word, and the letters of each."""

from __future__ import annotations

import functools
from typing import Dict, List, Sequence

from espnet_bayeslm.scoring.reader import SPACE, WORD_MARK
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.words import lower_case

DELIMITERS = (" ", SPACE)
BAR = "|"
"""The delimiter of wav2vec2, where no other delimiter is among the tokens."""
CONTINUES = "##"
"""Beginning of the word pieces of BERT that continue a word."""
BYTES_MARK = "\u0120"
"""Beginning of the pieces of GPT-2 and Whisper that begin a word; their letters stand for bytes."""
MARKS = frozenset(
    [
        *("<s>", "</s>", "<sos/eos>", "<sos>", "<eos>", "<pad>", "<mask>", "<blank>", "<blk>"),
        *("[CLS]", "[SEP]", "[PAD]", "[MASK]"),
    ]
)
"""Tokens that are no text, beside those of Whisper, such as <|en|>."""


class TokenWords:
    """Rules by which the tokens of a recogniser make words.

    Word pieces begin a word by their mark. Letters have a delimiter among them, which ends a word
    and adds no letter. Without either, each token is a word, as in Chinese.

    Args:
        tokens: The tokens.
        lower: True if words are written in lower case.

    Attributes:
        opens: (V,), True for each token that begins a word, or stands between words.
        texts: (V,), the letters that each token adds to a word; empty for tokens that are no text.
        is_bytes: True if the letters of tokens stand for bytes, as GPT-2's and Whisper's.

    Raises:
        InputError: The tokens make no words, since they hold the ends of words, or have no letters.
    """

    def __init__(self, tokens: Sequence[str], *, lower: bool = False):
        is_text = [not (t in MARKS or (t[:2] == "<|" and t[-2:] == "|>")) for t in tokens]
        delimiters = [token for token in DELIMITERS if token in tokens] or [BAR]
        begins = {mark for mark in (WORD_MARK, BYTES_MARK) if any(t[:1] == mark for t in tokens)}
        mark = WORD_MARK if WORD_MARK in begins else BYTES_MARK
        self.is_bytes = begins == {BYTES_MARK}
        if begins:
            opens = [token.startswith(mark) for token in tokens]
            texts = [token.removeprefix(mark) for token in tokens]
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

    def word(self, letters: str) -> str:
        """Word of the letters that its tokens have added."""
        if not self.is_bytes:
            return letters
        known = _byte_of_letter()
        if not all(letter in known for letter in letters):
            return letters  # a token of its own, beside the pieces
        return bytes(known[letter] for letter in letters).decode("utf-8", "replace")

    def words(self, ids: Sequence[int]) -> List[str]:
        """Words of a sequence of tokens."""
        found, letters = [], ""
        for token in ids:
            if self.opens[token] and letters:
                found.append(self.word(letters))
                letters = ""
            letters += self.texts[token]
        return [*found, self.word(letters)] if letters else found

    def missing_letters(self, word: str) -> str:
        """Letters of a word that no token has."""
        return "".join(letter for letter in dict.fromkeys(word) if letter not in self._letters)

    def _check(self, tokens: Sequence[str]) -> None:
        """Raise an InputError where the tokens make no words."""
        problem = remedy = ""
        within = [
            token
            for token, text in zip(tokens, self.texts, strict=True)
            if WORD_MARK in text or text != "".join(text.split())
        ]
        if within:
            problem = f"hold the end of a word within them, as {within[0]!r}"
            remedy = "Use a recogniser whose tokens belong to one word each."
        elif not any(text for text in self.texts if text != "<unk>"):
            problem = "have no letters"
            remedy = f"Give letters with {SPACE}, {BAR} or a blank, or pieces with {WORD_MARK}."
        if problem:
            raise InputError(
                f"the {len(tokens)} tokens make no words: they {problem}", remedy=remedy
            )


@functools.cache
def _byte_of_letter() -> Dict[str, int]:
    """Byte for which each letter of GPT-2's pieces stands.

    Printable bytes stand for themselves, all others for letters from 256 on (Radford et al. 2019).
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    pairs = [*zip(plain, plain, strict=True), *((256 + n, b) for n, b in enumerate(others))]
    return {chr(letter): byte for letter, byte in pairs}

"""Words that the tokens of a recogniser make: which token begins one, and what it adds to it."""

from __future__ import annotations

import functools
from typing import Dict, List, Sequence

from espnet_bayeslm.scoring.reader import SPACE, WORD_MARK
from espnet_bayeslm.utils.errors import InputError

# Signs of a blank in word pieces: sentencepiece's, and GPT-2's
PIECE_MARKS = (WORD_MARK, "\u0120")
# Tokens that stand for no letters: ESPnet's, and marks of Whisper's such as <|en|>
SILENT = ("<blank>", "<sos/eos>", "<sos>", "<eos>", "<s>", "</s>", "<pad>")
UNKNOWN = "<unk>"


class TokenWords:
    """Words that the tokens of a recogniser make.

    Word pieces have the sign of a blank at the start of a word (sentencepiece's, or GPT-2's and
    Whisper's), characters a token for it (`<space>`). Without any sign of a blank each token is a
    word, as in Chinese.

    Args:
        tokens: All tokens; the index is the id.

    Attributes:
        opens: (V,), True for each token that begins a word or ends the one before.
        texts: (V,), what each token adds to a word.
        is_bytes: True if a token's letters stand for bytes, as in GPT-2's and Whisper's pieces.

    Raises:
        InputError: A token has the sign of a blank within it, or no token has a letter.
    """

    def __init__(self, tokens: Sequence[str]):
        counts = {mark: sum(token.startswith(mark) for token in tokens) for mark in PIECE_MARKS}
        mark = max(counts, key=lambda sign: counts[sign])
        self.is_bytes = bool(counts[mark]) and mark != WORD_MARK
        texts = ["" if _is_silent(token) else token for token in tokens]
        if counts[mark]:
            self.opens = [text.startswith(mark) for text in texts]
            self.texts = [text.removeprefix(mark) for text in texts]
            within = next((text for text in self.texts if mark in text), None)
            if within is not None:
                raise InputError(
                    f"the token {mark + within!r} has a blank within it: it makes parts of two"
                    " words",
                    remedy="Give a recogniser whose tokens have blanks at their start only.",
                )
        elif SPACE in tokens or " " in tokens:
            blanks = [text in (SPACE, " ") for text in texts]
            self.opens = blanks
            self.texts = ["" if b else text for b, text in zip(blanks, texts, strict=True)]
        else:
            self.opens, self.texts = [bool(text) for text in texts], texts
        letters = [text for text in self.texts if text not in ("", UNKNOWN)]
        if not letters:
            raise InputError(
                f"the {len(tokens)} tokens make no words: none has a letter",
                remedy="Give the recogniser's token list.",
            )

    def word(self, pieces: str) -> str:
        """Word of the letters that its tokens have added."""
        if not self.is_bytes:
            return pieces
        known = _byte_of_letter()
        if not all(letter in known for letter in pieces):
            return pieces  # a token of its own, beside the pieces
        return bytes(known[letter] for letter in pieces).decode("utf-8", "replace")

    def words(self, ids: Sequence[int]) -> List[str]:
        """Words of a sequence of tokens."""
        found, piece = [], ""
        for token in ids:
            if self.opens[token] and piece:
                found.append(self.word(piece))
                piece = ""
            piece += self.texts[token]
        return [*found, self.word(piece)] if piece else found


def _is_silent(token: str) -> bool:
    """True for a token that stands for no letters."""
    return token in SILENT or (token.startswith("<|") and token.endswith("|>"))


@functools.cache
def _byte_of_letter() -> Dict[str, int]:
    """Byte for which each letter of GPT-2's pieces stands.

    Printable bytes stand for themselves, all others for letters from 256 on (Radford et al. 2019).
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    pairs = [*zip(plain, plain, strict=True), *((256 + n, b) for n, b in enumerate(others))]
    return {chr(letter): byte for letter, byte in pairs}

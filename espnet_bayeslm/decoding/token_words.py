"""Words from the tokens of a recogniser: which tokens begin a word, and the letters of each."""

from __future__ import annotations

import codecs
import copy
import re
import unicodedata
from typing import Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

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
BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A byte of a letter that sentencepiece does not know."""
WHISPER_MARK = re.compile(r"<\|.*\|>")
OWSM_MARK = re.compile("<(?!0x[0-9A-Fa-f]{2}>).+>")
CONTINUATIONS = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that continue a letter."""
NO_LETTER = "\ufffd"
"""Sign that stands for bytes that are no letter."""
WITHIN = "0"
"""Stands for the letters around a token; no accent joins it."""
LEAD = 0xC2
"""First byte of UTF-8 that begins a letter of several bytes."""
MARKS = frozenset(
    [
        *("<s>", "</s>", "<sos/eos>", "<sos>", "<eos>", "<pad>", "<mask>", "<blank>", "<blk>"),
        *("[CLS]", "[SEP]", "[PAD]", "[MASK]"),
    ]
)
"""Tokens that are no text, beside those of Whisper, such as <|en|>."""
OWSM_SIGNS = frozenset(["<notimestamps>", "<nolang>"])
"""Tokens of ESPnet's s2t models: each token in angles is a mark beside one, as <eng> or <0.00>."""


def _byte_code(plain: Sequence[int], letters: Iterable[str]) -> Dict[str, int]:
    """Byte of each letter: some bytes stand for themselves, the others for letters in order."""
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **dict(zip(letters, others, strict=False))}


_LATIN = [chr(number) for number in range(256, 512)]
# Radford et al. 2019
GPT2_CODE = _byte_code([*range(33, 127), *range(161, 173), *range(174, 256)], _LATIN)
# of the pieces in icefall's lang_bbpe_*: letters that NFKC leaves as they are
BBPE_CODE = _byte_code(
    range(32, 127), [letter for letter in _LATIN if unicodedata.is_normalized("NFKC", letter)]
)


class TokenWords:
    """Rules by which the tokens of a recogniser make words.

    Word pieces begin a word by their mark. Letters have a delimiter among them, which ends a word
    and adds no letter. Without either, each token is a word, as in Chinese. Where tokens stand for
    bytes, each byte of UTF-8 is a letter: those above 127 are lone surrogates (PEP 383). A line
    feed at the end of such a token is left out.

    Args:
        tokens: The tokens.
        lower: True if words are written in lower case.

    Attributes:
        opens: (V,), True for each token that begins a word, or stands between words.
        texts: (V,), the letters that each token adds to a word; empty for tokens that are no text.
        is_text: (V,), False for each mark, such as `<|en|>` and `<eng>`.
        is_bytes: True if letters are bytes, since some tokens are parts of letters.
    """

    def __init__(self, tokens: Sequence[str], *, lower: bool = False):
        self._lower = lower
        self.is_text = [not is_mark for is_mark in _marks(tokens)]
        opens, texts = _cut(tokens, self.is_text)
        self.opens = [each and text for each, text in zip(opens, self.is_text, strict=True)]
        self.texts = [each * text for each, text in zip(texts, self.is_text, strict=True)]
        code = self._code(tokens)
        self.is_bytes = bool(code) or any(map(BYTE.fullmatch, tokens))
        self._check(tokens)
        for n, text in enumerate(self.texts):
            if self.is_bytes:
                text = _bytes_of(text, code).decode("utf-8", "surrogateescape")
            self.opens[n] = self.opens[n] or text[:1].isspace()
            self.texts[n] = text.strip()
        if lower:
            self.texts = [lower_case(text) for text in self.texts]
        self.texts = [self._coded(text) for text in self.texts]
        self._letters = frozenset("".join(self.texts))

    def word(self, letters: str) -> str:
        """Word of the letters that its tokens have added."""
        if not self.is_bytes:
            return letters
        word = letters.encode("ascii", "surrogateescape").decode("utf-8", "replace")
        return lower_case(word) if self._lower else word

    def words(self, ids: Sequence[int]) -> List[str]:
        """Words of a sequence of tokens."""
        found, letters = [], ""
        for token in ids:
            if self.opens[token] and letters:
                found.append(self.word(letters))
                letters = ""
            letters += self.texts[token]
        return [*found, self.word(letters)] if letters else found

    def letters(self, word: str) -> str:
        """Letters by which the tokens write a word; its accents may be tokens of their own."""
        if not self._has(word):
            word = "".join(map(self._parts, unicodedata.normalize("NFC", word)))
        return self._coded(word)

    def normalised(self, steps: Callable[[Sequence[str]], Sequence[str]]) -> TokenWords:
        """Rules whose tokens add letters as some steps leave them, each token by itself.

        Tokens that go on with a word keep what stays within words, as the sign of `'s`. Parts of a
        letter stay as they are.
        """

        def within(word: str) -> str:
            return "".join(steps([f"{WITHIN}{word}{WITHIN}"])).removeprefix(WITHIN)[:-1]

        other = copy.copy(self)
        rows = [
            (text, self.word(text), opens)
            for text, opens in zip(self.texts, self.opens, strict=True)
        ]
        other.texts = [
            text
            if NO_LETTER in word
            else self._coded("".join(steps([word])) if opens else within(word))
            for text, word, opens in rows
        ]
        other._letters = frozenset("".join(other.texts))
        return other

    def lacks(self, letters: str) -> bool:
        """True if no token has one of the letters, which are those of tokens."""
        return not self._letters.issuperset(letters)

    def missing_letters(self, word: str) -> str:
        """Letters of a word that no token has."""
        if self._has(word):
            return ""
        letters = dict.fromkeys(unicodedata.normalize("NFC", word))
        return "".join(letter for letter in letters if not self._has(self._parts(letter)))

    def _has(self, text: str) -> bool:
        """True if tokens have all letters of a text."""
        return self._letters.issuperset(self._coded(text))

    def _parts(self, letter: str) -> str:
        """A letter, or where no token has it the letter without an accent, and the accent."""
        *first, accent = list(unicodedata.normalize("NFD", letter))
        if not first or self._has(letter):
            return letter
        return "".join(map(self._parts, unicodedata.normalize("NFC", "".join(first)))) + accent

    def _coded(self, text: str) -> str:
        """Text with a letter for each byte, where letters are bytes."""
        if not self.is_bytes:
            return text
        return text.encode("utf-8", "surrogateescape").decode("ascii", "surrogateescape")

    def _code(self, tokens: Sequence[str]) -> Mapping[str, int]:
        """Bytes for which letters stand; nothing where they stand for themselves."""
        if not any(token.startswith(WORD_MARK) for token in tokens):
            return GPT2_CODE if any(token.startswith(BYTES_MARK) for token in tokens) else {}
        return BBPE_CODE if _is_bbpe(self.texts, self.opens) else {}

    def _check(self, tokens: Sequence[str]) -> None:
        """Raise an InputError where the tokens make no words."""
        problem = remedy = ""
        strip = str.strip if self.is_bytes else str.lstrip  # as a line feed at the end
        within = [
            token
            for token, text in zip(tokens, map(strip, self.texts), strict=True)
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


def _marks(tokens: Sequence[str]) -> List[bool]:
    """True for each token that is no text."""
    mark = WHISPER_MARK if OWSM_SIGNS.isdisjoint(tokens) else OWSM_MARK
    return [token in MARKS or bool(mark.fullmatch(token)) for token in tokens]


def _cut(tokens: Sequence[str], is_text: Sequence[bool]) -> Tuple[List[bool], List[str]]:
    """True for each token that begins a word, and tokens without the marks of words."""
    for mark in (WORD_MARK, BYTES_MARK):
        if any(token.startswith(mark) for token in tokens):
            opens = [token.startswith(mark) for token in tokens]
            return opens, [token.lstrip(mark) for token in tokens]
    if any(token.startswith(CONTINUES) for token in tokens):
        opens = [not token.startswith(CONTINUES) for token in tokens]
        return opens, [token.removeprefix(CONTINUES) for token in tokens]
    letters = [token for token, text in zip(tokens, is_text, strict=True) if text]
    only_bytes = all(token == "<unk>" or BYTE.fullmatch(token) for token in letters)
    delimiters = [token for token in DELIMITERS if token in tokens]
    delimiters = delimiters or (["<0x20>"] if only_bytes else [BAR])
    if any(token in delimiters for token in letters):
        opens = [token in delimiters for token in tokens]
        return opens, ["" if token in delimiters else token for token in tokens]
    opens = [_bytes_of(token, {}) not in CONTINUATIONS for token in tokens]
    return opens, list(tokens)


def _bytes_of(text: str, code: Mapping[str, int]) -> bytes:
    """Bytes for which a token stands, or those of its own letters."""
    found = BYTE.fullmatch(text)
    if found:
        return bytes([int(found[1], 16)])
    if code and all(letter in code for letter in text):
        return bytes(code[letter] for letter in text)
    return text.encode()


def _is_bbpe(texts: Sequence[str], opens: Sequence[bool]) -> bool:
    """True if letters are those of `BBPE_CODE`: all texts are parts of UTF-8, not ASCII alone."""
    if not all(letter in BBPE_CODE for text in texts for letter in text):
        return False
    raw = [_bytes_of(text, BBPE_CODE) for text in texts]
    try:
        for part, begins in zip(raw, opens, strict=True):
            decoder = codecs.getincrementaldecoder("utf-8")()
            decoder.decode(part if begins else part.lstrip(CONTINUATIONS))
    except UnicodeDecodeError:
        return False
    used = b"".join(raw)
    if max(used, default=0) < LEAD or min(used) < ord(" "):
        return False
    return any(byte in CONTINUATIONS for byte in used)

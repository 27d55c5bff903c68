"""Words from tokens that stand for bytes, and words in the letters of tokens."""

import itertools
import unicodedata

import pytest

from espnet_bayeslm.decoding.token_words import BBPE_CODE, GPT2_CODE, TokenWords
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.utils.words import lower_case

MARK = "\u2581"
TEXT = "the café 灯 naïve Ελλάς 😀 they're x"


def coded(text, code):
    """Text in the letters of a code of bytes."""
    letters = {byte: letter for letter, byte in code.items()}
    return "".join(letters[byte] for byte in text.encode())


def cut(letters, size):
    """Parts of so many letters each."""
    return [letters[n : n + size] for n in range(0, len(letters), size)]


def fallback(word, size):
    """Pieces of a word by sentencepiece, whose letters are ASCII alone."""
    rows = [[x] if x.isascii() else [f"<0x{b:02X}>" for b in x.encode()] for x in word]
    return [MARK, *itertools.chain.from_iterable(rows)]


def bbpe(word, size):
    """Pieces of icefall's letters, cut anywhere."""
    return cut(MARK + coded(word, BBPE_CODE), size)


def gpt2(word, size):
    """Pieces of GPT-2's letters, cut anywhere."""
    return cut("\u0120" + coded(word, GPT2_CODE), size)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("pieces", [fallback, bbpe, gpt2])
def test_bytes_make_the_words_that_they_stand_for(pieces, size):
    cuts = [pieces(word, size) for word in TEXT.split()]
    tokens = ["<blk>", "<unk>", *dict.fromkeys(token for own in cuts for token in own), "<sos/eos>"]
    words = TokenWords(tokens)
    assert words.is_bytes
    ids = [[tokens.index(token) for token in own] for own in cuts]
    assert words.words([*itertools.chain.from_iterable(ids)]) == TEXT.split()
    for word, own in zip(TEXT.split(), ids, strict=True):
        assert words.letters(word) == "".join(words.texts[n] for n in own)
        assert words.word(words.letters(word)) == word and words.missing_letters(word) == ""
    assert words.missing_letters("étz") == "z"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_cut_letters_in_lower_case(size):
    """Wherever a letter is cut; the sharp s stays, the dotted capital I is i."""
    text = "STRAẞE Straße ÉTÉ İzmir ΆΛΦΑ"
    cuts = [gpt2(word, size) for word in text.split()]
    tokens = ["<pad>", *dict.fromkeys(token for own in cuts for token in own)]
    words = TokenWords(tokens, lower=True)
    ids = [tokens.index(token) for own in cuts for token in own]
    assert words.words(ids) == [*map(lower_case, text.split())]
    assert words.words(ids)[1] == "straße"


def test_letters_of_icefalls_bytes():
    """The code is that of its `byte_utils.py`."""
    assert coded("café", BBPE_CODE) == "cafũŏ" and coded("灯", BBPE_CODE) == "ƎĢŕ"
    assert len(BBPE_CODE) == len(GPT2_CODE) == 256
    assert coded("ï\n", GPT2_CODE) == "Ã¯Ċ"


@pytest.mark.parametrize(
    "text",
    [
        "děti šly žlutý příběh",
        "żółć gęś",
        "čaša žaba šuma đak ćup",
        "dağ ışık",
        "bošego gošoma šaba",
        "māja ķēķis",
        "the lamp",
    ],
)
@pytest.mark.parametrize("size", [1, 3])
def test_letters_of_other_languages_are_no_bytes(text, size):
    tokens = list(dict.fromkeys(p for word in text.split() for p in cut(MARK + word, size)))
    words = TokenWords(tokens)
    assert not words.is_bytes
    assert words.texts == [token.removeprefix(MARK) for token in tokens]


@pytest.mark.parametrize(
    "tokens, ids, expected",
    [
        # bytes that are no letter
        ([f"{MARK}a", "<0xE7>", "b"], (0, 1, 2, 0), ["a\ufffdb", "a"]),
        # the byte of a blank stands between words, with other pieces or by itself
        ([f"{MARK}a", "<0x20>", "b", "<0x09>"], (0, 1, 2, 3, 2), ["a", "b", "b"]),
        (["<pad>", "<0x20>", "<0x61>", "<0xC3>", "<0xA9>"], (2, 3, 4, 1, 2), ["aé", "a"]),
        (["<pad>", "|", "a", "<0xC3>", "<0xA9>"], (2, 3, 4, 1, 2), ["aé", "a"]),
        # each letter is a word: its bytes are one
        (["<blank>", "你", "<0xE7>", "<0x81>", "<0xAF>"], (1, 2, 3, 4, 1), ["你", "灯", "你"]),
        # Whisper's line feed
        (["\u0120a", "Ċ", "b"], (0, 1, 2), ["a", "b"]),
        # Moonshine's blanks
        (
            [f"{MARK}a", MARK * 2, "b", "\u3000", f"{MARK}\xa0", ",\r", "<0x20>"],
            (0, 1, 2, 3, 2, 4, 2, 5),
            ["a", "b", "b", "b,"],
        ),
    ],
)
def test_bytes_among_other_tokens(tokens, ids, expected):
    assert TokenWords(tokens).words(ids) == expected


def test_bytes_in_lower_case():
    words = TokenWords([f"{MARK}A", *(f"<0x{byte:02X}>" for byte in "É".encode())], lower=True)
    assert words.words([0, 1, 2]) == ["aé"]


@pytest.mark.parametrize(
    "tokens, word",
    [
        ("cafe\u0301", "café"),
        ("abâ\u0301", "bấ"),  # a base letter with its accent, and marks of tones
        ("\u1112\u1161\u11ab", "한"),
        ("caé", "cae\u0301"),
        ("\u0958a", "\u0958a"),  # NFC takes it apart
    ],
)
def test_words_are_written_in_the_tokens_letters(tokens, word):
    words = TokenWords(["<pad>", "|", *tokens])
    letters = words.letters(word)
    assert set(letters) <= set(tokens) and words.missing_letters(word) == ""
    assert unicodedata.normalize("NFC", letters) == unicodedata.normalize("NFC", word)
    assert words.missing_letters(word + "ñò").endswith("ñò")


def test_signs_that_stay_within_words():
    words = TokenWords(
        ["<pad>", "\u0120Castro", "'", "s", "'S", "\u0120'", ",", ".\u0120", "Ã", "-"]
    )
    spelled = words.normalised(Normalization("lower,punct").words)
    assert spelled.texts == ["", "castro", "'", "s", "'s", "", "", "", "\udcc3", ""]
    assert spelled.missing_letters("castro's") == ""

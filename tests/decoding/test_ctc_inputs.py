"""Inputs of a CTC search: tokens, the blank, logits and hotwords, in all their forms; bad ones."""

import json

import kaldiio
import numpy as np
import pytest

from espnet_bayeslm.decoding.ctc_lists import read_unigrams
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens, read_tokens
from espnet_bayeslm.decoding.hotwords import read_hotwords
from espnet_bayeslm.decoding.logits import log_probs_of, read_logits
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.utils.errors import InputError

MARK = "\u2581"


def words_of(words, *numbers):
    """Text that some tokens write."""
    text = ""
    for number in numbers:
        text += " " * words.opens[number] + words.texts[number]
    return text.split()


@pytest.mark.parametrize(
    "tokens, ids, expected",
    [
        # ESPnet's pieces, letters with <space>, wav2vec2, NeMo, BERT's pieces, no blanks at all
        (["<blank>", "<unk>", f"{MARK}a", "b", MARK, "<sos/eos>"], (2, 3, 4, 3), ["ab", "b"]),
        (["<blank>", "a", "<space>", "|", "b"], (1, 4, 2, 3, 1), ["ab", "|a"]),
        (["<pad>", "<s>", "</s>", "<unk>", "|", "A", "'"], (5, 6, 5, 4, 5), ["A'A", "A"]),
        ([" ", "a", "b"], (1, 2, 0, 0, 1), ["ab", "a"]),
        (["[PAD]", "go", "##ing", "##s"], (1, 2, 1, 3), ["going", "gos"]),
        (["<blank>", "\u4f60", "\u597d"], (1, 2), ["\u4f60", "\u597d"]),
        # a bar among pieces is a letter
        (["<blank>", f"{MARK}a", "|"], (1, 2), ["a|"]),
    ],
)
def test_tokens_make_words(tokens, ids, expected):
    assert words_of(TokenWords(tokens), *ids) == expected


def test_words_in_lower_case():
    words = TokenWords(["<pad>", "|", "A", "\u0130"], lower=True)
    assert words_of(words, 2, 3) == ["ai"]
    assert words.missing_letters("iaba") == "b" and words.missing_letters("A") == "A"


@pytest.mark.parametrize(
    "tokens, part",
    [
        (["<blank>", f"{MARK}of{MARK}the"], f"hold the end of a word within them, as '{MARK}of"),
        (["<blank>", "a b", " "], "as 'a b'"),
        (["<blank>", f"a{MARK}", f"{MARK}b", "c\r"], f"as 'a{MARK}'"),
        (["<blank>", f"{MARK}a", "c\r"], "as 'c\\r'"),
        (["<blank>", MARK, MARK * 2], "have no letters"),
        (["<blank>", "<sos/eos>", "<space>"], "have no letters"),
    ],
)
def test_tokens_that_make_no_words(tokens, part):
    with pytest.raises(InputError, match="make no words: they ") as error:
        TokenWords(tokens)
    assert part in str(error.value)


@pytest.mark.parametrize(
    "tokens, blank, place",
    [
        (["<blank>", "<pad>", "a", "|"], None, 0),
        (["<pad>", "a", "|"], None, 0),
        (["[UNK]", "a", "[PAD]", "|"], None, 2),
        (["a", "", " "], None, 1),
        (["-", "|", "a"], None, 0),
        (["_", "|", "a"], None, 0),
        ([" ", "a", "-"], None, 3),
        ([" ", "a", "b"], None, 3),
        ([" ", "a", "~"], "~", 2),
        (["a", "<PAD>", "|"], None, 1),
        (["<s>", "a", "[blank]", "<pad>"], None, 2),
        (["|", "a", "<|blank|>"], None, 2),
        (["|", "a", "blank"], None, 2),
        (["BLANK", "|", "a"], None, 0),
        (["|", "blank", "a"], None, 3),
        (["-", "<pad>", "a", "|"], None, 1),
    ],
)
def test_the_blank_is_found(tokens, blank, place):
    found = CTCTokens(tokens, blank)
    assert found.blank == place and found.spoken[place] and found.words.texts[place] == ""
    found.check_columns(max(len(tokens), place + 1))


def test_tokens_that_do_not_fit():
    with pytest.raises(InputError, match=r"3 columns, and 4 were expected.*--blank TOKEN"):
        CTCTokens([" ", "a", "b"]).check_columns(3)
    with pytest.raises(InputError, match=r"5 columns, and 4 .*is found.*add <blank>"):
        CTCTokens(["<pad>", " ", "a", "b"]).check_columns(5)
    with pytest.raises(InputError, match="'a' comes twice"):
        CTCTokens(["<pad>", " ", "a", "a"])
    with pytest.raises(InputError, match="--blank 'x' is none of the 3 tokens"):
        CTCTokens(["<pad>", " ", "a"], "x")


def winners(*columns, size):
    """Ln P of frames, each with a column that wins."""
    rows = np.random.default_rng(0).normal(0, 1, (len(columns), size))
    rows[np.arange(len(columns)), list(columns)] += 12.0
    return log_probs_of(rows)


@pytest.mark.parametrize(
    "tokens, best, name",
    [
        (["<s>", "<pad>", "</s>", "|", "a"], 0, "'<pad>'"),
        (["<blank>", "<unk>", "<|nospeech|>", "\u2581", "a"], 2, "'<blank>'"),
        (["<pad>", "<unk>", "|", "a"], 1, "'<pad>'"),
        (["<pad>", "<void>", "|", "a"], 1, "'<pad>'"),
        (["<pad>", "\u2205", "|", "a"], 1, "'<pad>'"),
        (["_", "[sil]", "|", "a"], 1, "'_'"),
        (["</s>", "|", "a", "b"], 0, "the last column"),
    ],
)
def test_another_token_that_seems_to_be_the_blank(tokens, best, name):
    """One that is no text and wins most frames; its name and the blank's are told."""
    found, letter = CTCTokens(tokens), tokens.index("a")
    wins = [best, letter, letter, best, letter, best, best]
    log_probs = winners(*wins, size=len(found.tokens))
    with pytest.raises(InputError) as error:
        found.fitted(log_probs)
    assert f"the token {tokens[best]!r}, which is no text, wins 4 of 7 frames" in str(error.value)
    assert f"the blank ({name}) 0" in str(error.value)
    # it is named, the blank wins too, or it wins one frame or two
    CTCTokens(tokens, tokens[best]).fitted(winners(*wins, size=len(tokens)))
    for others in ([*wins, found.blank], [best, letter, best]):
        found.fitted(winners(*others, size=len(found.tokens)))


@pytest.mark.parametrize(
    "tokens, best",
    [
        (["<pad>", "|", "a"], 1),
        (["<pad>", "<space>", "a"], 1),
        (["<pad>", "\u2581", "a"], 1),
        (["<pad>", "|", "a"], 2),
        (["<pad>", "\u2581a", "<0xC3>"], 2),
    ],
)
def test_tokens_of_text_are_not_taken_for_the_blank(tokens, best):
    CTCTokens(tokens).fitted(winners(best, best, best, best, size=len(tokens)))


@pytest.mark.parametrize(
    "tokens", [["<blk>", "\u2581a", "b", "#0", "#1"], ["|", "a", "[PAD]", "<s>", "</s>"]]
)
def test_tokens_at_the_end_that_have_no_column(tokens):
    found = CTCTokens(tokens)
    for missing in (0, 1, 2):
        log_probs = winners(0, 1, 2, size=len(tokens) - missing)
        fitted = found.fitted(log_probs)
        np.testing.assert_array_equal(fitted[:, : len(tokens) - missing], log_probs)
        assert fitted.shape[1] == len(tokens) and (fitted[:, len(tokens) - missing :] < -1e9).all()
    assert found.spoken[-2:] == [False, False] and all(found.spoken[:3])
    for size in (2, 6):
        with pytest.raises(InputError, match=f"{size} columns, and 5 were expected"):
            found.fitted(winners(0, size=size))


@pytest.mark.parametrize("unknown", ["[UNK]", "<unk>", "[unk]"])
@pytest.mark.parametrize("other", ["|", "<0xC3>"])
def test_unknown_text_is_written_as_a_mark(unknown, other):
    """As pyctcdecode and sentencepiece write it."""
    words = CTCTokens(["<pad>", unknown, "a", other]).words
    assert words.word(words.texts[2] + words.texts[1]) == "a\u2047"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("<blank>\n<unk>\na\n<space>\n", ["<blank>", "<unk>", "a", "<space>"]),
        ("<blk> 0\nA 2\n\u2581B 1\n", ["<blk>", "\u2581B", "A"]),
        (" \na\nb\n", [" ", "a", "b"]),
        ("[PAD]\na\n[UNK]\n", ["[PAD]", "a", "[UNK]"]),
        (json.dumps({"<pad>": 0, "|": 1, "a": 2}), ["<pad>", "|", "a"]),
        (json.dumps([" ", "a"]), [" ", "a"]),
        ("[PAD] 0\n| 1\na 2\n", ["[PAD]", "|", "a"]),
        ("[UNK]\n[PAD]\n|\n", ["[UNK]", "[PAD]", "|"]),
        ("{\n}\na\n", ["{", "}", "a"]),
        (json.dumps({"eng": {"<pad>": 0, "|": 1}}), ["<pad>", "|"]),
        (json.dumps({"labels": ["", " ", "a"], "is_bpe": False}, indent=1), ["", " ", "a"]),
    ],
)
def test_files_of_tokens(text, expected, tmp_path):
    (tmp_path / "tokens").write_text(text)
    assert read_tokens(tmp_path / "tokens") == expected


@pytest.mark.parametrize(
    "text, part",
    [
        ("", "no tokens"),
        ("a\nb c d\n", ":2: 'b c d' is no token"),
        ("a 0\nb 2\n", "no token has the id 1"),
        ("a 0\nb 0\n", "no token has the id 1"),
        ('{"a": 0, "b"', "not JSON"),
        ("[PAD] 0\n[UNK] 2\n", "no token has the id 1"),
        ('{\n "a": 0,\n "b"', "not JSON"),
        ('{"eng": {"a": 0}, "fra": {"b": 0}}', "vocabularies of 2 languages (eng, fra)"),
        ('{"eng": {"a": "b"}}', "tokens and ids were expected"),
        ("[1, 2]", "tokens and ids were expected"),
    ],
)
def test_bad_files_of_tokens(text, part, tmp_path):
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(InputError) as error:
        read_tokens(tmp_path / "tokens")
    assert part in str(error.value) and str(error.value).startswith(str(tmp_path / "tokens"))


def test_tokens_of_a_folder_and_added_ones(tmp_path):
    with pytest.raises(InputError, match=r"a folder without vocab.json or tokens.txt"):
        read_tokens(tmp_path)
    (tmp_path / "tokens.txt").write_text("<blk> 0\na 1\n")
    assert read_tokens(tmp_path) == ["<blk>", "a"]
    (tmp_path / "vocab.json").write_text(json.dumps({"|": 0, "a": 1, "[PAD]": 2}))
    added = tmp_path / "added_tokens.json"
    for content, expected in (({"</s>": 4, "<s>": 3}, ["<s>", "</s>"]), ({"a": 1}, [])):
        added.write_text(json.dumps(content))
        for path in (tmp_path, tmp_path / "vocab.json"):
            assert read_tokens(path) == ["|", "a", "[PAD]", *expected]
    for content, part in (
        ('{"<s>": 9}', "vocab.json: no token has the id 3"),
        ('["<s>"]', "added_tokens.json: tokens and ids were expected"),
        ('{"<s>"', "added_tokens.json: not JSON"),
    ):
        added.write_text(content)
        with pytest.raises(InputError, match=part):
            read_tokens(tmp_path)


def test_files_of_logits(tmp_path):
    arrays = {name: np.random.rand(n, 3).astype(np.float32) for n, name in ((4, "b"), (2, "a"))}
    np.savez(tmp_path / "x.npz", **arrays)
    kaldiio.save_ark(str(tmp_path / "x.ark"), arrays, scp=str(tmp_path / "x.scp"))
    kaldiio.save_ark(str(tmp_path / "text.ark"), arrays, text=True)
    for name in ("x.npz", "x.ark", "x.scp", "text.ark"):
        found = dict(read_logits(tmp_path / name))
        assert list(found) == ["b", "a"]
        for utt, logits in found.items():
            np.testing.assert_allclose(logits, arrays[utt], rtol=1e-6)


def test_bad_files_of_logits(tmp_path):
    def error(name, write):
        write(tmp_path / name)
        with pytest.raises(InputError) as error:
            list(read_logits(tmp_path / name))
        assert str(error.value).startswith(str(tmp_path / name)), error.value
        return str(error.value)

    assert "no such file" in error("none.npz", lambda path: None)
    assert ".npz, .ark, .scp was expected" in error("x.pt", lambda path: path.write_bytes(b"x"))
    assert "cannot be read" in error("x.npz", lambda path: path.write_bytes(b"PK damaged"))
    assert "cannot be read" in error("y.npz", lambda path: path.write_bytes(b"nothing"))
    assert "cannot be read" in error("x.ark", lambda path: path.write_bytes(b"u1 \0Bnothing"))
    assert "cannot be read" in error("x.scp", lambda path: path.write_text("u1 none.ark:3\n"))
    assert ":1: 'cat x |' is no archive" in error(
        "p.scp", lambda path: path.write_text("a cat x |")
    )
    kaldiio.save_ark(str(tmp_path / "whole.ark"), {"a": np.zeros((9, 9), np.float32)})
    whole = (tmp_path / "whole.ark").read_bytes()
    for size in range(1, len(whole)):
        if size < 20 or size % 50 == 0:
            error("cut.ark", lambda path, size=size: path.write_bytes(whole[:size]))
    assert "no utterance" in error("z.npz", lambda path: np.savez(path))
    assert "no utterance" in error("z.ark", lambda path: path.write_bytes(b""))
    objects = np.array([{}], dtype=object)
    assert "cannot be read" in error("o.npz", lambda path: np.savez(path, u1=objects))
    with open(tmp_path / "one.npz", "wb") as f:
        np.save(f, np.zeros((2, 3)))
    with pytest.raises(InputError, match="without ids"):
        list(read_logits(tmp_path / "one.npz"))


@pytest.mark.parametrize(
    "logits, part",
    [
        (np.zeros((0, 3)), "0 frames x 3 tokens"),
        (np.zeros((2, 3, 4)), "2x3x4 of float64"),
        (np.array([["a"]]), "an array 1x1 of <U1"),
        ([[1.0], [1.0, 2.0]], "an array no of object"),
        ([[0.0, np.nan], [0.0, 1.0]], "logit of frame 0 is nan"),
        ([[0.0, 1.0], [0.0, np.inf]], "logit of frame 1 is inf"),
        ([[0.0, 1.0], [-np.inf, -np.inf]], "logit of frame 1 is -inf"),
        (np.zeros((3, 2)), "all tokens are alike in each of the 3 frames"),
    ],
)
def test_bad_logits(logits, part):
    with pytest.raises(InputError) as error:
        log_probs_of(logits)
    assert part in str(error.value)


@pytest.mark.parametrize("value", [0.0, -100.0, 1e-10, np.log(1 / 5), 7.0])
@pytest.mark.parametrize("form", ["logits", "ln P", "probabilities"])
def test_frames_that_say_nothing_are_left_out(form, value):
    """As padding after, before and between frames does: all tokens are alike."""
    logits = np.random.default_rng(0).normal(0, 3, (6, 5))
    expected = log_probs_of(logits)
    rows = {"logits": logits, "ln P": expected, "probabilities": np.exp(expected)}[form]
    nothing = np.full((4, 5), value) * (1 + 1e-8 * np.arange(5))  # rounded
    for parts in ([rows, nothing], [nothing, rows], [rows[:2], nothing, rows[2:], nothing]):
        for dtype, error in ((np.float64, 1e-9), (np.float32, 1e-5)):
            found = log_probs_of(np.concatenate(parts).astype(dtype))
            np.testing.assert_allclose(found, expected, atol=error)


@pytest.mark.parametrize("total", [0.03, 0.85, 0.995, 1.005, 1.09])
def test_probabilities_that_do_not_quite_sum_to_one(total):
    expected = log_probs_of(np.random.default_rng(0).normal(0, 3, (6, 5)))
    np.testing.assert_allclose(log_probs_of(np.exp(expected) * total), expected, atol=1e-9)
    # logits of any sum, and ln P, are normalised
    np.testing.assert_allclose(log_probs_of(expected + np.log(total)), expected, atol=1e-9)
    logits = np.random.default_rng(1).uniform(0, 1, (6, 9))
    np.testing.assert_allclose(log_probs_of(logits), log_probs_of(logits - 5), atol=1e-9)


def test_files_of_hotwords(tmp_path):
    (tmp_path / "hot").write_text("new york :2.5\ntea\t7\n\nroute 66\na:b\n")
    words = TokenWords(["<pad>", "|", *"abeknortuwyw6:i"])
    found = read_hotwords(tmp_path / "hot", 4.0, words)
    phrases = ("new york", "tea", "route 66", "a:b", "66")
    totals = {phrase: found.total(phrase.split()) for phrase in phrases}
    assert totals == {"new york": 5.0, "tea": 7.0, "route 66": 8.0, "a:b": 4.0, "66": 0.0}


@pytest.mark.parametrize(
    "text, part",
    [
        ("tea\nteA\n", ":2: the hotword 'teA' has 'A', and no token has such letters."),
        ("tea :x\n", ":1: the weight 'x' is no number"),
        ("tea :-1\n", ":1: the hotword 'tea' has the weight -1"),
        (" :3\n", ":1: the hotword '' has the weight 3"),
        ("\n", "no hotwords"),
    ],
)
def test_bad_hotwords(text, part, tmp_path):
    (tmp_path / "hot").write_text(text)
    with pytest.raises(InputError) as error:
        read_hotwords(tmp_path / "hot", 4.0, TokenWords(["<pad>", "|", *"aet"]))
    assert part in str(error.value)
    if "teA" in text:
        assert "Write them in lower case" in str(error.value)


def test_files_of_known_words(tmp_path):
    (tmp_path / "words").write_text("a 3\n\nb\n")
    assert read_unigrams(tmp_path / "words") == ["a", "b"]
    (tmp_path / "words").write_text("\n")
    with pytest.raises(InputError, match="no words"):
        read_unigrams(tmp_path / "words")

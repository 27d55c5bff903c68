"""Word errors and alignments against naive ones; how errors are counted, and the laws of counts."""

import dataclasses
import gzip
import itertools
import logging
import unicodedata

import kaldialign
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.alignments import best_splits, edit_distance

import espnet_bayeslm
from espnet_bayeslm.evaluation.markup import parse_markup
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import (
    NO_WORDS,
    SUBSTITUTION,
    UNPAIRED,
    Counted,
    Counting,
    CountingOptions,
    ErrorCounts,
    align,
    check_same_utterances,
    count_errors,
    oracle_errors,
    read_transcripts,
    read_word_list,
    warn_without_blanks,
    word_errors,
)
from espnet_bayeslm.utils.errors import InputError

WORDS = st.lists(st.sampled_from(["a", "b", "B", "be"]), max_size=7)
COUNTS = st.builds(
    lambda s, d, i, correct: ErrorCounts(s, d, i, s + d + correct), *[st.integers(0, 50)] * 4
)


@given(ref=WORDS, hyp=WORDS)
def test_word_errors_are_a_best_alignment(ref, hyp):
    counts = word_errors(ref, hyp)
    assert counts.errors == edit_distance(ref, hyp)
    assert (counts.substitutions, counts.deletions, counts.insertions) in best_splits(
        tuple(ref), tuple(hyp)
    )
    assert counts.words == len(ref)


@given(a=COUNTS, b=COUNTS, c=COUNTS)
def test_counts_add(a, b, c):
    assert a + b == b + a and (a + b) + c == a + (b + c) and a + NO_WORDS == a
    assert (a + b).errors == a.errors + b.errors and (a + b).words == a.words + b.words
    # pooled, not averaged
    assert (a + b).rate * (a + b).words == pytest.approx(a.errors + b.errors) or not (a + b).words


def test_counts_check_themselves():
    for values in ((-1, 0, 0, 3), (0, -1, 0, 3), (0, 0, -1, 3), (0, 0, 0, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            ErrorCounts(*values)
    with pytest.raises(ValueError, match="more reference words are wrong"):
        ErrorCounts(2, 2, 0, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        NO_WORDS.words = 1
    with pytest.raises(TypeError):
        NO_WORDS + 1


@given(lists=st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=4)), max_size=4))
def test_oracle_is_the_brute_force_minimum(lists):
    refs = {f"u{n}": ref for n, (ref, _) in enumerate(lists)}
    nbests = {f"u{n}": hyps for n, (_, hyps) in enumerate(lists)}
    counts = oracle_errors(refs, nbests)
    fewest = [min(edit_distance(ref, hyp) for hyp in hyps) for ref, hyps in lists]
    assert counts.errors == sum(fewest)
    assert counts.words == sum(len(ref) for ref, _ in lists)
    first = count_errors(refs, {utt: hyps[0] for utt, hyps in nbests.items()})
    assert counts.errors <= first.errors


def test_utterances_must_be_the_same():
    check_same_utterances(["a", "b"], ["b", "a"])
    with pytest.raises(InputError) as error:
        check_same_utterances(["a", "b", "c"], ["c", "x"], ref_path="ref.txt", hyp_path="hyp.txt")
    message = str(error.value)
    assert message.startswith("hyp.txt: 2 utterances, 3 in ref.txt")
    assert "2 utterances have no hypothesis (first: 'a')" in message
    assert "1 utterances have no reference (first: 'x')" in message
    for function in (count_errors, oracle_errors):
        with pytest.raises(InputError, match="have no hypothesis"):
            function({"a": ["x"]}, {})


@pytest.mark.parametrize("name", ["text", "ref.txt", "x.trn", "trn", "x.trn.gz"])
def test_transcripts_of_both_formats(tmp_path, name):
    rows = {"spk-u_1": ("well", "(uh)", "yes"), "u-2": ()}
    with (gzip.open if name.endswith(".gz") else open)(tmp_path / name, "wt") as f:
        for utt, words in rows.items():
            line = (*words, f"({utt})") if "trn" in name else (utt, *words)
            f.write(" ".join(line) + "\n")
    assert read_transcripts(tmp_path / name) == rows


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("text", "", r"text: no utterances"),
        ("text", "a x\n\n", r"text:2: an empty line"),
        ("text", "a x\nb y\na z\n", r"text:3: the key 'a' stands already in line 1"),
        ("ref.trn", "", r"ref.trn: no utterances"),
        ("ref.trn", "x (a)\nx y\n", r"ref.trn:2: got 'x y' where"),
        ("ref.trn", "x (a)\n\n", r"ref.trn:2: got ''"),
        ("ref.trn", "x ()\n", r"ref.trn:1: got"),
        ("ref.trn", "x (a)\ny (a)\n", r"ref.trn:2: the utterance 'a' comes twice"),
    ],
)
def test_bad_transcripts_are_named_by_file_and_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_transcripts(tmp_path / name)


ALIGNED = st.lists(st.sampled_from(["a", "b", "c", "be"]), max_size=10)


def cost(pairs):
    return sum(UNPAIRED if None in pair else SUBSTITUTION * (pair[0] != pair[1]) for pair in pairs)


@settings(max_examples=100)
@given(ref=ALIGNED, hyp=ALIGNED)
def test_an_alignment_holds_both_texts_at_the_lowest_cost(ref, hyp):
    aligned = align(ref, hyp)
    assert [a for a, _ in aligned if a is not None] == ref
    assert [b for _, b in aligned if b is not None] == hyp
    assert (None, None) not in aligned
    reference = kaldialign.align(ref, hyp, "*", sclite_mode=True)
    assert cost(aligned) == cost([[None if w == "*" else w for w in pair] for pair in reference])


@pytest.mark.parametrize(
    "ref, hyp, letters",
    [
        ("", "", ""),
        ("a b", "", "DD"),
        ("", "a b", "II"),
        ("a b c", "a b c", "CCC"),
        ("a b c", "a x c", "CSC"),
        # what sclite makes of ties
        ("a b c d e", "a c b d e", "CDCICC"),
        ("a a a b a", "a a a a b", "CCCDCI"),
        ("v a b c z", "v x y a z", "CSSSC"),
        ("a b", "b", "DC"),
        ("a a", "a", "DC"),
        ("a", "a a", "IC"),
    ],
)
def test_alignments_by_hand(ref, hyp, letters):
    aligned = align(ref.split(), hyp.split())
    kinds = ["I" if a is None else "D" if b is None else "CS"[a != b] for a, b in aligned]
    assert "".join(kinds) == letters


def test_any_word_can_be_aligned():
    aligned = align(["", "-1", "<eps>"], ["", "*", "None", "<eps>"])
    assert aligned == [("", ""), (None, "*"), ("-1", "None"), ("<eps>", "<eps>")]
    assert align(("a",), ["a"]) == [("a", "a")]


NOISE = ("[laugh]", "!SIL")


@pytest.mark.parametrize(
    "ref, hyp, counts",
    [
        ("我喜欢一本书", "我喜欢一本数", (1, 0, 0, 6)),
        ("我 喜欢 一本书", "我喜欢 一本书", (0, 0, 0, 6)),  # blanks are no characters
        ("re\u0301 a", "r\u00e9a", (0, 0, 0, 3)),  # NFC first
        ("कि", "क", (0, 1, 0, 2)),  # a vowel sign is a character
        ("", "ab", (0, 0, 2, 0)),
    ],
)
def test_characters(ref, hyp, counts):
    found = Counting("char").errors(ref.split(), hyp.split())
    assert (found.substitutions, found.deletions, found.insertions, found.words) == counts


@pytest.mark.parametrize("unit", ["word", "char"])
def test_letters_and_accents_may_be_written_apart(unit):
    texts = [unicodedata.normalize(form, "Việt é ñ 한국 { ü / u }") for form in ("NFC", "NFD")]
    refs = [parse_markup(text) for text in texts]
    for ref, text in itertools.product(refs, texts):
        hyp = text.replace("{ ", "").split(" /")[0].split()
        assert Counting(unit).errors(ref, hyp).errors == 0


def test_words_that_do_not_count():
    counting = Counting(ignored=frozenset(NOISE))
    assert counting.units(("[laugh]", "red", "!SIL", "kite")) == ("red", "kite")
    assert counting.errors(("!SIL",), ("[laugh]",)).words == 0
    marked = parse_markup("a { [laugh] / b !SIL } ([laugh]) c")
    assert counting.units(marked) == parse_markup("a { @ / b } c")
    assert Counting("char", counting.ignored).units(("ab", "!SIL")) == ("a", "b")
    steps = Normalization("lower,punct", kept=counting.ignored)
    many = ("[laugh]", "Yes,") * 2000
    assert steps.words(many) == ("[laugh]", "yes") * 2000
    words = steps.words(("Well,", "[laugh]", "!SIL", "SIL!", "it's"))
    assert words == ("well", "[laugh]", "!SIL", "sil", "it's")
    assert counting.units(words) == ("well", "sil", "it's")


def test_the_line_below_a_table_has_every_field():
    version = espnet_bayeslm.__version__
    assert str(Counted()) == (
        "counted: words; normalisation none; ignored none; text form none; tuned on none;"
        f" espnet_bayeslm {version}"
    )
    forms = {"a": "lower,newline,blank", "b": "as_is", "c": "lower,newline,blank"}
    assert str(Counted("char", ("lower", "punct"), ("<unk>", "[laugh]"), forms, "dev.text")) == (
        "counted: chars; normalisation lower,punct; ignored <unk>, [laugh];"
        " text form lower,newline,blank (a, c), as_is (b); tuned on dev.text;"
        f" espnet_bayeslm {version}"
    )


def test_word_lists(tmp_path):
    options = CountingOptions(unit="char", ignore_words=["!SIL", "[laugh]"])
    assert options.counting == Counting("char", frozenset(NOISE))
    path = tmp_path / "noise"
    path.write_text("[laugh]\n\n<SPOKEN_NOISE>\r\n")
    assert read_word_list(path) == {"[laugh]", "<SPOKEN_NOISE>"}
    path.write_text("[laugh]\nuh huh\n")
    with pytest.raises(InputError, match="noise:2: 'uh huh' has 2 words, where one was expected"):
        CountingOptions(ignore_words=path).counting  # noqa: B018
    path.write_text("\n")
    with pytest.raises(InputError, match="noise: no words"):
        read_word_list(path)
    with pytest.raises(InputError, match="--unit byte: no such unit"):
        Counting("byte")


@pytest.mark.parametrize(
    "texts, warned",
    [
        (["我喜欢一本书", "他听说新的房子"], True),
        (["これはペンです", "", "はい そうです"], False),
        (["これはペンです", "", "テスト"], True),
        (["forward", "left", "right"], False),
        (["我 喜欢 一本 书"], False),
        (["a" * 50], True),
        ([], False),
    ],
)
def test_lines_without_blanks(caplog, texts, warned):
    caplog.set_level(logging.WARNING)
    lines = {str(n): tuple(text.split()) for n, text in enumerate(texts)}
    warn_without_blanks(lines, Counting("char"))
    assert not caplog.messages
    warn_without_blanks(lines, Counting())
    assert any("--unit char" in message for message in caplog.messages) == warned

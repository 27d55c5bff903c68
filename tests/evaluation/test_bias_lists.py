"""Bias lists: phrases that hypotheses hold, against trying everything; files, good and bad."""

import functools
import gzip
import json
import pickle
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.evaluation.bias_lists import (
    BiasList,
    BiasLists,
    BiasState,
    read_bias,
    warn_of_text,
)
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.utils.errors import InputError


def bias_of(*phrases, **weights):
    return BiasList([*((phrase, None) for phrase in phrases), *weights.items()])


@pytest.mark.parametrize(
    "phrases, text, held",
    [
        ("kite", "a kite and a kite", ["kite"]),  # each once
        ("new york/york/new", "york in new york", ["york", "new york"]),  # the longest
        ("new york/new york city", "new york new york city", ["new york", "new york city"]),
        ("a b/b c d", "a b c d", ["a b"]),  # from the left
        ("a b c d/b", "a b c", ["b"]),  # whole phrases only
        ("a b/b", "a b a b", ["a b"]),  # no word in two, not even of one that counted before
        ("a b c", "a b", []),
        ("", "a", []),
        ("a", "", []),
        ("caf\u00e9", "cafe\u0301", ["caf\u00e9"]),
        ("  new   york ", "new york", ["new york"]),
    ],
)
def test_phrases_by_hand(phrases, text, held):
    bias = bias_of(*phrases.split("/"))
    assert list(bias.held(text.split())) == held
    assert bias.total(text.split()) == len(held)


WORDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)


@given(phrases=st.lists(WORDS, max_size=6), text=st.lists(st.sampled_from("abcd"), max_size=12))
def test_every_phrase_is_tried(phrases, text):
    expected, place = [], 0
    while place < len(text):
        here = [p for p in phrases if text[place : place + len(p)] == p]
        longest = max(here, key=len, default=[""])
        expected += [" ".join(longest)] if here else []
        place += len(longest)
    bias = bias_of(*map(" ".join, phrases))
    assert list(bias.held(text)) == list(dict.fromkeys(expected))
    assert bias.words == {word for phrase in phrases for word in phrase}


@given(
    phrases=st.lists(WORDS, max_size=6, unique_by=tuple),
    text=st.lists(st.sampled_from("abcd"), max_size=12),
)
def test_word_by_word_the_total_is_that_of_the_whole(phrases, text):
    bias = BiasList((" ".join(p), n / 8 or None) for n, p in enumerate(phrases))
    state = BiasState()
    for n, word in enumerate(text, 1):
        state = bias.after(state, word)
        assert bias.total_at(state) == bias.total(text[:n])
        assert state.held <= {*bias.held(text)}  # whatever follows
        # what waits is as long as it has to be
        assert not state.begun or any(
            tuple(p[: len(state.begun)]) == state.begun and len(p) > len(state.begun)
            for p in phrases
        )


@given(phrases=st.lists(WORDS, max_size=5), texts=st.lists(WORDS, min_size=3, max_size=3))
def test_equal_states_go_on_alike(phrases, texts):
    bias = bias_of(*map(" ".join, phrases))

    def reached(state, words):
        return functools.reduce(bias.after, words, state)

    first, second = (reached(BiasState(), words) for words in texts[:2])
    gains = [bias.total((*words, *texts[2])) - bias.total(words) for words in texts[:2]]
    assert first != second or gains[0] == gains[1]
    assert reached(first, texts[2]) == reached(BiasState(), (*texts[0], *texts[2]))


def test_words_in_a_state_by_hand():
    bias = bias_of("new york", "new york city", "cafe\u0301")
    state = bias.after(BiasState(), "new")
    assert state == BiasState(frozenset(), ("new",)) and bias.total_at(state) == 0
    state = bias.after(state, "york")  # it may become the city
    assert state == BiasState(frozenset(), ("new", "york")) and bias.total_at(state) == 1
    assert bias.after(state, "new") == BiasState(frozenset({"new york"}), ("new",))
    assert bias.after(state, "city") == BiasState(frozenset({"new york city"}))
    assert bias.after(BiasState(), "caf\u00e9").held == {"caf\u00e9"}


def test_weights_and_laws_of_a_list():
    bias = BiasList([("kite", 2.5), ("new york", None), ("x", 0.0), ("kite", 2.5)])
    assert bias.total(("a", "kite", "in", "new", "york", "x")) == 3.5
    assert dict(bias.weights) == {"kite": 2.5, "new york": None, "x": 0.0} and len(bias) == 3
    assert bias.words == {"kite", "new", "york", "x"}
    with pytest.raises(TypeError):
        bias.weights["kite"] = 3.0
    with pytest.raises(AttributeError):
        bias.other = 1
    for item in (bias, bias_of("kite")):
        copy = pickle.loads(pickle.dumps(item))
        assert copy == item and hash(copy) == hash(item) and copy.words == item.words
    assert bias != bias_of("kite", "new york", "x") and bias != "kite"
    assert not BiasList() and not BiasLists().all and BiasLists().of("u") == BiasList()


def test_a_longer_list_takes_no_more_steps():
    """Lines of Python that are run, with phrases that begin alike."""
    text = ("call", "anna", "w1", "and", "tell", "w1", "w2")

    def steps(size):
        names = [f"{first}w{n}" for n in range(size) for first in ("", "call ", "w1 ", "anna ")]
        bias, lines = bias_of(*names), 0

        def trace(frame, event, arg):
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        held = bias.held(text)
        sys.settrace(before)
        assert held == ("anna w1", "w1 w2")
        return lines

    assert steps(10) == steps(3000)


JSON = '{"utt": "u1", "words": ["Kite", "New  York"]}\n\n{"utt": "u2", "words": []}\n'
PLAIN = "Kite\n\nNew York\t2.5\nkite\n"
BOTH = {"kite": None, "new york": None}


@pytest.mark.parametrize(
    "text, utts, lists, shared",
    [
        (JSON, (), {"u1": BOTH, "u2": {}}, {}),
        ("\n  " + JSON, ("u1", "u2"), {"u1": BOTH, "u2": {}}, {}),
        (
            '{"utt": "u", "words": {"KITE": 3, "a b": null}}',
            (),
            {"u": {"kite": 3, "a b": None}},
            {},
        ),
        ("u1 Kite York\nu2\n", ("u1", "u2"), {"u1": {"kite": None, "york": None}, "u2": {}}, {}),
        ("u1 Kite York\n", (), {}, {"u1 kite york": None}),  # nobody knows that u1 is none
        (PLAIN, ("u1", "u2"), {}, {"kite": None, "new york": 2.5}),
        ("?\nkite\t0", (), {}, {"kite": 0.0}),  # a mark alone has no words
        ("", ("u1",), {}, {}),
    ],
)
@pytest.mark.parametrize("opener", [open, gzip.open])
def test_forms_of_a_file(tmp_path, text, utts, lists, shared, opener):
    with opener(tmp_path / "bias", "wt", encoding="utf-8") as f:
        f.write(text)
    bias = read_bias(tmp_path / "bias", Normalization("lower,punct"), utts=utts)
    assert {utt: dict(item.weights) for utt, item in bias.lists.items()} == lists
    assert dict(bias.shared.weights) == shared
    assert dict(bias.of("none of them").weights) == shared


@pytest.mark.parametrize(
    "text, message",
    [
        ("kite\tx", "bias:1: the weight 'x' of 'kite' is no number. Give a number, or none."),
        ("a\nkite\t1\t2", "bias:2: the weight '1\\t2' of 'kite' is no number"),
        ("kite\tnan", "bias:1: 'kite' has the weight nan: a finite number from 0 was expected"),
        ("kite\tinf", "'kite' has the weight inf"),
        ("kite\t-1", "'kite' has the weight -1"),
        ("kite\t1\nKITE\t2", "bias: the phrase 'kite' has two weights, 1 and 2. Keep one of them."),
        ("kite\nKITE\t2", "bias: the phrase 'kite' has two weights, none and 2."),
        ("u1 a\nu1 b", "bias:2: the utterance 'u1' comes twice. Join its lists."),
        ('{"utt": "u1", "words": {"a": 1, "A": 2}}', "bias:1: the phrase 'a' has two weights"),
        ('{"utt": "u1"}', 'bias:1: expected {"utt": .., "words": [..]}, got \'{"utt": "u1"}\' (no'),
        ('{"utt": "u1", "words": "a"}', "not all of them are texts"),
        ('{"utt": "u1", "words": ["a", 1]}', "not all of them are texts"),
        ('{"utt": "u1", "words": [["a"]]}', "bias:1: expected "),
        ('{"utt": 1, "words": []}', "not all of them are texts"),
        ('{"utt": "u1", "words": {"a": []}}', "the weight [] of 'a' is no number"),
        ('{"utt": "u1"\n', "bias:1: expected "),
        ('{"utt": "u1", "words": {"a": 1' + "0" * 400 + "}}", "of 'a' is no number"),
        ('{"utt": "v", "words": []}', "bias: none of its 1 utterances (first: 'v') is among the 2"),
    ],
)
def test_files_that_are_refused(tmp_path, text, message):
    (tmp_path / "bias").write_text(text)
    with pytest.raises(InputError) as error:
        read_bias(tmp_path / "bias", Normalization("lower"), utts=["u1", "u2"])
    assert message in str(error.value)


def test_another_encoding_is_refused(tmp_path):
    (tmp_path / "bias").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(InputError, match="bias:1: not UTF-8 text"):
        read_bias(tmp_path / "bias")


def test_what_is_told_of_a_file(tmp_path, caplog):
    caplog.set_level("INFO")
    rows = [{"utt": utt, "words": ["o", "\u6797", "3", "kite"]} for utt in ("u1", "v", "w")]
    (tmp_path / "bias").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read_bias(tmp_path / "bias", utts=["u1", "u2", "u3"])
    assert [line.removeprefix(str(tmp_path)) for line in caplog.messages] == [
        "/bias: 2 utterances have no bias list (first: 'u2'); 2 bias lists are of other utterances"
        " (first: 'v')",
        "/bias: 1 phrases of the bias lists are one letter, such as 'o': is it a word?",
    ]
    caplog.clear()
    (tmp_path / "bias").write_text("kite\nred kite\n")
    read_bias(tmp_path / "bias", utts=["u1"])
    (line,) = caplog.messages
    assert line.endswith("/bias: one bias list of 2 phrases for all utterances")


def test_lists_in_another_case_than_the_text_are_told(caplog):
    text = [("call", "anna", "Smith")]
    for words, told in ((("Anna", "Bob"), True), (("Anna", "Smith"), False), (("Bob",), False)):
        caplog.clear()
        warn_of_text(BiasLists(shared=bias_of(*words)), text)
        assert bool(caplog.messages) == told
        if told:
            (line,) = caplog.messages
            assert line.startswith("the bias lists have 1 words") and "'Anna'" in line


def test_lists_of_common_words_are_told(caplog):
    # 40 common words, 20 times each, are just more than half of the text
    common = [f"c{n}" for n in range(40)]
    text = [*(common for _ in range(20)), [f"rare{n}" for n in range(799)]]
    for held, told in ((3, False), (4, True)):
        lists = {"u": bias_of(*common[:held], "rare1"), "v": bias_of("rare2"), "w": BiasList()}
        caplog.clear()
        warn_of_text(BiasLists(lists), text)
        assert bool(caplog.messages) == told
    assert caplog.messages[0].startswith(
        "1 of 2 bias lists hold a tenth or more of the 40 commonest words, such as 'c0': they"
    )
    caplog.clear()
    warn_of_text(BiasLists(shared=bias_of("anna", "smith")), [("call", "anna", "smith")])
    warn_of_text(BiasLists(shared=bias_of("anna")), [])
    assert not caplog.messages  # too little text to say which words are common

"""Bias lists in a search: totals are those of whole texts, shares those of all phrases."""

import itertools
import random

import pytest

from espnet_bayeslm.decoding.bias_search import (
    BiasTokens,
    BiasTree,
    PhraseNode,
    check_letters,
)
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.utils.errors import InputError

LETTERS = TokenWords(["<pad>", "|", *"abcé"])
BYTES = TokenWords(["<blank>", "Ġa", "b", "c", "Ã", "©", "ab", "Ġb", "Ġ"])
ACCENTS = TokenWords(["<pad>", "|", *"abce", "\u0301"])
PIECES = TokenWords("<blank> <unk> ▁ ▁a ▁b ▁ab a b c ab é bc <sos/eos>".split())  # noqa: SIM905
TOKENS = {"letters": LETTERS, "bytes": BYTES, "accents": ACCENTS, "pieces": PIECES}
WORDS = ["a", "b", "ab", "abc", "é", "aé"]


def random_list(rng, *, size=8):
    """Return a list with phrases that overlap, or begin others, some with weights of their own."""
    phrases = {" ".join(rng.choices(WORDS, k=rng.choice([1, 1, 2, 3]))) for _ in range(size)}
    return BiasList((p, rng.choice([None, 0.0, 0.5, 2.5])) for p in sorted(phrases))


def state_of(tree, words):
    state = tree.begin()
    for word in words:
        state = state.after(word)
    return state


@pytest.mark.parametrize("sort", TOKENS)
def test_totals_are_those_of_the_words(sort):
    rng, found = random.Random(1), 0.0
    for _ in range(100):
        bias = random_list(rng)
        tree = BiasTree(bias, TOKENS[sort])
        for _ in range(10):
            words = rng.choices([*WORDS, "x", "e\u0301"], k=rng.randint(0, 8))
            state = state_of(tree, words)
            assert state.total == pytest.approx(bias.total(words)), (bias.weights, words)
            found += state.total
    assert found > 1000


def best_share(bias, words, letters, tokens):
    """Return the gain of letters of a next word, by trying each phrase at each place."""
    now = best = bias.total(words)
    place = 0
    while place <= len(words):  # places where a phrase may begin, and goes on beyond the words
        before, said = words[:place], words[place:]
        for phrase, weight in bias.weights.items():
            parts = phrase.split()
            lacks = any(tokens.missing_letters(part) for part in parts)
            goes_on = len(parts) > len(said) and parts[: len(said)] == said
            if lacks or phrase in bias.held(before) or not goes_on:
                continue
            own = [tokens.letters(part) for part in parts]
            if own[len(said)].startswith(letters):
                size = sum(map(len, own[: len(said)])) + len(letters)
                rate = (1.0 if weight is None else weight) / sum(map(len, own))
                best = max(best, bias.total(before) + rate * size)
        size = next((n for n in range(len(said), 0, -1) if " ".join(said[:n]) in bias.weights), 1)
        place += size
    return best - now


@pytest.mark.parametrize("sort", TOKENS)
def test_letters_gain_the_most_that_a_phrase_may_yet_pay(sort):
    rng, gains, tokens = random.Random(2), 0, TOKENS[sort]
    for _ in range(60):
        bias = random_list(rng)
        tree = BiasTree(bias, tokens)
        for _ in range(10):
            words = rng.choices(WORDS, k=rng.randint(0, 5))
            state = state_of(tree, words)
            for letters in ("", *(tokens.letters(w)[:n] for w in WORDS for n in (1, 2, 3))):
                expected = best_share(bias, words, letters, tokens)
                assert state.ahead(letters) == pytest.approx(expected), (bias.weights, words)
                gains += expected > 0
    assert gains > 1000


def test_a_phrase_gains_by_its_letters_once():
    tree = BiasTree(BiasList([("ab abc", 5.0), ("b", None)]), LETTERS)
    state = tree.begin()
    assert [state.ahead(letters) for letters in ("", "a", "ab", "aba", "b")] == [0, 1, 2, 0, 1]
    state = state.after("ab")
    assert state.total == 0 and state.has_begun and not state.marks
    assert [state.ahead(letters) for letters in ("", "a", "abc", "c", "b")] == [2, 3, 5, 0, 1]
    state = state.after("abc")
    assert state.total == 5 and state.ahead("ab") == 0
    state = state.after("ab").after("abc").after("b").after("b")
    assert state.total == 6 and state.ahead("b") == 0


@pytest.mark.parametrize("sort", TOKENS)
@pytest.mark.parametrize("steps", ["", "lower"])
def test_tokens_gain_as_their_letters_do(sort, steps):
    """Each next token, whatever was said: all at once, or one by one."""
    rng, words = random.Random(3), TOKENS[sort].normalised(Normalization(steps).words)
    tokens = BiasTokens(words)
    for _ in range(40):
        tree = BiasTree(random_list(rng), words)
        state = state_of(tree, rng.choices(WORDS, k=rng.randint(0, 4)))
        letters = words.letters(rng.choice(["", *WORDS]))
        after = state.after(words.word(letters)) if letters else state
        for _ in range(2):  # once more, from what is kept
            totals = tokens.totals(state, letters, after)
            for token, (opens, text) in enumerate(zip(words.opens, words.texts, strict=True)):
                new, own = (after, text) if opens else (state, letters + text)
                assert totals[token] == pytest.approx(new.total + new.ahead(own))


def test_tokens_in_other_case_are_heard_as_words_are_normalised():
    words = TokenWords(["<blank>", "▁AN", "NA", "▁an", "<sos/eos>"])
    spelled = words.normalised(Normalization("lower,punct").words)
    assert spelled.texts[1:4] == ["an", "na", "an"] and words.texts[1] == "AN"
    state = BiasTree(BiasList([("anna", 4.0)]), spelled).begin()
    assert BiasTokens(spelled).totals(state, "", state).tolist() == [0, 2, 0, 2, 0]
    euro = TokenWords(["<0xE2>", "<0x82>", "<0xAC>", "A", " "]).normalised(
        Normalization("lower").words
    )
    assert euro.texts == ["\udce2", "\udc82", "\udcac", "a", ""]


def test_a_step_makes_the_nodes_of_its_letters_alone(monkeypatch):
    """And a step that comes again none, however long the list is."""
    made, init = [], PhraseNode.__init__
    monkeypatch.setattr(PhraseNode, "__init__", lambda *args: made.append(init(*args)))
    digits = ["".join(word) for word in itertools.product("abcdefghij", repeat=4)]
    state = BiasTree(BiasList((word, None) for word in digits), TokenWords([" ", *"abcdefghij"]))
    state = state.begin()
    assert state.ahead("aba") == 0.75
    assert len(made) == 1 + 3 * 10
    assert state.ahead("aba") == state.after("ccc").ahead("aba") == 0.75
    assert state.after("abcd").total == 1 and len(made) == 1 + 7 * 10


def test_phrases_that_no_token_writes_are_told_once(caplog):
    some = BiasLists({"u": BiasList([("anna", None), ("ab", None)])}, BiasList([("ünal", 1.0)]))
    check_letters(some, LETTERS)
    assert len(caplog.records) == 1
    assert "2 of the 3 phrases of the bias lists have letters that no token has, as 'anna' (n)" in (
        caplog.text
    )
    # they attract no hypothesis
    assert BiasTree(BiasList([("ax", 1.0)]), LETTERS).begin().ahead("a") == 0
    with pytest.raises(InputError, match=r"1 of the 1 phrases .* as 'AB' .AB.") as caught:
        check_letters(BiasLists(shared=BiasList([("AB", None)])), LETTERS)
    assert "in lower case" in str(caught.value)
    check_letters(BiasLists(), LETTERS)
    assert BiasTokens(LETTERS).totals(*_empty()).tolist() == [0.0] * 6


def _empty():
    state = BiasTree(BiasList(), LETTERS).begin()
    return state, "", state.after("a")

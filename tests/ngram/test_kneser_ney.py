import itertools
import random
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import ngrams as oracle
from oracles.ngrams import largest_difference, read_arpa

from espnet_bayeslm.ngram.estimation import (
    FALLBACK,
    build_ngram,
    closed_form_discounts,
    count_ngrams,
    estimate_discounts,
    estimate_ngram,
    read_corpus,
    write_arpa,
)
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.errors import InputError

WORDS = st.sampled_from("abcd")
TEXTS = st.lists(st.lists(WORDS, max_size=6), min_size=1, max_size=8).filter(any)
ORDERS = st.integers(1, 4)


def corpus_of(tmp_path, sentences):
    path = tmp_path / "text"
    path.write_text("".join(" ".join(words) + "\n" for words in sentences))
    return read_corpus(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kneser_ney")


def test_discounts_of_known_counts_of_counts():
    # y = 10 / (10 + 2 * 5) = 1/2
    discounts = closed_form_discounts(np.array([7, 10, 5, 4, 3]))
    np.testing.assert_allclose(discounts, [0, 1 - 5 / 10, 2 - 1.5 * 4 / 5, 3 - 2 * 3 / 4])
    with pytest.raises(ValueError, match="none has adjusted count 2"):
        closed_form_discounts(np.array([0, 10, 0, 4, 3]))
    with pytest.raises(ValueError, match="adjusted count 2 is -4, outside 0 to 2"):
        closed_form_discounts(np.array([0, 10, 5, 20, 3]))


@pytest.mark.parametrize("order", [4, 6])
def test_order_beyond_every_sentence(tmp_path, order):
    # lmplz too writes empty sections, and KenLM reads them
    corpus = corpus_of(tmp_path, [["a"]])
    with open(tmp_path / "a.arpa", "wb") as f:
        counts = write_arpa(corpus, f, order=order, discount_fallback=True)
    assert counts == [4, 2, 1, *[0] * (order - 3)]
    assert NgramScorer(tmp_path / "a.arpa").order == order


@settings(max_examples=40)
@given(sentences=TEXTS, order=ORDERS)
def test_equals_the_definition(folder, sentences, order):
    corpus = corpus_of(folder, sentences)
    tables = count_ngrams(corpus, order=order)
    discounts = [FALLBACK * (1 - 0.1 * k) for k in range(order)]
    probs, _ = estimate_ngram(tables, discounts=discounts)
    counts = oracle.raw_counts(sentences, order)
    vocabulary = set(corpus.words) - {"<s>"}
    seen = {(word,) for word in corpus.words} | set(counts)
    assert sum(len(table.raw) for table in tables) == len(seen)
    for table, prob in zip(tables, probs, strict=True):
        for row, ids in enumerate(table.words):
            ngram = tuple(corpus.words[i] for i in ids)
            if ngram == ("<s>",):
                continue
            assert table.adjusted[row] == oracle.adjusted_count(counts, order, ngram)
            expected = oracle.probability(
                counts, order, ngram[:-1], ngram[-1], discounts=discounts, vocabulary=vocabulary
            )
            assert prob[row] == pytest.approx(expected, rel=1e-12)


def test_discounts_equal_the_definition(data):
    # the highest order only: below it lmplz files its last n-gram under another count
    corpus = read_corpus(data / "reference.txt")
    for order in (1, 2, 3, 4):
        tables = count_ngrams(corpus, order=order)
        expected = oracle.discounts(tables[-1].raw.tolist())
        np.testing.assert_allclose(estimate_discounts(tables)[-1], expected, rtol=1e-12)


# of ARPA files that lmplz made (tools/lmplz_reference.sh): 7 digits, computed in float32
TOLERANCE = 1e-4


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("discount_fallback", [False, True])
def test_equals_lmplz(data, tmp_path, order, discount_fallback):
    options = {"order": order, "discount_fallback": discount_fallback, "lmplz": "none"}
    counts = build_ngram(data / "reference.txt", tmp_path / "ours.arpa", **options)
    # lmplz files the last n-gram below the highest order under its raw count: `zebra`, once after
    # `know` and three times in all, would move the discounts by more than the tolerance
    reference = read_arpa(data / f"reference_{order}.arpa.gz")
    assert sum(counts) == len(reference)
    assert largest_difference(read_arpa(tmp_path / "ours.arpa"), reference) < TOLERANCE


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_equals_lmplz_with_fallback_discounts(data, tmp_path, order):
    text, arpa = data / "tiny.txt", tmp_path / "ours.arpa"
    with pytest.raises(InputError, match=r"cannot estimate the discounts.*--discount_fallback"):
        build_ngram(text, arpa, order=order, lmplz="none")
    assert not any(tmp_path.iterdir())
    build_ngram(text, arpa, order=order, discount_fallback=True, lmplz="none")
    reference = read_arpa(data / f"tiny_fallback_{order}.arpa.gz")
    assert largest_difference(read_arpa(arpa), reference) < TOLERANCE


@pytest.mark.skipif(shutil.which("lmplz") is None, reason="lmplz is not installed")
@pytest.mark.parametrize("seed", range(8))
def test_equals_lmplz_on_random_text(tmp_path, seed):
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(rng.choice([6, 40, 120]))]
    weights = [1 / (i + 1) for i in range(len(words))]
    lines = [" ".join(rng.choices(words, weights, k=rng.randint(0, 8))) for _ in range(100)]
    lines += ["w1 new w0"] * rng.randint(1, 4)
    (tmp_path / "text").write_text("\n".join(lines))
    arpas = {lmplz: tmp_path / f"{lmplz}.arpa" for lmplz in ("none", "lmplz")}
    options = {"order": rng.randint(1, 4), "discount_fallback": bool(rng.randint(0, 1))}
    outcomes = set()
    for lmplz, arpa in arpas.items():
        try:
            build_ngram(tmp_path / "text", arpa, lmplz=lmplz, **options)
            outcomes.add("estimated")
        except InputError as error:
            assert "cannot estimate the discounts" in str(error)
            outcomes.add("refused")
    assert len(outcomes) == 1
    if outcomes == {"estimated"}:
        assert largest_difference(*map(read_arpa, arpas.values())) < TOLERANCE


@settings(max_examples=20)
@given(sentences=TEXTS, order=st.integers(2, 4))
def test_each_context_sums_to_one_in_kenlm(folder, sentences, order):
    corpus = corpus_of(folder, sentences)
    with open(folder / "model.arpa", "wb") as f:
        write_arpa(corpus, f, order=order, discount_fallback=True)
    scorer = NgramScorer(folder / "model.arpa")
    words = corpus.words[3:]
    contexts = [list(c) for n in range(order) for c in itertools.product(words, repeat=n)][:30]
    for context in contexts:
        after = [*words, "unseen"]
        (end,) = scorer.word_scores([context])
        scores = scorer.word_scores([[*context, word] for word in after])
        log_probs = [end.log_probs[-1], *(score.log_probs[len(context)] for score in scores)]
        # float32 inside KenLM and 7 digits in the file
        assert np.exp(log_probs).sum() == pytest.approx(1, abs=1e-5)

import math

import kenlm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.lmplz_arpa import read_arpa

from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.utils.errors import InputError

WORDS = st.sampled_from(["thank", "you", "know", "zebra", "nowhere", "of", "course"])


@pytest.fixture(scope="module")
def scorer(model_path):
    return NgramScorer(model_path)


@settings(max_examples=50)
@given(sentences=st.lists(st.lists(WORDS, max_size=7), max_size=4))
def test_equals_kenlm_full_scores(scorer, model_path, sentences):
    model = kenlm.Model(str(model_path))
    scored = scorer.word_scores(sentences)
    assert len(scored) == len(sentences)
    for words, scores in zip(sentences, scored, strict=True):
        full = list(model.full_scores(" ".join(words)))
        np.testing.assert_array_equal(scores.oov, [oov for *_, oov in full])
        assert scores.log_probs.dtype == np.float64
        expected = [log10_prob * math.log(10) for log10_prob, *_ in full]
        np.testing.assert_allclose(scores.log_probs, expected, rtol=1e-12)
        total = model.score(" ".join(words)) * math.log(10)
        assert scores.log_probs.sum() == pytest.approx(total, rel=1e-5)  # a float32 sum


@pytest.mark.parametrize("content", [b"", b"hello\n", bytes(range(128, 256)) * 20])
def test_malformed_file(tmp_path, content):
    path = tmp_path / "bad.arpa"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.arpa: not an n-gram that KenLM can read"):
        NgramScorer(path)


def test_no_file(data):
    with pytest.raises(InputError, match=r"nosuch\.arpa: no such n-gram file"):
        NgramScorer(data / "nosuch.arpa")


def test_a_unigram_model_equals_its_file(data):
    scorer = NgramScorer(data / "reference_1.arpa.gz")
    entries = read_arpa(data / "reference_1.arpa.gz")
    words = sorted(word for (word,) in entries if word not in ("<s>", "</s>", "<unk>"))
    (scores,) = scorer.word_scores([words])
    expected = [entries[word,][0] for word in [*words, "</s>"]]
    np.testing.assert_allclose(scores.log_probs / math.log(10), expected, rtol=1e-6)
    assert scorer.order == 1 and not scores.oov.any()

"""A mixture scores words alike as sentences, from prefixes, and as its components by themselves."""

import numpy as np
import pytest
from mixtures import mixture_of
from pretrained.tiny_models import write_model

from espnet_bayeslm.bin.ngram import main as build
from espnet_bayeslm.loading.component_options import ComponentOptions, SubtractOptions
from espnet_bayeslm.mixture import Mixture, MixtureOptions
from espnet_bayeslm.scoring import END, WordScorer, WordScores
from espnet_bayeslm.utils.errors import InputError

TEXT = "so we could put it there\nyes we could\nthe remote is on the table\nso so\n"
SENTENCES = [line.split() for line in TEXT.splitlines()] + [[], ["remote", "table"]]


@pytest.fixture(scope="module")
def ngrams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngrams")
    (folder / "text").write_text(TEXT)
    for order in (2, 3):
        words = f"--text {folder}/text --order {order} --arpa {folder}/{order}gram.arpa"
        build([*words.split(), "--discount_fallback", "true"])
    return [str(folder / f"{order}gram.arpa") for order in (3, 2)]


def from_prefixes(mixture, words):
    """Ln p of each word and of the end, one after the other."""
    state, found = mixture.begin(), []
    for word in [*words, END]:
        found += mixture.next_words([state], [word]).tolist()
        state = mixture.after(state, word)
    return found


@pytest.mark.parametrize("less", [None, -0.5])
def test_words_have_one_score(ngrams, less):
    """As the formula has it: ln of the weighted sum, and ln p of what is subtracted, weighted."""
    options = dict(ngrams=ngrams, weights=[0.6, 0.4])
    if less is None:
        mixture = Mixture.load(MixtureOptions(**options))
    else:
        more = dict(subtract_lms=ngrams[1:], subtract_weights=[less])
        mixture = Mixture.load(SubtractOptions(**options, **more))
    first, second, *others = mixture.each(SENTENCES)
    for n, scores in enumerate(mixture.word_scores(SENTENCES)):
        expected = np.log(0.6 * np.exp(first[n].log_probs) + 0.4 * np.exp(second[n].log_probs))
        expected += sum(less * own[n].log_probs for own in others)
        np.testing.assert_allclose(scores.log_probs, expected)
        np.testing.assert_allclose(from_prefixes(mixture, SENTENCES[n]), expected, atol=1e-6)
    facts = mixture.facts
    assert facts.names == ["3gram", "2gram"] and facts.weights.tolist() == [0.6, 0.4]
    assert [row.weight for row in facts.subtracted] == ([] if less is None else [less])
    assert len(facts.digests) == len(mixture.every) and facts.signature.startswith("{'3gram'")


def test_a_component_that_is_not_asked_for_weights(ngrams):
    """Components stand by themselves until weights are known, and mixing them is refused."""
    mixture = Mixture.load(ComponentOptions(ngrams=ngrams))
    assert len(mixture.each(SENTENCES)) == 2 and mixture.weights is None
    with pytest.raises(InputError, match="without weights"):
        mixture.word_scores(SENTENCES)
    with pytest.raises(InputError, match="no --weights for the 2 components 3gram, 2gram"):
        Mixture.load(MixtureOptions(ngrams=ngrams))


def test_sentences_are_read_by_themselves_unless_a_context_is_asked_for(tmp_path):
    model = f"hf:{write_model(tmp_path / 'model')}"
    given = MixtureOptions(lms=[model], text_form="lower")
    alone = Mixture.load(given).word_scores(SENTENCES)
    for words, scores in zip(SENTENCES, alone, strict=True):
        (expected,) = Mixture.load(given).word_scores([words])
        np.testing.assert_allclose(scores.log_probs, expected.log_probs, atol=1e-4)
    in_context = Mixture.load(given, context=1).word_scores(SENTENCES)
    assert abs(in_context[1].log_probs - alone[1].log_probs).max() > 1e-3


class Knows(WordScorer):
    """An n-gram that knows some words."""

    name = "few"

    def __init__(self, *words):
        self.words = words

    def unknown(self, words):
        return [word not in self.words for word in words]

    def word_scores(self, sentences):
        oov = [np.array([*self.unknown(words), False]) for words in sentences]
        return [WordScores(-np.ones(len(own)), own) for own in oov]


@pytest.mark.parametrize("scored", [False, True])
def test_unknown_words_are_counted_for_each_component(scored, caplog):
    caplog.set_level("INFO")
    mixture, lines = mixture_of(Knows("a", "b"), Knows("b", "c")), [["a", "b"], ["d", "b"]]
    assert mixture.unknown(["a", "b", "c", "d"]) == [False, False, False, True]
    check = (
        (lambda: mixture.each(lines, checked=True))
        if scored
        else (lambda: mixture.check_words(lines))
    )
    check()
    told = [message.split(" (")[0] for message in caplog.messages]
    assert told == ["x0 does not know 1 of 4 words", "x1 does not know 2 of 4 words"]
    mixture.max_oov_rate = 0.4
    with pytest.raises(InputError, match="x1 does not know 2 of 4 words"):
        check()

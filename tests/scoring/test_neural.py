"""Words from tokens: every type of token, with ESPnet's own tokenizers."""

import dataclasses
from typing import Any, Callable

import numpy as np
import pytest
import sentencepiece
import torch
from espnet2.text.build_tokenizer import build_tokenizer
from espnet2.text.token_id_converter import TokenIDConverter

from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.scoring import NeuralScorer, token_log_probs
from espnet_bayeslm.scoring.sequences import extend, score_in_context
from espnet_bayeslm.utils.errors import InputError

TEXT = "the cat sat on the mat\nthe dog sat on the cat\na dog and a cat met on a mat\n" * 4
TEXTS = ("the cat sat", "", "a", "mat the the", "the zebra sat", "qqq")
SENTENCES = [text.split() for text in TEXTS]
TYPES = ("word", "bpe", "char")


@dataclasses.dataclass
class Trained:
    """An LM that nobody trained, with a tokenizer of ESPnet's."""

    lm: Any
    token_list: list
    token_type: str
    tokenize: Callable
    ids: Callable
    name: str = "tiny"


def make(token_type, folder, **conf):
    """Return an LM over the words, pieces or characters of TEXT."""
    model = None
    if token_type == "bpe":
        (folder / "text").write_text(TEXT)
        model = f"{folder}/bpe"
        options = {"vocab_size": 20, "model_type": "bpe", "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(
            input=f"{folder}/text", model_prefix=model, **options
        )
        model += ".model"
        processor = sentencepiece.SentencePieceProcessor(model)
        pieces = [processor.id_to_piece(n) for n in range(processor.vocab_size())]
        symbols = [piece for piece in pieces if not piece.startswith("<")]
    else:
        symbols = sorted({*TEXT.split()} if token_type == "word" else {*TEXT} - {*" \n"})
        symbols += ["<space>"] * (token_type == "char")
    tokens = ["<blank>", "<unk>", *symbols, "<sos/eos>"]
    torch.manual_seed(0)
    lm = BayesLSTMLM(len(tokens), unit=8, dropout_rate=0.0, **conf)
    tokenizer = build_tokenizer(token_type, bpemodel=model, space_symbol="<space>")
    converter = TokenIDConverter(tokens, unk_symbol="<unk>")
    return Trained(lm, tokens, token_type, tokenizer.text2tokens, converter.tokens2ids)


@pytest.fixture(params=TYPES)
def trained(request, tmp_path):
    return make(request.param, tmp_path)


def log_ends(scorer, ids):
    """Return ln P(a token that opens a word, or `</s>`) after token ids."""
    lm = scorer.trained.lm.eval()
    logits = lm(torch.tensor([[lm.vocab_size - 1, *ids]]), None)[0][0, -1]
    return logits.log_softmax(0)[scorer.openings].logsumexp(0).item()


def test_the_tokens_of_a_sentence_are_shared_out_to_its_words(trained):
    """Each word takes as many tokens as it has when it stands in the same place."""
    scorer = NeuralScorer(trained, max_tokens=30)
    for words, scores in zip(SENTENCES, scorer.word_scores(SENTENCES), strict=True):
        ends = [len(trained.tokenize(" ".join(words[: n + 1]))) for n in range(len(words))]
        ids = trained.ids(trained.tokenize(" ".join(words))) if words else []
        (tokens,) = token_log_probs(trained.lm, [ids])
        parts = np.split(tokens, ends)
        expected = np.array([part.sum() for part in parts])
        if trained.token_type != "word" and words:
            # the end of a word is in its own score
            after = [log_ends(scorer, ids[:end]) for end in ends]
            expected += np.array([*after, 0.0]) - np.array([0.0, *after])
        np.testing.assert_allclose(scores.log_probs, expected, atol=1e-5)
        assert scores.oov.shape == scores.log_probs.shape
        assert scorer.token_counts(words).tolist() == [len(part) for part in parts]


def test_unknown_words_are_flagged(trained):
    scored = NeuralScorer(trained).word_scores(SENTENCES)
    flags = [np.flatnonzero(scores.oov).tolist() for scores in scored]
    assert flags == [[], [], [], [], [1], [0]]


@pytest.mark.parametrize(
    "tokenize, found",
    [
        (lambda text: text.split()[1:], 2),  # drops a word
        (lambda text: list(text.replace(" ", "")), 11),  # splits words
    ],
)
def test_pieces_that_do_not_fit_the_words_are_an_error(tmp_path, tokenize, found):
    trained = dataclasses.replace(make("word", tmp_path), tokenize=tokenize)
    scorer = NeuralScorer(trained)
    for function in (lambda words: scorer.word_scores([words]), scorer.token_counts):
        with pytest.raises(InputError) as error:
            function(["the", "dogs", "sang"])
        message = str(error.value)
        assert f"'the dogs sang' has 3 words, and {found} word tokens" in message
        assert message.startswith("tiny: ") and "normalise the text" in message


def test_a_word_that_sentencepiece_drops_has_log_prob_0(tmp_path):
    """A zero-width space is a word to us and nothing to sentencepiece."""
    scorer = NeuralScorer(make("bpe", tmp_path))
    gone = "\u200b"
    sentences = [[gone, "the", gone, "cat", gone], ["the", "cat"], [gone], []]
    dropped, whole, only, empty = (scores.log_probs for scores in scorer.word_scores(sentences))
    np.testing.assert_array_equal(dropped[[0, 2, 4]], 0)
    np.testing.assert_allclose(dropped[[1, 3, 5]], whole, atol=1e-5)
    np.testing.assert_allclose(only, [0, *empty], atol=1e-5)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"token_type": "phn"}, "its tokens are of type 'phn', not word, bpe, char"),
        ({"token_list": ["<blank>", "a", "<sos/eos>"]}, "no <unk>"),
        ({"token_list": ["<blank>", "<unk>", "a"]}, "ends in 'a', not in <sos/eos>"),
        ({"token_list": ["<blank>", "<unk>", "<sos/eos>"]}, r"has 3 tokens, the LM \d+"),
    ],
)
def test_token_lists_that_cannot_be_used(tmp_path, change, message):
    trained = dataclasses.replace(make("word", tmp_path), **change)
    with pytest.raises(InputError, match=rf"the LM 'tiny' cannot score words: .*{message}"):
        NeuralScorer(trained)


def test_words_in_context_are_those_of_the_tokens(trained):
    scorer = NeuralScorer(trained)
    histories = scorer.extended([None, None], [["the", "cat", "sat"], []])
    histories = scorer.extended(histories, [["a", "dog"], ["the", "cat"]])
    found = scorer.scores_in_context([SENTENCES[:5], SENTENCES[5:]], histories)
    assert [len(group) for group in found] == [5, 1]

    def ids(words):
        return trained.ids(trained.tokenize(" ".join(words))) if words else []

    before = extend(trained.lm, [None], [ids(["the", "cat", "sat"])])
    before = extend(trained.lm, before, [ids(["a", "dog"])])
    sequences = [ids(words) for words in SENTENCES[:5]]
    (expected,) = score_in_context(trained.lm, [sequences], before)
    alone = scorer.word_scores(SENTENCES)
    for words, scores, tokens, other in zip(SENTENCES, found[0], expected, alone, strict=False):
        assert scores.log_probs.shape == (len(words) + 1,)
        assert scores.log_probs.sum() == pytest.approx(tokens.sum(), abs=1e-5)
        assert scores.oov.tolist() == other.oov.tolist()


def test_the_uncertainty_of_words(tmp_path):
    bayes = {"cell_input@1": {"kind": "bayes", "init_std": 0.5}}
    trained = make("bpe", tmp_path, uncertainty=bayes)
    scorer = NeuralScorer(trained, num_samples=3)
    found = scorer.uncertainty(SENTENCES)
    for words, values, scores in zip(SENTENCES, found, scorer.word_scores(SENTENCES), strict=True):
        np.testing.assert_allclose(values.log_probs, scores.log_probs, atol=1e-5)
        for name in ("entropy", "mutual_information", "variance"):
            assert getattr(values, name).shape == (len(words) + 1,)

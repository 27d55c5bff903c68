"""Words from tokens: every type of token, with ESPnet's own tokenizers, and unknown words."""

import dataclasses
import itertools
import math
from collections import Counter
from functools import partial
from typing import Any, Callable

import numpy as np
import pytest
import sentencepiece
import torch
from espnet2.text.build_tokenizer import build_tokenizer
from espnet2.text.token_id_converter import TokenIDConverter

from espnet_bayeslm.lm import BayesLSTMLM, MixtureLM
from espnet_bayeslm.loading.trained_lm import LoadedLM
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.scoring import token_log_probs
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.reader import opening_tokens, tokens_of_words
from espnet_bayeslm.scoring.scorer import token_scorer
from espnet_bayeslm.scoring.tree_lm import ESPnetTreeLM
from espnet_bayeslm.scoring.unknown_words import ZIPF_SHARE, unknown_words, usual_unk_size
from espnet_bayeslm.scoring.word_scores import END, WordScorer, WordScores
from espnet_bayeslm.utils.errors import InputError

TEXT = "the cat sat on the mat\nthe dog sat on the cat\na dog and a cat met on a mat\n" * 4
TEXTS = ("the cat sat", "", "a", "mat the the", "the zebra sat", "qqq")
SENTENCES = [text.split() for text in TEXTS]
NEW = ("zebra", "qqq")
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

    def encode(self, words):
        """Return the token ids of words."""
        return self.ids(self.tokenize(" ".join(words))) if words else []


def over_ids(lm, **options):
    """Return the scorer of an LM whose words are its token ids."""
    tokens = [*map(str, range(ESPnetTreeLM(lm).vocab_size - 1)), "<unk>"]
    ids = lambda words: [*map(int, words)]  # noqa: E731
    return token_scorer(Trained(lm, tokens, "word", str.split, ids), **options)


def as_words(groups):
    """Return groups of sequences of token ids as words."""
    return [[[*map(str, ids)] for ids in group] for group in groups]


def score_in_context(lm, groups, histories, **options):
    """Return ln p of the tokens and `</s>` of hypotheses, given the recording before."""
    found = over_ids(lm, **options).scores_in_context(as_words(groups), histories)
    return [[scores.log_probs for scores in group] for group in found]


def extend(lm, histories, chosen, **options):
    """Return histories after one more utterance of each recording."""
    return over_ids(lm, **options).extended(histories, as_words([chosen])[0])


def train_pieces(folder, lines, **options):
    """Return the path of a sentencepiece model of some lines."""
    (folder / "text").write_text("\n".join(lines))
    files = {"input": f"{folder}/text", "model_prefix": f"{folder}/pieces"}
    sentencepiece.SentencePieceTrainer.train(**files, minloglevel=2, **options)
    return f"{folder}/pieces.model"


def make(token_type, folder, **conf):
    """Return an LM over the words, pieces or characters of TEXT."""
    model = None
    if token_type == "bpe":
        model = train_pieces(folder, TEXT.splitlines(), vocab_size=20, model_type="bpe")
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


def test_the_tokens_of_a_sentence_are_shared_out_to_its_words(trained):
    """Each word takes as many tokens as it has when it stands in the same place."""
    scorer = token_scorer(trained, max_tokens=30)
    for words, scores in zip(SENTENCES, scorer.word_scores(SENTENCES), strict=True):
        ends = [len(trained.tokenize(" ".join(words[: n + 1]))) for n in range(len(words))]
        ids = trained.encode(words)
        (tokens,) = token_log_probs(trained.lm, [ids])
        parts = np.split(tokens, ends)
        expected = np.array([part.sum() for part in parts])
        if trained.token_type != "word" and words:
            # the end of a word is in its own score
            starts = [torch.tensor([[trained.lm.vocab_size - 1, *ids[:end]]]) for end in ends]
            last = [trained.lm(start, None)[0][0, -1].log_softmax(0) for start in starts]
            after = [row[scorer.reader.openings].logsumexp(0).item() for row in last]
            expected += np.array([*after, 0.0]) - np.array([0.0, *after])
        np.testing.assert_allclose(scores.log_probs, expected, atol=1e-5)
        assert scores.oov.shape == scores.log_probs.shape
        assert scorer.token_counts(words).tolist() == [len(part) for part in parts]
        assert np.flatnonzero(scores.oov).tolist() == [n for n, w in enumerate(words) if w in NEW]


class Loaded(LoadedLM):
    def __init__(self, trained):
        self._scorer = lambda num_samples: token_scorer(trained, num_samples=num_samples)


def test_a_loaded_lm_scores_at_its_mean_or_by_samples(tmp_path):
    trained = make("word", tmp_path, uncertainty={"all_gates@*": "bayes"}, init_std=0.5)
    loaded = Loaded(trained)
    for given, num_samples in (({}, 0), ({"num_samples": 2}, 2)):
        expected = token_scorer(trained, num_samples=num_samples).word_scores(SENTENCES)
        found = loaded.word_scores(SENTENCES, **given)
        for words, a, b in zip(SENTENCES, found, expected, strict=True):
            np.testing.assert_array_equal(a.log_probs, b.log_probs)
            assert loaded.score(words, **given) == pytest.approx(b.log_probs.sum(), abs=1e-5)


@pytest.mark.parametrize(
    "tokenize, found",
    [
        (lambda text: text.split()[1:], 2),  # drops a word
        (lambda text: list(text.replace(" ", "")), 11),  # splits words
    ],
)
def test_pieces_that_do_not_fit_the_words_are_an_error(tmp_path, tokenize, found):
    trained = dataclasses.replace(make("word", tmp_path), tokenize=tokenize)
    scorer = token_scorer(trained)
    for function in (lambda words: scorer.word_scores([words]), scorer.token_counts):
        with pytest.raises(InputError) as error:
            function(["the", "dogs", "sang"])
        message = str(error.value)
        assert f"'the dogs sang' has 3 words, and {found} word tokens" in message
        assert message.startswith("tiny: ") and "normalise the text" in message


def test_a_word_that_sentencepiece_drops_has_log_prob_0(tmp_path):
    """A zero-width space is a word to us and nothing to sentencepiece."""
    scorer = token_scorer(make("bpe", tmp_path))
    gone = "\u200b"
    sentences = [[gone, "the", gone, "cat", gone], ["the", "cat"], [gone], []]
    dropped, whole, only, empty = (scores.log_probs for scores in scorer.word_scores(sentences))
    np.testing.assert_array_equal(dropped[[0, 2, 4]], 0)
    np.testing.assert_allclose(dropped[[1, 3, 5]], whole, atol=1e-5)
    np.testing.assert_allclose(only, [0, *empty], atol=1e-5)


def test_words_in_context_are_those_of_the_tokens(trained):
    scorer = token_scorer(trained)
    histories = scorer.extended([None, None], [["the", "cat", "sat"], []])
    histories = scorer.extended(histories, [["a", "dog"], ["the", "cat"]])
    found = scorer.scores_in_context([SENTENCES[:5], SENTENCES[5:]], histories)
    assert [len(group) for group in found] == [5, 1]
    before = extend(trained.lm, [None], [trained.encode(["the", "cat", "sat"])])
    before = extend(trained.lm, before, [trained.encode(["a", "dog"])])
    sequences = [trained.encode(words) for words in SENTENCES[:5]]
    (expected,) = score_in_context(trained.lm, [sequences], before)
    alone = scorer.word_scores(SENTENCES)
    for words, scores, tokens, other in zip(SENTENCES, found[0], expected, alone, strict=False):
        assert scores.log_probs.shape == (len(words) + 1,)
        assert scores.log_probs.sum() == pytest.approx(tokens.sum(), abs=1e-5)
        assert scores.oov.tolist() == other.oov.tolist()


def test_the_uncertainty_of_words(tmp_path):
    bayes = {"cell_input@1": {"kind": "bayes", "init_std": 0.5}}
    trained = make("bpe", tmp_path, uncertainty=bayes)
    scorer = token_scorer(trained, num_samples=3)
    found = scorer.uncertainty(SENTENCES)
    for words, values, scores in zip(SENTENCES, found, scorer.word_scores(SENTENCES), strict=True):
        np.testing.assert_allclose(values.log_probs, scores.log_probs, atol=1e-5)
        for name in ("entropy", "mutual_information", "variance"):
            assert getattr(values, name).shape == (len(words) + 1,)


MARK = "\u2581"
TOKENS = {
    "bpe": ["<blank>", "<unk>", MARK + "a", MARK + "c", "b", "d", "<sos/eos>"],
    "char": ["<blank>", "<unk>", "b", "d", "<space>", "<sos/eos>"],
}
# b and d are rare, so that long words add less than the tolerance
LONGEST = 6


def tokenize(token_type, text):
    if token_type == "char":
        return [{" ": "<space>"}.get(c, c) for c in text]
    return [token for word in text.split() for token in (MARK + word[0], *word[1:])]


def small_scorer(token_type, num_samples):
    """Return the scorer of an LM of double precision that does not use `<unk>`."""
    tokens = TOKENS[token_type]
    torch.manual_seed(0)
    bayes = {"cell_input@1": {"kind": "bayes", "init_std": 0.5}}
    lm = BayesLSTMLM(len(tokens), unit=4, nlayers=1, dropout_rate=0.0, uncertainty=bayes)
    lm = lm.double().eval()
    bias = {"<blank>": -40.0, "<unk>": -40.0, "b": -4.0, "d": -4.0}
    with torch.no_grad():
        lm.decoder.bias.copy_(torch.tensor([bias.get(token, 0.0) for token in tokens]))
    ways = (lambda text: tokenize(token_type, text), lambda found: [*map(tokens.index, found)])
    return token_scorer(Trained(lm, tokens, token_type, *ways), num_samples=num_samples)


def next_probs(scorer, tokens):
    """Return p of each token after tokens, averaged over the weight samples, by forward passes."""
    lm = scorer.lm.lm
    ids = torch.tensor([[lm.vocab_size - 1, *scorer.lm.ids(tokens)]])
    found = []
    for sample in scorer.tree_lm.samples(scorer.num_samples):
        with sample:
            found.append(lm(ids, None)[0][0, -1].softmax(0))
    return torch.stack(found).mean(0).numpy()


@pytest.mark.parametrize("num_samples", [0, 3])
@pytest.mark.parametrize("before", [[], ["X"], ["Xb", "X"]])
@pytest.mark.parametrize("token_type", ["bpe", "char"])
def test_the_words_after_a_prefix_sum_to_one(token_type, before, num_samples):
    """The missing mass is the probability of tokens that do not continue any text."""
    scorer = small_scorer(token_type, num_samples)
    firsts = ["a", "c"] if token_type == "bpe" else ["b", "d"]
    ends = ("".join(x) for n in range(LONGEST + 1) for x in itertools.product("bd", repeat=n))
    words = [first + end for end in ends for first in firsts]
    before = [word.replace("X", words[0]) for word in before]
    sentences = [[*before, word] for word in words]
    n = len(before)
    found = [scores.log_probs for scores in scorer.word_scores(sentences)]
    end = scorer.word_scores([before])[0].log_probs[n]
    total = np.exp([log_probs[n] for log_probs in found]).sum() + np.exp(end)

    tokens = tokenize(token_type, " ".join(before))
    p = next_probs(scorer, tokens)
    opens = scorer.reader.openings.numpy()
    if token_type == "char":
        # an empty word: two spaces
        space = TOKENS["char"].index("<space>")
        after = next_probs(scorer, [*tokens, "<space>"])[opens].sum()
        missing = p[space] * after / p[opens].sum() if before else p[space]
    else:
        missing = 0.0 if before else 1 - p[opens].sum()
    assert total + missing == pytest.approx(1, abs=1e-6)

    # the same in a recording and in a lattice
    (group,) = scorer.scores_in_context([sentences], [None])
    np.testing.assert_allclose([scores.log_probs for scores in group], found, atol=1e-9)
    state = scorer.begin()
    for word in before:
        state = scorer.after(state, word)
    row = scorer.next_words([state] * (len(words) + 1), [*words, END])
    np.testing.assert_allclose(row, [*(x[n] for x in found), end], atol=1e-9)


def test_opening_tokens():
    assert opening_tokens(["<unk>", "a", "<sos/eos>"], "word") is None
    assert opening_tokens(TOKENS["bpe"], "bpe").nonzero().flatten().tolist() == [2, 3, 6]
    assert opening_tokens(TOKENS["char"], "char").nonzero().flatten().tolist() == [4, 5]
    # pieces that end with a blank, or go on after one
    for piece in ("a" + MARK, f"{MARK}a{MARK}b"):
        assert opening_tokens(["<unk>", MARK, piece, "<sos/eos>"], "bpe") is None


# characters that sentencepiece makes blanks of, or drops
BLANKS = [
    ["don\u00b4t", "go"],
    ["na\u00a8ve", "a"],
    ["\u0645\u06cc\u200c\u0631\u0648\u062f", "go"],
    ["\u0c15\u0c4d\u200c\u0c37", "go"],
    ["\u0d9a\u0dca\u200d\u0dc2", "go"],
    ["\ufeffgo", "a\ufeffb"],
    ["\u200b", "a\u200cb", "go"],
    ["\u200b", "\u200b"],
]


OPTIONS = [
    {"model_type": "char"},
    {"model_type": "char", "add_dummy_prefix": False},
    {"model_type": "char", "remove_extra_whitespaces": False},
    {"model_type": "char", "treat_whitespace_as_suffix": True},
    {"model_type": "bpe", "vocab_size": 60, "split_by_whitespace": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_all_pieces_between_two_blanks_are_a_word(tmp_path, options):
    lines = [*map(" ".join, BLANKS)] + ["go a don t b"] * 9
    model = train_pieces(tmp_path, lines, **options)
    encode = sentencepiece.SentencePieceProcessor(model).EncodeAsPieces
    for words in BLANKS:
        tokens, starts = tokens_of_words(words, encode, {})
        assert tokens == encode(" ".join(words))
        assert len(starts) == len(words) + 1 and starts[-1] == len(tokens)
        if "split_by_whitespace" in options or "treat_whitespace_as_suffix" in options:
            continue
        for word, (start, end) in zip(words, itertools.pairwise(starts), strict=True):
            letters = "".join(tokens[start:end]).replace(MARK, "")
            assert letters == "".join(encode(word)).replace(MARK, "")


UNKNOWN = [["the", "zebra", "sat"], ["the", "cat"], [], ["zebra", "gnu"]]


def test_unknown_words_by_hand():
    counts = Counter(["a", "a", "a", "b", "b", "c", "d", "e"])
    found = unknown_words(counts, {"a", "b", "<unk>"})
    assert found == {"unk_size": 3 + 3**2 / 2, "left_out": 3, "seen_once": 3, "seen_twice": 1}
    # none twice: the bias-corrected form
    assert unknown_words(Counter("abc"), set("abc"))["unk_size"] == 3 * 2 / 2
    assert unknown_words(Counter({"a": 9}), {"a"})["unk_size"] == 1.0
    # where nothing was counted
    assert usual_unk_size(500) == ZIPF_SHARE * 500


def test_each_unknown_word_has_its_share_and_known_ones_all_of_theirs(tmp_path):
    (tmp_path / "text").write_text("the cat sat\nthe dog sat\n")
    how = {"order": 2, "lmplz": "none", "discount_fallback": True}
    build_ngram(tmp_path / "text", tmp_path / "arpa", **how)
    trained = make("word", tmp_path)
    for scorer_of in (partial(NgramScorer, tmp_path / "arpa"), partial(token_scorer, trained)):
        whole, shared = (scorer_of(unk_size=size).word_scores(UNKNOWN) for size in (1, 50))
        for a, b in zip(whole, shared, strict=True):
            np.testing.assert_array_equal(a.oov, b.oov)
            np.testing.assert_allclose(a.log_probs - b.log_probs, math.log(50) * a.oov, atol=1e-12)
    # the probabilities of the known words, of 50 unknown ones and of </s> after "the" sum to 1
    words = [w for w in trained.token_list if w not in ("<blank>", "<unk>", "<sos/eos>")]
    scorer = token_scorer(trained, unk_size=50)
    first = scorer.word_scores([["the", w] for w in (*words, "zebra")])
    total = sum(math.exp(s.log_probs[1]) * (50 if s.oov[1] else 1) for s in first)
    total += math.exp(scorer.word_scores([["the"]])[0].log_probs[1])
    blank = token_scorer(trained).word_scores([["the", "<blank>"]])[0].log_probs[1]
    assert total + math.exp(blank) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("token_type", ["bpe", "char"])
def test_lms_of_pieces_need_none(token_type, tmp_path):
    trained = make(token_type, tmp_path)
    (a,), (b,) = (token_scorer(trained, unk_size=n).word_scores([["qqq"]]) for n in (1, 9))
    np.testing.assert_array_equal(a.log_probs, b.log_probs)


@pytest.mark.parametrize("size", [0, 0.5, -3, math.inf, math.nan])
def test_a_size_that_is_none(size, tmp_path):
    with pytest.raises(InputError, match=r"--unk_size .*: expected the number of words"):
        token_scorer(make("word", tmp_path), unk_size=size)
    with pytest.raises(InputError, match="--unk_size"):
        NgramScorer(tmp_path / "any.arpa", unk_size=size)


def test_a_scorer_that_tells_nothing_of_its_words():
    class Plain(WordScorer):
        name = "plain"

    assert Plain().unknown(["a", "b"]) == [True, True] and Plain().known_words() is None
    with pytest.raises(InputError, match="plain: it is no LM with random weights"):
        Plain().uncertainty([["a"]])


def test_words_after_a_start_of_several_tokens(tmp_path):
    """As a line break that is two tokens of a pretrained LM."""
    scorer = token_scorer(make("word", tmp_path))
    scorer.reader.joins = False
    scorer.reader.start = (scorer.tree_lm.vocab_size - 1, 2)
    words = ["the", "cat"]
    (expected,) = scorer.word_scores([words])
    for vocabulary in (None, words):
        first = scorer.begin(vocabulary=vocabulary)
        second = scorer.after(first, "the")
        states = [first, second, scorer.after(second, "cat")]
        found = scorer.next_words(states, [*words, END])
        np.testing.assert_allclose(found, expected.log_probs, atol=1e-5)


def test_a_mixtures_samples_one_word_at_a_time(tmp_path):
    conf = {"unit": 8, "uncertainty": {"cell_input@1": "bayes"}}
    part = {"name": "bayes", "kind": "lm", "weight": 1.0, "lm": "bayes_lstm", "lm_conf": conf}
    trained = make("word", tmp_path)
    trained.lm = MixtureLM(len(trained.token_list), [part])
    scorer = token_scorer(trained, num_samples=2)
    with pytest.raises(InputError, match="tiny: MixtureLM cannot rescore lattices with samples"):
        scorer.next_words([scorer.begin()], ["the"])


def test_equal_hypotheses_are_scored_once_without_context():
    """An n-gram scores the lists of recordings without what was said before."""
    asked = []

    class Counts(WordScorer):
        def word_scores(self, sentences):
            asked.extend(sentences)
            return [WordScores(np.zeros(len(words) + 1), np.zeros(0)) for words in sentences]

    groups = [[("a", "b"), ["a", "b"], ()], [["c"], ("a", "b")]]
    found = Counts().scores_in_context(groups, [None, None])
    assert asked == [("a", "b"), (), ("c",)]
    assert [[len(s.log_probs) for s in group] for group in found] == [[3, 3, 1], [2, 3]]

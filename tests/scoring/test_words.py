"""Words of subword LMs: a distribution over words, and the tokens between two blanks."""

import itertools

import numpy as np
import pytest
import sentencepiece
import torch
from test_neural import Trained

from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.scoring import NeuralScorer
from espnet_bayeslm.scoring.prefixes import END, NeuralPrefixes, Prefix
from espnet_bayeslm.scoring.sequences import over_draws
from espnet_bayeslm.scoring.words import opening_tokens, tokens_of_words

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
    trained = Trained(
        lm,
        tokens,
        token_type,
        lambda text: tokenize(token_type, text),
        lambda found: [tokens.index(token) for token in found],
    )
    return NeuralScorer(trained, num_samples=num_samples)


def next_probs(scorer, tokens):
    """Return p of each token after tokens, averaged over the weight samples, by forward passes."""
    lm = scorer.trained.lm
    ids = torch.tensor([[lm.vocab_size - 1, *scorer.trained.ids(tokens)]])
    found = over_draws(lm, scorer.num_samples, lambda _: lm(ids, None)[0][0, -1].softmax(0))
    return torch.stack(found).mean(0).numpy()


def all_words(token_type):
    """Return all words up to a length."""
    firsts = ["a", "c"] if token_type == "bpe" else ["b", "d"]
    ends = ("".join(x) for n in range(LONGEST + 1) for x in itertools.product("bd", repeat=n))
    return [first + end for end in ends for first in firsts]


@pytest.mark.parametrize("num_samples", [0, 3])
@pytest.mark.parametrize("before", [[], ["X"], ["Xb", "X"]])
@pytest.mark.parametrize("token_type", ["bpe", "char"])
def test_the_words_after_a_prefix_sum_to_one(token_type, before, num_samples):
    """What is missing is the probability of tokens that do not continue any text."""
    scorer = small_scorer(token_type, num_samples)
    words = all_words(token_type)
    before = [word.replace("X", words[0]) for word in before]
    sentences = [[*before, word] for word in words]
    n = len(before)
    found = [scores.log_probs for scores in scorer.word_scores(sentences)]
    end = scorer.word_scores([before])[0].log_probs[n]
    total = np.exp([log_probs[n] for log_probs in found]).sum() + np.exp(end)

    tokens = tokenize(token_type, " ".join(before))
    p = next_probs(scorer, tokens)
    opens = scorer.openings.numpy()
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
    prefix = Prefix()
    for word in before:
        prefix = prefix.after(word)
    prefixes = NeuralPrefixes(scorer, 0, [*before, *words])
    (row,) = prefixes.next_log_probs([(prefix, [*words, END])])
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


def train_pieces(folder, **options):
    """Return the tokenizer of a sentencepiece model that knows all characters of BLANKS."""
    lines = [*map(" ".join, BLANKS)] + ["go a don t b"] * 9
    (folder / "text").write_text("\n".join(lines))
    files = {"input": f"{folder}/text", "model_prefix": f"{folder}/model"}
    sentencepiece.SentencePieceTrainer.train(**files, minloglevel=2, **options)
    return sentencepiece.SentencePieceProcessor(f"{folder}/model.model").EncodeAsPieces


OPTIONS = [
    {"model_type": "char"},
    {"model_type": "char", "add_dummy_prefix": False},
    {"model_type": "char", "remove_extra_whitespaces": False},
    {"model_type": "char", "treat_whitespace_as_suffix": True},
    {"model_type": "bpe", "vocab_size": 60, "split_by_whitespace": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_all_pieces_between_two_blanks_are_a_word(tmp_path, options):
    encode = train_pieces(tmp_path, **options)
    for words in BLANKS:
        tokens, starts = tokens_of_words(words, encode, {})
        assert tokens == encode(" ".join(words))
        assert len(starts) == len(words) + 1 and starts[-1] == len(tokens)
        if "split_by_whitespace" in options or "treat_whitespace_as_suffix" in options:
            continue
        for word, (start, end) in zip(words, itertools.pairwise(starts), strict=True):
            letters = "".join(tokens[start:end]).replace(MARK, "")
            assert letters == "".join(encode(word)).replace(MARK, "")

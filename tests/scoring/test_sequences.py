"""Scores of token sequences: alone and in context."""

import contextlib

import numpy as np
import pytest
import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from espnet2.lm.transformer_lm import TransformerLM
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_cases import LSTM, SOME, TRANSFORMER, VOCAB, build, make_generic, one_sequence
from lm_cases import name as case_name
from test_scorer import as_words, extend, over_ids, score_in_context
from test_uncertainty import token_uncertainty

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.scoring import score_hypotheses, token_log_probs
from espnet_bayeslm.scoring.scorer import History
from espnet_bayeslm.utils.errors import InputError


def running_log_probs(lm, sequences, *, context):
    """Return ln p of the tokens of the sentences of a text, each after sentences before it."""
    found = over_ids(lm, context=context).word_scores(as_words([sequences])[0])
    return [scores.log_probs for scores in found]


LMS = {
    "espnet": lambda: SequentialRNNLM(VOCAB, unit=16, nlayers=2, dropout_rate=0.1),
    "espnet transformer": lambda: TransformerLM(VOCAB, embed_unit=8, att_unit=16, head=4, unit=32),
    "lstm": lambda: BayesLSTMLM(VOCAB, unit=16, dropout_rate=0.1),
    "transformer": lambda: BayesTransformerLM(VOCAB, att_unit=16, head=4, unit=32, layer=2),
    "bayes": lambda: BayesLSTMLM(VOCAB, unit=16, uncertainty={"cell_input@1": "bayes"}),
}


def make_lm(name):
    """Return a small LM whose weights are far from uniform, in training mode."""
    torch.manual_seed(1)
    lm = LMS[name]()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.copy_(parameter + 0.3 * torch.randn_like(parameter))
    return lm


@pytest.fixture(scope="module", params=LMS)
def lm(request):
    return make_lm(request.param)


def sentences(num=20, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB - 1, rng.integers(0, 9)).tolist() for _ in range(num)]


def test_hypotheses_keep_their_places_and_sum_their_tokens(lm):
    texts = sentences(7)
    nested = [texts[:3], [], texts[3:4], [texts[0], [], texts[0]]]
    scores = score_hypotheses(lm, nested)
    assert [len(row) for row in scores] == [3, 0, 1, 3]
    for row, hypotheses in zip(scores, nested, strict=True):
        for value, ids in zip(row, hypotheses, strict=True):
            assert type(value) is float
            assert value == pytest.approx(one_sequence(lm, ids, VOCAB - 1).sum(), abs=1e-5)
    assert scores[3][0] == scores[3][2] == scores[0][0]


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_lm_is_kept(lm, training):
    lm.train(training)
    before = {key: value.clone() for key, value in lm.state_dict().items()}
    a, b = (token_log_probs(lm, [[1, 2]])[0] for _ in range(2))
    assert lm.training == training and np.array_equal(a, b)
    assert all(torch.equal(value, before[key]) for key, value in lm.state_dict().items())


def test_an_lm_whose_training_has_diverged():
    lm = make_lm("lstm")
    with torch.no_grad():
        next(lm.parameters()).fill_(float("nan"))
    scorer = over_ids(lm)
    for score in (
        lambda: token_log_probs(lm, [[1, 2]]),
        lambda: token_uncertainty(lm, [[1, 2]], num_samples=1),
        lambda: scorer.next_words([scorer.begin()], ["1"]),
    ):
        with pytest.raises(InputError, match="not a finite number"):
            score()
        assert lm.training


@pytest.mark.parametrize("name", ["espnet transformer", "transformer"])
def test_half_precision_sums_probabilities_in_single(name):
    """An LM without an opinion gives each of its V tokens 1 / V, which bfloat16 cannot hold."""
    lm, texts = make_lm(name).bfloat16(), sentences(7)
    with torch.no_grad():
        for parameter in lm.decoder.parameters():
            parameter.zero_()
    openings = torch.arange(VOCAB) < 3
    for values in token_log_probs(lm, texts, openings=openings):
        np.testing.assert_allclose(values[0], -np.log(VOCAB), rtol=1e-6)
        np.testing.assert_allclose(values[1], np.log(3 / VOCAB), rtol=1e-6)
    if name == "transformer":
        for found in token_uncertainty(lm, texts, num_samples=1):
            np.testing.assert_allclose(found.entropy, np.log(VOCAB), rtol=1e-5)


OURS, RANGE = "needs an LM of espnet_bayeslm, got SequentialRNNLM", "but the LM has 0 to"


@pytest.mark.parametrize(
    "name, call, message",
    [
        ("espnet", lambda lm: token_log_probs(lm, [[1]], num_samples=2), "has no random weights"),
        ("bayes", lambda lm: token_log_probs(lm, [[1]], num_samples=-1), "is -1 where 0 or more"),
        ("lstm", lambda lm: token_uncertainty(lm, [[1]], num_samples=0), "is 0 where 1 or more"),
        ("espnet", lambda lm: token_uncertainty(lm, [[1]], num_samples=2), f"uncertainty {OURS}"),
        ("espnet", lambda lm: extend(lm, [None], [[1]]), f"context {OURS}"),
        ("lstm", lambda lm: token_uncertainty(lm, [[VOCAB]], num_samples=2), RANGE),
        ("lstm", lambda lm: score_in_context(lm, [[[VOCAB]]], [None]), RANGE),
        ("lstm", lambda lm: extend(lm, [None], [[-1]]), RANGE),
    ],
)
def test_calls_that_are_refused(name, call, message):
    with pytest.raises(InputError, match=message):
        call(make_lm(name))


@pytest.mark.parametrize("ids", [[VOCAB], [1, -1], [3, 1000, 2]])
def test_tokens_out_of_the_vocabulary(lm, ids):
    with pytest.raises(InputError, match=rf"token ids from .* but the LM has 0 to {VOCAB - 1}"):
        token_log_probs(lm, [[1, 2], ids])


def test_ids_are_whole_numbers_of_any_sort(lm):
    expected = score_hypotheses(lm, [[[1, 2, 3], [4, 0]], [[]]])
    arrays = [[np.array([1, 2, 3], np.uint8), np.array([4, 0])], [np.array([], np.int64)]]
    tensors = [[torch.tensor([1, 2, 3]), torch.tensor([4, 0], dtype=torch.int32)], [()]]
    mixed = [[[np.int64(1), torch.tensor(2), 3], (4, 0)], [[]]]
    for hypotheses in (arrays, tensors, mixed):
        assert score_hypotheses(lm, hypotheses) == expected
    wrong = ([1.0, 2], [1.5], torch.tensor([1.0]), np.array([2.5]), ["1"], "a", 3, torch.tensor(3))
    for ids in wrong:
        with pytest.raises(InputError, match="expected a sequence of token ids, got "):
            score_hypotheses(lm, [[[1, 2]], [ids]])


@pytest.mark.parametrize("max_tokens", [40, 200])
def test_where_logits_are_held_a_batch_has_a_quarter_of_the_tokens(max_tokens):
    """Counted with padding; one sequence alone may have more."""
    lm, shapes = make_lm("espnet"), []
    lm.register_forward_hook(lambda module, args, output: shapes.append(args[0].shape))
    token_log_probs(lm, sentences(60), max_tokens=max_tokens)
    assert all(shape.numel() <= max_tokens // 4 or shape[0] == 1 for shape in shapes)
    assert max(shape.numel() for shape in shapes) > max_tokens // 8


TEXT = [[3, 4], [5], [], [6, 7, 8], [2, 2], [9, 3, 3, 4], [5, 5]]


@pytest.mark.parametrize("name", ["lstm", "transformer"])
@pytest.mark.parametrize("context", [1, 2, 3, 10])
def test_a_sentence_of_running_text_sees_those_before_it(name, context):
    lm, end = make_lm(name).double(), VOCAB - 1
    assert running_log_probs(lm, [], context=context) == []
    found = running_log_probs(lm, TEXT, context=context)
    assert len(found) == len(TEXT)
    for index, (sentence, values) in enumerate(zip(TEXT, found, strict=True)):
        first = max(0, (index // context - 1) * context)
        assert index == 0 or index - first >= min(index, context)
        before = [token for ids in TEXT[first:index] for token in (end, *ids)]
        np.testing.assert_allclose(
            values, one_sequence(lm, sentence, end, before), rtol=0, atol=1e-9
        )


EOS = VOCAB - 1
SIMPLE = {"lstm": (BayesLSTMLM, LSTM, {}), "transformer": (BayesTransformerLM, TRANSFORMER, {})}


def texts(num=12, seed=0):
    """Return sequences with many common prefixes; some of them are equal."""
    rng = np.random.default_rng(seed)
    base = rng.integers(1, EOS, 12)
    found = []
    for _ in range(num):
        ids = base[: rng.integers(0, 13)].copy()
        ids[rng.random(len(ids)) < 0.15] = 3
        found.append(ids.tolist())
    return found


# what was said in three recordings, and the hypotheses of the next utterance of each
SAID = [[[1, 2, 3], [], [4, 4]], [[5]], []]
HYPOTHESES = [[[7, 8], [7], [], [7, 8, 9], [7, 8]], [[1, 2], [3]], texts(8)]


@pytest.mark.parametrize("name", LMS)
@settings(max_examples=8)
@given(random=st.randoms(use_true_random=False), copies=st.integers(1, 3))
def test_order_and_copies_change_nothing_at_all(name, random, copies):
    lm, sequences = make_lm(name), texts(10)
    before = {tuple(i): v for i, v in zip(sequences, token_log_probs(lm, sequences), strict=True)}
    sequences = sequences * copies
    random.shuffle(sequences)
    for ids, values in zip(sequences, token_log_probs(lm, sequences), strict=True):
        assert np.array_equal(values, before[tuple(ids)])


def all_naive(lm, max_context=10_000):
    """Return ln p of all hypotheses, each after its recording, from the logits of whole texts."""
    before = [[token for ids in said for token in (EOS, *ids)] for said in SAID]
    return [
        [one_sequence(lm, ids, EOS, text[max(0, len(text) - max_context) :]) for ids in hyps]
        for text, hyps in zip(before, HYPOTHESES, strict=True)
    ]


def histories_of(lm, recordings, **options):
    """Return the histories after all that was said, one utterance after the other."""
    histories = [None] * len(recordings)
    for n, said in enumerate(recordings):
        for ids in said:
            histories[n : n + 1] = extend(lm, histories[n : n + 1], [ids], **options)
    return histories


def assert_same(found, expected):
    for values, wanted in zip(found, expected, strict=True):
        for a, b in zip(values, wanted, strict=True):
            assert a.dtype == np.float64
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("num_samples", [0, 2])
@pytest.mark.parametrize("case", SOME, ids=case_name)
def test_equals_the_whole_text(case, num_samples):
    """Each sample has a history of its own, and probabilities are averaged, with any batches."""
    lm, options, draws = make_generic(build(case)), {"num_samples": num_samples}, []
    for sample in [lm.sampled(n) for n in range(num_samples)] or [contextlib.nullcontext()]:
        with sample:
            draws.append(all_naive(lm))
    expected = [
        [np.log(np.mean(np.exp(values), axis=0)) for values in zip(*hyps, strict=True)]
        for hyps in zip(*draws, strict=True)
    ]
    histories = histories_of(lm, SAID, **options)
    for max_tokens in (1, 7, 4096):
        options["max_tokens"] = max_tokens
        assert_same(score_in_context(lm, HYPOTHESES, histories, **options), expected)
        assert_same([token_log_probs(lm, HYPOTHESES[2], **options)], expected[2:])
    totals = score_hypotheses(lm, HYPOTHESES[2:], **options)[0]
    assert totals == pytest.approx([values.sum() for values in expected[2]], abs=1e-6)
    means = np.concatenate(token_log_probs(lm, HYPOTHESES[2]))
    differs = np.abs(means - np.concatenate(expected[2])).max() > 1e-5
    assert differs == bool(num_samples and case[2])


@pytest.mark.parametrize("max_context", [0, 1, 3, 5, 100])
def test_a_transformer_reads_the_last_tokens_again(max_context):
    lm = make_generic(build(SIMPLE["transformer"]))
    histories = histories_of(lm, SAID, max_context=max_context)
    assert all(h is None or len(h.tokens) <= max_context for h in histories)
    expected = all_naive(lm, max_context=max_context)
    assert_same(score_in_context(lm, HYPOTHESES, histories), expected)


@pytest.mark.parametrize("family", SIMPLE)
def test_several_recordings_are_extended_at_once(family):
    lm = make_generic(build(SIMPLE[family]))
    both = extend(lm, extend(lm, [None, None], [[1, 2, 3], [5]]), [[], [9, 9]])
    one, other = (histories_of(lm, [said])[0] for said in ([[1, 2, 3], []], [[5], [9, 9]]))
    for a, b in zip(both, (one, other), strict=True):
        assert a.tokens == b.tokens
        for (h, c), (g, d) in zip(a.states, b.states, strict=True):
            torch.testing.assert_close((h, c), (g, d), rtol=0, atol=1e-12)


def test_empty_input():
    lm = build(SIMPLE["lstm"])
    assert score_in_context(lm, [], []) == [] and extend(lm, [], []) == []
    assert score_in_context(lm, [[], [[1]]], [None, None])[0] == []
    assert token_uncertainty(lm, [], num_samples=2) == []
    with pytest.raises(ValueError):
        score_in_context(lm, [[[1]]], [None, History()])

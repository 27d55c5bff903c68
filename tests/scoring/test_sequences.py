"""Scores of token sequences: their places, their sums, and what is refused."""

import numpy as np
import pytest
import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from oracles.one_sequence import naive

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.scoring import score_hypotheses, token_log_probs
from espnet_bayeslm.scoring.sequences import running_log_probs
from espnet_bayeslm.utils.errors import InputError

VOCAB = 11
LMS = {
    "espnet": lambda: SequentialRNNLM(VOCAB, unit=8, nlayers=2, dropout_rate=0.1),
    "lstm": lambda: BayesLSTMLM(VOCAB, unit=8, dropout_rate=0.1),
    "transformer": lambda: BayesTransformerLM(VOCAB, att_unit=8, head=2, unit=12, layer=2),
    "bayes": lambda: BayesLSTMLM(VOCAB, unit=8, uncertainty={"cell_input@1": "bayes"}),
}


def build(name):
    """Return a small LM whose weights are far from uniform, in training mode."""
    torch.manual_seed(1)
    lm = LMS[name]()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.copy_(parameter + 0.3 * torch.randn_like(parameter))
    return lm


@pytest.fixture(scope="module", params=LMS)
def lm(request):
    return build(request.param)


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
            assert value == pytest.approx(naive(lm, ids, VOCAB - 1).sum(), abs=1e-5)
    assert scores[3][0] == scores[3][2] == scores[0][0]


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_lm_is_kept(lm, training):
    lm.train(training)
    before = {key: value.clone() for key, value in lm.state_dict().items()}
    a, b = (token_log_probs(lm, [[1, 2]])[0] for _ in range(2))
    assert lm.training == training and np.array_equal(a, b)
    assert all(torch.equal(value, before[key]) for key, value in lm.state_dict().items())


def test_espnets_lm_has_nothing_to_draw():
    with pytest.raises(InputError, match=r"num_samples is 2, but SequentialRNNLM has no random"):
        token_log_probs(build("espnet"), [[1]], num_samples=2)
    with pytest.raises(InputError, match="num_samples is -1 where 0 or more was expected"):
        token_log_probs(build("bayes"), [[1]], num_samples=-1)


@pytest.mark.parametrize("ids", [[VOCAB], [1, -1], [3, 1000, 2]])
def test_tokens_out_of_the_vocabulary(lm, ids):
    with pytest.raises(InputError, match=rf"token ids from .* but the LM has 0 to {VOCAB - 1}"):
        token_log_probs(lm, [[1, 2], ids])


def test_a_diverged_lm_is_named():
    lm = build("lstm")
    with torch.no_grad():
        next(lm.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="not a finite number"):
        token_log_probs(lm, [[1, 2]])
    assert lm.training


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
    lm, shapes = build("espnet"), []
    lm.register_forward_hook(lambda module, args, output: shapes.append(args[0].shape))
    token_log_probs(lm, sentences(60), max_tokens=max_tokens)
    assert all(shape.numel() <= max_tokens // 4 or shape[0] == 1 for shape in shapes)
    assert max(shape.numel() for shape in shapes) > max_tokens // 8


TEXT = [[3, 4], [5], [], [6, 7, 8], [2, 2], [9, 3, 3, 4], [5, 5]]


@pytest.mark.parametrize("name", ["lstm", "transformer"])
@pytest.mark.parametrize("context", [1, 2, 3, 10])
def test_a_sentence_of_running_text_sees_those_before_it(name, context):
    lm, end = build(name).double(), VOCAB - 1
    assert running_log_probs(lm, [], context=context) == []
    found = running_log_probs(lm, TEXT, context=context)
    assert len(found) == len(TEXT)
    for index, (sentence, values) in enumerate(zip(TEXT, found, strict=True)):
        first = max(0, (index // context - 1) * context)
        assert index == 0 or index - first >= min(index, context)
        before = [token for ids in TEXT[first:index] for token in (end, *ids)]
        np.testing.assert_allclose(values, naive(lm, sentence, end, before), rtol=0, atol=1e-9)

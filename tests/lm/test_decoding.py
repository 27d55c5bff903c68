"""Scores of a beam search and over prefix trees are those of teacher forcing."""

import copy
import gc
import pickle
import random
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_cases import CASES, LSTM, RANDOM, SOME, TRANSFORMER, VOCAB, build, make_generic, name
from search_contract import (
    SearchContract,
    check_scores,
    teacher_forced,
    walk,
    walk_utterances,
)

from espnet_bayeslm import kernels
from espnet_bayeslm.kernels import product
from espnet_bayeslm.kinds.whole_posterior import add_whole_posterior
from espnet_bayeslm.layers.key_value_cache import KeyValueCache, membership
from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.lm.tree import build_tree

SOS = VOCAB - 1
TRANSFORMER_CASE = (BayesTransformerLM, TRANSFORMER, {"ffn@1-2": "bayes"})
LSTM_CASE = (BayesLSTMLM, LSTM, {"cell_input@1-2": "bayes"})


def close(a, b, *, atol):
    return torch.allclose(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("case", SOME, ids=map(name, SOME))
def test_any_search_gets_the_scores_of_teacher_forcing(case):
    lm = build(case).eval()
    make_generic(lm)
    for prefixes, scores in walk(lm, random.Random(0), length=8):
        check_scores(lm, scores, prefixes)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), beam=st.integers(1, 8), length=st.integers(1, 25))
@pytest.mark.parametrize("case", [LSTM_CASE, TRANSFORMER_CASE], ids=["lstm", "transformer"])
def test_beams_of_any_shape(case, seed, beam, length):
    lm = build(case).float().eval()
    for prefixes, scores in walk(lm, random.Random(seed), length=length, beam=beam):
        check_scores(lm, scores, prefixes, atol=1e-5)


def test_two_hundred_tokens():
    lm = build(TRANSFORMER_CASE, norm_first=True).float().eval()
    for prefixes, scores in walk(lm, random.Random(1), length=200, check=40):
        check_scores(lm, scores, prefixes, atol=1e-5)


@pytest.mark.parametrize("case", [LSTM_CASE, TRANSFORMER_CASE], ids=["lstm", "transformer"])
class TestOtherWaysToCall(SearchContract):
    @pytest.fixture
    def lm(self, case):
        return build(case).eval()

    def test_dropout_is_off_and_the_mode_stays(self, case):
        """ESPnet's transducer programs leave an LM in training mode."""
        lm = build(case, dropout_rate=0.5)
        scores, _ = lm.train().batch_score(torch.tensor([[SOS, 3]]), [None], None)
        assert lm.training
        check_scores(lm.eval(), scores, [[SOS, 3]])

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_quantised_as_espnet_does_it(self, lm):
        lm = lm.float()
        quantised = torch.quantization.quantize_dynamic(lm, {torch.nn.Linear}, dtype=torch.qint8)
        for prefixes, scores in walk(quantised, random.Random(0), length=6):
            check_scores(lm, scores, prefixes, atol=0.05)


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy}
COPIES["pickle"] = lambda state: pickle.loads(pickle.dumps(state))


@pytest.fixture(scope="class")
def long_search(fast_kernels):
    """Return an LM and the states of two hypotheses that part after 1,200 tokens."""
    lm = build((BayesTransformerLM, {**TRANSFORMER, "layer": 1}, {})).eval()
    state = lm.zero_state()
    for n in range(1_200):
        _, [state] = lm.batch_score(torch.tensor([[n % SOS + 1]]), [state], None)
    _, states = lm.batch_score(torch.tensor([[3], [4]]), [state, state], None)
    return lm, states


@pytest.mark.usefixtures("fast_kernels")
class TestCopies:
    @pytest.mark.parametrize("way", COPIES)
    def test_more_tokens_than_calls_may_be_nested(self, way, long_search):
        lm, states = long_search
        ys = torch.tensor([[5], [6]])
        expected, _ = lm.batch_score(ys, states, None)
        copies = [COPIES[way](state) for state in states]
        assert [len(state) for state in copies] == [1_201, 1_201]
        assert copies[0].lane.cache is not states[0].lane.cache
        assert close(lm.batch_score(ys, copies, None)[0], expected, atol=1e-10)

    @pytest.mark.parametrize("way", COPIES)
    def test_rows_are_given_back_once(self, way, long_search):
        _, states = long_search
        lane = states[0].lane
        in_use = len(lane)
        copies = COPIES[way](list(states)) if way != "copy" else [copy.copy(s) for s in states]
        del copies
        assert len(lane) == in_use
        rows = [lane.allocate() for _ in range(3)]
        assert not membership(states, lane.end)[:, rows].any()
        lane.release(rows)


@pytest.mark.usefixtures("fast_kernels")
class TestCache:
    @pytest.mark.parametrize("length", [130, 320])
    def test_it_grows_by_more_than_its_size(self, length):
        lm, rng = build(TRANSFORMER_CASE).eval(), random.Random(0)
        primer = [SOS, *rng.choices(range(1, SOS), k=length - 1)]
        _, states = lm.batch_score(torch.tensor([primer]), [None], None)
        state = copy.deepcopy(states[0])  # its rows are allocated at once
        assert state.lane.cache.table.size(3) == length
        scores, _ = lm.batch_score(torch.tensor([[*primer, 7]]), [state], None)
        check_scores(lm, scores, [[*primer, 7]])

    def test_it_holds_each_prefix_that_is_alive_once(self):
        lm, rng = build(TRANSFORMER_CASE).eval(), random.Random(5)
        prefixes, states = [[SOS]], [None]
        for _ in range(60):
            _, new = lm.batch_score(torch.tensor(prefixes), states, None)
            parents = [rng.randrange(len(prefixes)) for _ in range(6)]
            states = [new[i] for i in parents]
            alive = {tuple(prefixes[i][: n + 1]) for i in parents for n in range(len(prefixes[i]))}
            del new
            # equal prefixes that two hypotheses reached apart are two
            assert len(states[0].lane) <= len(alive) + 6
            prefixes = [[*prefixes[i], rng.randrange(1, SOS)] for i in parents]
        # of 360 tokens that were computed
        assert states[0].lane.end < 150

    def test_what_is_finished_is_freed(self):
        lm = build(TRANSFORMER_CASE).eval()
        steps = list(walk(lm, random.Random(2), length=12))
        gc.collect()
        assert steps and not any(type(o) is KeyValueCache for o in gc.get_objects())
        _, state = lm.score(torch.tensor([SOS]), None, None)
        cache = weakref.ref(state.lane.cache)
        assert len(state.lane) == 1
        del state
        assert cache() is None
        state = KeyValueCache(1, 1, 2, torch.zeros(1)).empty()
        lane = state.lane
        for _ in range(20_000):
            state = type(state)(lane, [lane.allocate()], state)
            state.rows = 0  # all of them would take quadratic memory
        del state
        assert len(lane) == 0

    def test_a_hypothesis_attends_to_its_own_utterance_alone(self):
        lm, rng, beam = build(TRANSFORMER_CASE).eval(), random.Random(4), 4
        prefixes, states = [[SOS]] * 5 * beam, [None] * 5 * beam
        for _ in range(20):
            _, new = lm.batch_score(torch.tensor(prefixes), states, None)
            kept = [
                k - k % beam + (rng.randrange(beam) if states[0] else 0)
                for k in range(len(prefixes))
            ]
            prefixes, states = (
                [[*prefixes[k], rng.randrange(1, SOS)] for k in kept],
                [new[k] for k in kept],
            )
            del new
            for k in range(0, len(states), beam):
                own = {tuple(p[:n]) for p in prefixes[k : k + beam] for n in range(1, len(p))}
                assert {state.lane for state in states[k : k + beam]} == {states[k].lane}
                assert len(states[k].lane) <= len(own) + beam
        assert len({state.lane for state in states}) == 5

    def test_what_is_finished_of_a_batch_is_released(self):
        lm = build(TRANSFORMER_CASE).eval()
        _, states = lm.batch_score(torch.tensor([[SOS]] * 64), [None] * 64, None)
        sizes = []
        for _ in range(7):
            states = states[: max(1, len(states) // 2)]
            _, states = lm.batch_score(torch.tensor([[3]] * len(states)), states, None)
            sizes.append(states[0].lane.cache.table.size(2))
        assert sizes == [32, 16, 8, 4, 2, 1, 1]


def sampled_mean(lm, prefixes, num_samples):
    draws = []
    for index in range(num_samples):
        with lm.sampled(index):
            draws.append(teacher_forced(lm, prefixes).exp())
    return torch.stack(draws).mean(0).log()


def with_posterior(lm):
    for block in lm.posterior.blocks():
        torch.nn.init.constant_(block.tensor("_log_std"), -1.0)
    return lm.eval()


class TestDraws:
    def test_a_batch_of_utterances(self):
        lm = with_posterior(build(TRANSFORMER_CASE, num_samples=2))
        for prefixes, scores in walk_utterances(lm, random.Random(0), utterances=3, length=6):
            assert close(scores, sampled_mean(lm, prefixes, 2), atol=1e-9)

    @pytest.mark.parametrize("case", RANDOM, ids=map(name, RANDOM))
    def test_a_search_averages_the_draws(self, case):
        lm = with_posterior(build(case, num_samples=3))
        before = {key: value.clone() for key, value in lm.state_dict().items()}
        for prefixes, scores in walk(lm, random.Random(0), length=5, beam=3):
            assert close(scores, sampled_mean(lm, prefixes, 3), atol=1e-9)
        # a forget gate does nothing for the first token
        assert not close(scores, teacher_forced(lm, prefixes), atol=1e-6)
        assert all(torch.equal(v, before[k]) for k, v in lm.state_dict().items())
        assert list(lm.state_dict()) == list(before)

    @pytest.mark.parametrize("whole", [False, True])
    def test_draws_are_made_once_and_follow_any_write(self, whole):
        with torch.inference_mode():
            case = (BayesLSTMLM, LSTM, {}) if whole else LSTM_CASE
            lm = build(case, num_samples=2)
            if whole:
                add_whole_posterior(lm.posterior)
            with_posterior(lm)
            ys = torch.tensor([[SOS]])
            log_std = dict((*lm.named_parameters(), *lm.named_buffers()))
            name_ = next(n for n in log_std if n.startswith("rnn.weight_ih_l0") and "log_std" in n)
            for tensor in (log_std[name_], lm.rnn.weight_ih_l0, lm.decoder.weight, None):
                scores, _ = lm.batch_score(ys, [None], None)
                assert close(scores, sampled_mean(lm, [[SOS]], 2), atol=1e-9)
                draws = lm._draws()
                lm.batch_score(ys, [None], None)
                assert lm._draws() is draws
                if tensor is not None:
                    tensor.data.copy_(0.5 + tensor.data)

    def test_no_draws(self):
        lm = build((BayesLSTMLM, LSTM, {}), num_samples=5).eval()
        _, [state] = lm.batch_score(torch.tensor([[SOS]]), [None], None)
        assert len(state) == 2 and torch.is_tensor(state[0])


def fine_tune(lm):
    """Do a step of an optimizer in evaluation mode."""
    lm(torch.tensor([[1, 2]]))[0].sum().backward()
    torch.optim.SGD(lm.parameters(), lr=0.1).step()


# Changes of an LM's weights, in evaluation mode too
WRITES = {
    "optimizer": fine_tune,
    "load_state_dict": lambda lm: lm.load_state_dict(
        {key: value / 2 for key, value in lm.state_dict().items()}
    ),
    "--init_param of a part": lambda lm: lm.rnn.load_state_dict(
        {key: value / 2 for key, value in lm.rnn.state_dict().items()}
    ),
    "in place": lambda lm: torch.no_grad()(lm.decoder.weight.mul_)(0.5),
    "through .data": lambda lm: lm.rnn.weight_hh_l0.data.mul_(-9.0),
    "another memory": lambda lm: setattr(lm.decoder.weight, "data", lm.decoder.weight.data / 2),
    "another parameter": lambda lm: setattr(
        lm.decoder, "weight", torch.nn.Parameter(lm.decoder.weight.detach() / 2)
    ),
    "NumPy": lambda lm: np.multiply(w := lm.rnn.weight_hh_l0.detach().numpy(), -9.0, out=w),
    "foreach": lambda lm: torch._foreach_mul_([p.data for p in lm.parameters()], 0.5),
    "another precision": lambda lm: lm.bfloat16().float(),
    "one element": lambda lm: lm.decoder.weight.data[3, 5:6].fill_(100.0),
    "rows in another order": lambda lm: lm.decoder.weight.data.copy_(lm.decoder.weight.flip(0)),
    "reset": lambda lm: torch.nn.init.ones_(lm.rnn.weight_hh_l0),
}


def search_steps(lm):
    """Return ln p of each of a few steps of a search, and the state after them."""
    ys, states, found = torch.full((3, 1), 599), [None] * 3, []
    for token in (5, 6, 7):
        log_probs, states = lm.batch_score(ys, states, None)
        ys = torch.cat([ys, torch.full((3, 1), token)], dim=1)
        found.append(log_probs)
    return torch.stack(found)


@pytest.mark.usefixtures("fast_kernels")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("write", WRITES)
def test_weights_packed_for_a_search_are_those_of_its_begin(write, training, monkeypatch):
    """Packed once a search, and never used after a change."""
    packed, pack = [], product._packed_product
    monkeypatch.setattr(
        product, "_packed_product", lambda *args: packed.append(args) or pack(*args)
    )
    lm = BayesLSTMLM(600, unit=512, nlayers=1, tie_weights=False).train(training)
    before = search_steps(lm)
    assert torch.equal(search_steps(lm), before)
    assert len(packed) == 3 and lm.training == training  # two matrices of the LSTM, the projection
    WRITES[write](lm)
    after = search_steps(lm)
    assert len(packed) > 3
    with kernels.plain():
        expected = search_steps(lm)
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-3)
    assert (before - expected).abs().max() > 5e-3 or write == "another precision"
    assert len(pickle.loads(pickle.dumps(lm)).state_dict()) == len(lm.state_dict())


def test_a_held_sample_is_not_packed():
    lm = BayesLSTMLM(600, unit=512, nlayers=1, uncertainty={"all_gates@1": "bayes"}, init_std=0.1)
    mean, steps = search_steps(lm.eval()), []
    for index in (0, 1):
        with lm.sampled(index):
            steps.append(search_steps(lm))
    assert torch.equal(search_steps(lm), mean)
    for found in steps:
        assert (found - mean).abs().max() > 0.05
    assert not torch.allclose(*steps)


EOS = VOCAB - 1


def sequences():
    """Return sequences with many common prefixes, in groups, sorted."""
    texts = {tuple(torch.randint(1, 4, (int(n),)).tolist()) for n in torch.randint(0, 7, (50,))}
    texts = sorted({*texts, (), (5,) * 12})
    return [texts[:12], texts[12:13], texts[13:]]


def assert_equals_forward(lm, groups, **tolerance):
    tree, paths = build_tree(groups, EOS)
    logits = lm.decoder(lm.tree_outputs(tree))
    prefixes = [{ids[:k] for ids in group for k in range(len(ids) + 1)} for group in groups]
    assert len(logits) == len(tree.tokens) == sum(map(len, prefixes))
    texts = [torch.tensor([EOS, *ids]) for group in groups for ids in group]
    expected = lm(torch.nn.utils.rnn.pad_sequence(texts, batch_first=True))[0]
    for row, path in zip(expected, paths, strict=True):
        found = logits[torch.from_numpy(path)]
        torch.testing.assert_close(found, row[: len(path)], rtol=0, **tolerance)


@pytest.mark.parametrize("case", CASES, ids=name)
@torch.inference_mode()
def test_each_node_has_the_output_of_its_prefix(case):
    """At the mean and in a held draw."""
    lm = make_generic(build(case)).eval()
    assert_equals_forward(lm, sequences(), atol=1e-9)
    with lm.sampled(2):
        assert_equals_forward(lm, sequences(), atol=1e-9)


@pytest.mark.parametrize("dtype, atol", [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize(
    "sizes", [LSTM | dict(unit=256), TRANSFORMER | dict(att_unit=256, unit=300)]
)
@torch.inference_mode()
def test_widths_at_which_weights_are_packed(sizes, dtype, atol):
    """Tiny LMs never reach the packed products."""
    cls = BayesLSTMLM if "nlayers" in sizes else BayesTransformerLM
    lm = build((cls, sizes, {})).to(dtype).eval()
    groups = [sorted({tuple(torch.randint(1, EOS, (6,)).tolist()) for _ in range(150)})]
    assert_equals_forward(lm, groups, atol=atol)

"""Every kernel equals its plain twin, and one switch reaches all of them."""

import ast
import contextlib
import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from lm_cases import BATCH, SOME, VOCAB, build
from lm_cases import name as case_name
from torch import nn

from espnet_bayeslm import kernels
from espnet_bayeslm.kernels.product import linear
from espnet_bayeslm.kinds import gp
from espnet_bayeslm.layers.lstm import LSTM
from espnet_bayeslm.layers.lstm_loop import NATIVE, Loop
from espnet_bayeslm.lm import BayesESPnetLM
from espnet_bayeslm.lm import tree as tree_module
from espnet_bayeslm.lm.tree import TreeAttention, build_tree
from espnet_bayeslm.rescoring import score_hypotheses
from espnet_bayeslm.training.model import BayesLanguageModel


def make_tree(length=90, num=60):
    """Return two trees, of some depth, and the nodes of their sequences."""
    base = torch.randint(3, (length,))
    texts = set()
    for _ in range(num):
        ids = base[: int(torch.randint(0, length + 1, ()))].clone()
        ids[torch.rand(len(ids)) < 0.02] = 5
        texts.add(tuple(ids.tolist()))
    texts = sorted(texts)
    return build_tree([texts[: num // 3], texts[num // 3 :]], 9)


@pytest.mark.parametrize("block, max_keys", [(64, 1 << 16), (64, 1), (8, 500), (1, 300)])
def test_attention_equals_that_with_a_full_mask(monkeypatch, block, max_keys):
    monkeypatch.setattr(tree_module, "BLOCK", block)
    monkeypatch.setattr(tree_module, "MAX_KEYS", max_keys)
    tree, _ = make_tree()
    assert len(tree.tokens) > 300
    x = torch.randn(len(tree.tokens), 3 * 12, dtype=torch.float64)
    heads = [t.unflatten(1, (3, 4)).transpose(0, 1) for t in x.chunk(3, dim=1)]
    seen = torch.eye(len(tree.tokens), dtype=torch.bool)  # which node sees which
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            seen[node] |= seen[parent]
    expected = nn.functional.scaled_dot_product_attention(*heads, attn_mask=seen)
    attention = TreeAttention(tree, x.dtype, 3)
    found = attention.attend(0, *x[attention.order].chunk(3, dim=1))[attention.rows]
    torch.testing.assert_close(found, expected.transpose(0, 1).flatten(1), rtol=0, atol=1e-12)
    assert torch.equal(attention.order[attention.rows], torch.arange(len(tree.tokens)))


PACKAGE = Path(kernels.__file__).parents[1]
SEEDS = range(6)


def rand(*size):
    return torch.randn(*size, dtype=torch.float64, requires_grad=True)


def size():
    return int(torch.randint(1, 9, ()))


def maybe(value):
    return value if torch.rand(()) < 0.5 else None


def a_linear(f):
    x, weight, bias = rand(size(), 3, 4), rand(n := size(), 4), maybe(rand(n))
    return f(x, weight, bias), [x, weight, bias]


def a_product(f):
    x, weight, bias = rand(5, 4), rand(n := size(), 4), maybe(rand(n))
    return f(weight, 5, bias)(x), []


def a_feed_forward(f):
    x, w1, w2 = rand(2, size(), 4), rand(n := size(), 4), rand(4, n)
    leaves = [x, w1, rand(n), w2, rand(4)]
    return f(*leaves, dropout_rate=float(torch.rand(()) < 0.2)), leaves


def a_draw(f):
    mean, log_std, noise = (rand(3, n) for n in [size()] * 3)
    return f(mean, log_std, noise.detach(), maybe(torch.randn_like(mean)), 0.7), [mean, log_std]


def a_mixture(f):
    basis = gp.BASIS[int(torch.randint(3, ())) :]
    x, coefficients = rand(3, size(), 5), rand(len(basis), 5)
    return f(x, coefficients, basis), [x, coefficients]


def a_loop(f):
    units, batch, steps = size(), size(), size()
    layer = LSTM(3, units, 1)
    for position in (p for p in NATIVE if p != "layer_input" and torch.rand(()) < 0.5):
        layer.add_process(f"{position}_l0", gp.Process(gp.BASIS, NATIVE[position]))
    for parameter in layer.double().parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    gates_in, h, c = rand(steps, batch, 4 * units), rand(batch, units), rand(batch, units)
    loop = Loop(layer, 0)
    # the kernel overwrites its argument
    outputs, state = f(loop, 1.0 * gates_in, (h, c))
    return (outputs, *state), [gates_in, h, c, *loop.parameters()]


def a_tree(f):
    tree, _ = make_tree(length=20, num=20)
    rnn = nn.LSTM(4, 5, num_layers=2, batch_first=True).double()
    inputs, which = rand(len(tree.tokens), 4), maybe(tree.tokens.unique(return_inverse=True)[1])
    output, state = f(rnn, inputs, tree.parents, tree.levels, None, which)
    return (output, *state), []


def a_loss(f):
    bias, outputs, weight = maybe(rand(11)), rand(n := size(), 4), rand(11, 4)
    return f(outputs, weight, bias, torch.randint(11, (n,))), [outputs, weight, bias]


CASES = {
    "draw_weights": a_draw,
    "feed_forward": a_feed_forward,
    "linear": a_linear,
    "lstm_loop": a_loop,
    "mixture": a_mixture,
    "product": a_product,
    "run_tree": a_tree,
    "summed_nll": a_loss,
}


def values_and_gradients(name, function, seed):
    """What a twin gives for random input, and the gradients; the input is that of the seed."""
    torch.manual_seed(seed)
    with torch.set_grad_enabled(name not in ("product", "run_tree")):
        found, leaves = CASES[name](function)
    found = found if isinstance(found, tuple) else (found,)
    torch.manual_seed(seed)
    total = sum((x.double() * torch.randn(x.shape, dtype=torch.float64)).sum() for x in found)
    leaves = [leaf for leaf in leaves if leaf is not None]
    return found, torch.autograd.grad(total, leaves, materialize_grads=True) if leaves else ()


def check_twins(name, seed):
    plain, kernel = kernels.KERNELS[name]
    ours, theirs = (values_and_gradients(name, function, seed) for function in (kernel, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_twins_have_the_same_values_and_gradients(name, seed):
    check_twins(name, seed)


@pytest.mark.parametrize("chunk", [1, 12])
def test_chunks_change_nothing(chunk, monkeypatch):
    monkeypatch.setattr(gp, "CHUNK", chunk)
    relu, sizes = gp.TERMS["relu"], []
    spied = relu._replace(psi=lambda x: sizes.append(x.numel()) or relu.psi(x))
    monkeypatch.setitem(gp.TERMS, "relu", spied)
    for seed in SEEDS:
        check_twins("mixture", seed)
    # rows of 5 units stay whole
    assert max(sizes) == max(chunk // 5, 1) * 5


@pytest.mark.parametrize("rows, cached", [(1, 1), (1, 30), (4, 1), (4, 30), (100, 1)])
def test_blocks_of_the_vocabulary_change_nothing(rows, cached, monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.layers.linear.CPU_ROWS", rows)
    monkeypatch.setattr("espnet_bayeslm.layers.linear.CACHE_SIZE", cached)
    for seed in SEEDS:
        check_twins("summed_nll", seed)


@pytest.mark.parametrize("name", CASES)
def test_twins_have_the_same_arguments(name):
    fast, plain = (
        [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]
        for f in reversed(kernels.KERNELS[name])
    )
    assert fast == plain


def test_every_kernel_has_a_case_and_one_caller():
    assert set(CASES) == set(kernels.KERNELS)
    names = {f"{kernel.__module__}.{kernel.__name__}" for _, kernel in kernels.KERNELS.values()}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                direct = {f"{node.module}.{alias.name}" for alias in node.names} & names
                assert not direct, f"{path}: {direct}"
    code = "import sys, espnet_bayeslm.kernels; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


GRU = dict(backbone="seq_rnn", backbone_conf={"unit": 8, "nlayers": 1, "rnn_type": "gru"})
LMS = [*SOME, (BayesESPnetLM, GRU, {"reset_gate@1": "bayes"})]


def train(lm):
    model = BayesLanguageModel(lm.train(), VOCAB, num_train_tokens=100)
    model(*BATCH)[0].backward()


@torch.no_grad()
def score(lm):
    lm.eval()
    score_hypotheses(lm, [[[1, 2, 3], [1, 2]], [[4]]])


@torch.no_grad()
def search(lm):
    lm.eval()
    prefixes, states = torch.full((2, 1), VOCAB - 1), [None, None]
    for _ in range(3):
        log_probs, states = lm.batch_score(prefixes, states, torch.zeros(2, 1))
        prefixes = torch.cat([prefixes, log_probs.topk(1).indices], dim=1)


@pytest.fixture
def used(monkeypatch):
    found = []
    for name, (plain, kernel) in kernels.KERNELS.items():

        def noted(*args, name=name, kernel=kernel, **kwargs):
            found.append(name)
            return kernel(*args, **kwargs)

        monkeypatch.setitem(kernels.KERNELS, name, kernels.Twins(plain, noted))
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    return found


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize("case", LMS, ids=case_name)
def test_the_switch_reaches_everything(case, by_variable, used, monkeypatch):
    lm = build(case)
    for work in (train, score, search):
        work(lm)
        assert used
        used.clear()

    def refuse(*args):
        raise AssertionError("an autograd function of ours")

    for function in torch.autograd.Function.__subclasses__():
        if function.__module__.startswith("espnet_bayeslm"):
            monkeypatch.setattr(function, "forward", refuse)
    if by_variable:
        monkeypatch.setenv(kernels.VARIABLE, "plain")
    for work in (train, score, search):
        with contextlib.nullcontext() if by_variable else kernels.plain():
            work(lm)
    assert not used


def test_the_switch_is_that_of_a_thread(used):
    found = []
    with kernels.plain():
        thread = threading.Thread(target=lambda: found.append(kernels.is_plain()))
        thread.start()
        thread.join()
        assert kernels.is_plain()
    assert found == [False]


@pytest.mark.parametrize("value", ["slow", "Plain", "1"])
def test_a_mode_that_does_not_exist(value, monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, value)
    with pytest.raises(ValueError, match=f"{kernels.VARIABLE}: expected fast or plain.*{value}"):
        linear(torch.ones(2, 3), torch.ones(3, 3))

"""`export_onnx`: the graphs are the LM at its posterior mean, for any batch and length."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from experiments import (
    BACKBONES,
    BAYES,
    GP,
    GPS,
    SEARCH,
    VARIATIONAL,
    espnet,
    lstm,
    transformer,
)

from espnet_bayeslm import kernels
from espnet_bayeslm.training.load import load_lm
from espnet_bayeslm.training.onnx import export_onnx, files
from espnet_bayeslm.training.onnx.plain import traceable
from espnet_bayeslm.utils.errors import InputError

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra `onnx`)")
onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra `onnx`)")

CASES = {**BAYES, **GP, **VARIATIONAL, **BACKBONES}
# Their states recur; the others' grow with each token.
RECURRENT = ("lstm", "lstm_num_samples", "gp_lstm", "latent", "feedback", "seq_rnn", "tied", "gru")


@pytest.fixture(scope="module")
def exported(make, tmp_path_factory, request):
    """Return a function that gives an LM by name, and the folder of its graphs."""
    known = {}

    def get(name):
        if name not in known:
            case = CASES.get(name)
            if name == "opt":
                conf = {"opt_name": str(request.getfixturevalue("pretrained_opt"))}
                case = espnet("transformer_opt", conf, {"ffn@1": "bayes"})
            exp, folder = make(name, *case), tmp_path_factory.mktemp("onnx") / name
            export_onnx(exp, folder)
            known[name] = load_lm(exp).lm, Graphs(folder)
        return known[name]

    return get


class Graphs:
    """The graphs of a folder, used as its `onnx.json` says."""

    def __init__(self, folder):
        self.folder = folder
        self.about = json.loads((folder / "onnx.json").read_text())
        self.full, self.step = (
            ort.InferenceSession(folder / self.about[part]["file"]) for part in ("full", "step")
        )

    def sequences(self, ids):
        return self.full.run(["log_probs"], {"tokens": np.array(ids)})[0]

    def start(self, batch):
        sizes = {"B": batch, "P": 0}
        return {
            name: np.zeros([sizes.get(size, size) for size in about["shape"]], about["type"])
            for name, about in self.about["step"]["inputs"].items()
            if name != "tokens"
        }

    def next(self, tokens, state):
        """Return ln p (B, V) after one more token of each (B,), and the new state."""
        names = ["log_probs", *self.about["step"]["next"]]
        feed = {"tokens": np.array(tokens)[:, None], **state}
        log_probs, *new = self.step.run(names, feed)
        return log_probs, dict(zip(self.about["step"]["next"].values(), new, strict=True))


@torch.no_grad()
def expected(lm, ids):
    return lm(torch.tensor(ids), None)[0].log_softmax(-1).numpy()


@pytest.mark.parametrize("name", [*CASES, "opt"])
def test_any_batch_and_length(exported, name):
    lm, graphs = exported(name)
    rng = np.random.default_rng(3)
    for size in ((1, 1), (1, 120), (7, 3), (2, 41)):
        ids = rng.integers(1, 13, size)
        right = expected(lm, ids)
        np.testing.assert_allclose(graphs.sequences(ids), right, atol=2e-5)
        state, found = graphs.start(len(ids)), []
        for column in ids.T:
            log_probs, state = graphs.next(column, state)
            found.append(log_probs)
        np.testing.assert_allclose(np.stack(found, 1), right, atol=2e-5)


@pytest.mark.parametrize(
    "case",
    [
        lstm(GPS, unit=80),
        transformer({"ffn@1": "gp", "hidden_output@2": "variational"}, att_unit=64, unit=256),
    ],
)
def test_weights_that_are_packed_for_speed(make, tmp_path, case):
    """From some size on a product is one of oneDNN's, which no graph has."""
    exp = make("wide", *case)
    export_onnx(exp, tmp_path / "out")
    ids = np.random.default_rng(3).integers(1, 13, (5, 130))
    found = Graphs(tmp_path / "out").sequences(ids)
    right = expected(load_lm(exp).lm, ids)
    # what single precision rounds off grows from step to step
    np.testing.assert_allclose(found[:, :60], right[:, :60], atol=1e-3, rtol=1e-4)


def beam_search(score, sos, *, beam, steps):
    """Return the best token sequences; `score` takes (tokens (B,), states) to (ln p, states)."""
    hypotheses = [((sos,), 0.0, None)]
    for _ in range(steps):
        log_probs, states = score([h[0][-1] for h in hypotheses], [h[2] for h in hypotheses])
        grown = [
            ((*tokens, int(new)), total + float(row[new]), state)
            for (tokens, total, _), row, state in zip(hypotheses, log_probs, states, strict=True)
            # <blank> is in no hypothesis; an LM takes it for the start of a sentence
            for new in 1 + np.argsort(-row[1:])[:beam]
        ]
        hypotheses = sorted(grown, key=lambda h: -h[1])[:beam]
    return [tokens for tokens, _, _ in hypotheses]


@pytest.mark.parametrize("name", ["lstm", "transformer", "both", "gp_lstm", "espnet_transformer"])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_search_finds_what_it_finds_with_the_lm(exported, name, beam):
    lm, graphs = exported(name)
    axis = 1 if name in RECURRENT else 0

    def by_graph(tokens, states):
        states = [graphs.start(1) if state is None else state for state in states]
        batch = {k: np.concatenate([s[k] for s in states], axis) for k in states[0]}
        log_probs, batch = graphs.next(tokens, batch)
        rows = range(len(tokens))
        return log_probs, [{k: v.take([i], axis) for k, v in batch.items()} for i in rows]

    def by_lm(tokens, states):
        log_probs, states = lm.batch_score(torch.tensor(tokens).unsqueeze(1), states, None)
        return log_probs.numpy(), states

    lm.num_samples = 0
    found = [beam_search(score, 12, beam=beam, steps=25) for score in (by_graph, by_lm)]
    assert found[0] == found[1] and len(set(found[0])) == beam


@pytest.mark.parametrize("name", ["lstm", "gp_lstm", "transformer"])
def test_description(exported, name):
    _, graphs = exported(name)
    about = graphs.about
    assert {path.name for path in graphs.folder.iterdir()} == {
        *("full.onnx", "step.onnx", "onnx.json", "tokens.txt")
    }
    tokens = (graphs.folder / about["token_list"]).read_text().splitlines()
    assert tokens[0] == "<blank>" and tokens[about["sos"]] == tokens[about["eos"]] == "<sos/eos>"
    assert len(tokens) == about["vocab_size"] == 13
    for part, session in (("full", graphs.full), ("step", graphs.step)):
        onnx.checker.check_model(graphs.folder / about[part]["file"], full_check=True)
        for side, nodes in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            assert [node.name for node in nodes] == list(about[part][side])
            for node in nodes:
                shape = about[part][side][node.name]["shape"]
                assert len(node.shape) == len(shape)
                fixed = [(a, b) for a, b in zip(node.shape, shape, strict=True) if a != b]
                assert not any(isinstance(a, int) for a, _ in fixed), (node.name, fixed)
    prefix = ["B", 2, "P", 8]
    shapes = {k: v["shape"] for k, v in about["step"]["inputs"].items() if k != "tokens"}
    if name == "transformer":
        assert shapes == {"past_1": prefix, "past_2": prefix}
        assert about["step"]["outputs"]["new_past_2"]["shape"] == ["B", 2, "P + 1", 8]
    else:
        assert shapes == {"h": [2, "B", 8], "c": [2, "B", 8]}


@pytest.mark.parametrize("graph", ["full", "step"])
def test_a_graph_that_differs_is_not_written(make, tmp_path, monkeypatch, graph):
    write = getattr(files, f"write_{graph}")

    def write_another(lm, *args, **kwargs):
        with torch.no_grad():
            lm.lm.decoder.bias[3] += 0.01
        write(lm, *args, **kwargs)
        with torch.no_grad():
            lm.lm.decoder.bias[3] -= 0.01

    monkeypatch.setattr(files, f"write_{graph}", write_another)
    with pytest.raises(InputError, match=rf"{graph}\.onnx differs from the LM by 0\.0"):
        export_onnx(make("lstm", *BAYES["lstm"]), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_traced(make, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such operator\nmany lines")

    monkeypatch.setattr(files, "write_step", fail)
    with pytest.raises(InputError, match=r"this LM cannot be traced \(no such operator\)$"):
        export_onnx(make("lstm", *BAYES["lstm"]), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_super_network_has_no_graph(make, tmp_path):
    with pytest.raises(InputError, match=r"super-network, at ffn@1, has no.*bayeslm search"):
        export_onnx(make("lm", *SEARCH["search"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_onnx(make, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnx" else find(name)
    )
    message = r"needs onnx, not installed here\. pip install 'espnet_bayeslm\[onnx\]'$"
    with pytest.raises(InputError, match=message):
        export_onnx(make("lstm", *BAYES["lstm"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_fused_lstm_is_traced_where_kernels_are_off_too(make):
    lm = load_lm(make("lstm", *BAYES["lstm"])).lm
    with kernels.plain(), traceable(lm):
        assert not kernels.is_plain("lstm_loop")
        assert kernels.is_plain("linear")

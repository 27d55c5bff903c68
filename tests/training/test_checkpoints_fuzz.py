"""Damaged checkpoints: each loader ends in an LM or in one clear error, whatever the damage."""

import collections
import copy
import io
import random

import pytest
import torch
from espnet2.torch_utils.load_pretrained_model import load_pretrained_model
from training_options import ADAM, CELL, LSTM

from espnet_bayeslm.loading.checkpoint import load_state
from espnet_bayeslm.loading.experiment import read_config
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.task import BayesLMTask, check_resume
from espnet_bayeslm.utils.errors import InputError

NUM_CASES = 40
# What stands in a tensor's place: of another shape, of another type, or no tensor at all.
OTHERS = [
    torch.zeros(3),
    torch.zeros(()),
    torch.zeros(0),
    torch.zeros(16, 8, dtype=torch.complex64),
    torch.zeros(32, 8, dtype=torch.int64),
    torch.zeros(2, 2).to_sparse(),
    None,
    "text",
    3,
    [1.0, 2.0],
    {"a": torch.zeros(1)},
]
KEYS = [0, None, (1, 2), "", "lm", "model", b"lm.rnn.bias_hh_l0"]


def damaged_bytes(rng, data):
    """Return a file cut short, with bytes of other values, or with a piece more or less."""
    begin = rng.randrange(len(data))
    end = min(len(data), begin + rng.randrange(1, 200))
    flipped = bytearray(data)
    for _ in range(rng.choice([1, 1, 3, 30])):
        flipped[rng.randrange(len(data))] = rng.randrange(256)
    pieces = data[:begin] + data[end:], data[:end] + data[begin:]
    return rng.choice([data[:begin], bytes(flipped), *pieces])


def damaged_state(rng, state):
    """Return a file of other keys or values at one place, or of something else altogether."""
    damaged, key = copy.copy(state), rng.choice(list(state))
    kind = rng.choice(["value", "key", "extra", "missing"])
    other = rng.choice(OTHERS) if kind == "extra" else damaged.pop(key)
    if kind == "value":
        damaged[key] = rng.choice(OTHERS)
    elif kind != "missing":
        damaged[rng.choice(KEYS)] = other
    whole = [None, 7, "text", [], {}, torch.zeros(2), [state], {"model": 3}]
    written = io.BytesIO()
    torch.save(rng.choice(whole) if rng.random() < 0.1 else damaged, written)
    return written.getvalue()


@pytest.fixture(scope="module")
def trained(train_lm, tmp_path_factory):
    """Return the folder of a Bayesian LM."""
    folder = tmp_path_factory.mktemp("fuzz") / "exp"
    return train_lm(folder, *LSTM, *CELL, *ADAM)


def run_cases(path, load, state, *, named=None):
    """Load damaged files in place of one that holds `state`; errors name it, or `named`."""
    data, outcomes = path.read_bytes(), collections.Counter()
    load()  # as long as it is whole
    for case in range(NUM_CASES):
        rng = random.Random(case)
        in_archive = rng.random() < 0.5
        path.write_bytes(damaged_state(rng, state) if in_archive else damaged_bytes(rng, data))
        try:
            load()
            outcomes["loaded"] += 1
        except InputError as error:
            assert str(error).startswith(f"{named or path}: "), f"case {case}: {error}"
            assert "\n" not in str(error) and len(str(error)) < 1000, f"case {case}: {error}"
            outcomes["error"] += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {error!r}") from error
    path.write_bytes(data)
    assert outcomes["error"] > 0.6 * NUM_CASES, outcomes


def model_of(exp):
    return BayesLMTask.build_model(read_config(exp / "config.yaml"))


def test_load(trained):
    link = trained / "valid.loss.ave.pth"
    run_cases(link.resolve(), lambda: load_lm(trained), load_state(link), named=link)


@pytest.mark.parametrize("option", ["prior", "from"])
def test_starting_points_and_priors(trained, tmp_path, option):
    """What `--init_param` and the prior read; `--from` gives one file to both."""
    path = tmp_path / "start.pth"
    state = load_state(trained / "valid.loss.ave.pth")
    torch.save(state, path)
    model = model_of(trained)
    args = read_config(trained / "config.yaml")
    args.resume = False
    args.model_conf = {"prior": str(path)}
    args.init_param = [str(path)] if option != "prior" else []

    def load():
        BayesLMTask.prepare_training(model, args)
        for init_param in args.init_param:  # as ESPnet does then
            load_pretrained_model(init_param, model, False, map_location="cpu")

    run_cases(path, load, state)


def test_resuming(trained, tmp_path):
    path = tmp_path / "checkpoint.pth"
    path.write_bytes((trained / "checkpoint.pth").read_bytes())
    model, args = model_of(trained), read_config(trained / "config.yaml")
    args.token_list = list(args.token_list)
    whole = torch.load(path, weights_only=False)
    run_cases(path, lambda: check_resume(path, model, args), whole)

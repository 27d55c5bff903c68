"""Checkpoints: resumed, damaged, of other models, in parts."""

import copy
import io
import os
import random
import shutil

import pytest
import torch
from espnet2.torch_utils.load_pretrained_model import load_pretrained_model
from training_options import ADAM, CELL, LSTM, STILL, TRANSFORMER, assert_same, lstm, stats

from espnet_bayeslm.bayes.base_kinds import is_posterior_key
from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.loading.experiment import load_state, read_config
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.task import BayesLMTask, check_init_param, check_resume, check_run
from espnet_bayeslm.utils.errors import InputError


@pytest.mark.parametrize("kind", ["bayes", "search"])
def test_a_resumed_run_repeats_the_unbroken_one(train_lm, tmp_path, kind):
    options = [*TRANSFORMER, "--lm_conf", f"uncertainty.ffn@*={kind}", *ADAM]
    unbroken = train_lm(tmp_path / "unbroken", *options, max_epoch=2)
    broken = train_lm(tmp_path / "broken", *options, max_epoch=1)
    before = load_state(broken / "1epoch.pth")
    train_lm(broken, *options, "--resume", "true", max_epoch=2)
    assert_same(unbroken / "2epoch.pth", broken / "2epoch.pth")
    assert stats(unbroken, 2)["loss"] == stats(broken, 2)["loss"]
    after = load_state(broken / "2epoch.pth")
    if kind == "bayes":
        assert int(after["lm.noise_step"]) == 2 * (120 // 16)
    else:
        architecture = [key for key in after if ".search." in key]
        assert any(not torch.equal(before[key], after[key]) for key in architecture)
        histories = [(run / "architecture.jsonl").read_text() for run in (unbroken, broken)]
        assert histories[0] == histories[1]


def lm_model(**options):
    return BayesLanguageModel(BayesLSTMLM(12, **{"unit": 8, "nlayers": 2, **options}), 12)


@pytest.fixture
def saved(tmp_path):
    torch.save(lm_model().state_dict(), tmp_path / "two.pth")
    return tmp_path / "two.pth"


@pytest.mark.parametrize(
    "form, options, message",
    [
        ("", dict(nlayers=3), "another architecture: .* of the model are not in it"),
        ("", dict(unit=12), "has shape"),
        ("", dict(nlayers=1, uncertainty={"cell_input@1": "bayes"}), "have no place in the model"),
        (":lmx:lm", {}, "no tensor of it is named lmx"),
        (":lm:foo", {}, "no foo"),
    ],
)
def test_initial_checkpoints_that_do_not_fit(saved, form, options, message):
    with pytest.raises(InputError, match=message):
        check_init_param(f"{saved}{form}", lm_model(**options), complete=True)


def test_what_does_not_fit_may_be_ignored(saved):
    model = lm_model(nlayers=3)
    check_init_param(str(saved), model, complete=False)
    load_pretrained_model(str(saved), model, ignore_init_mismatch=True)
    assert torch.equal(model.lm.rnn.weight_ih_l1, load_state(saved)["lm.rnn.weight_ih_l1"])


@pytest.mark.parametrize("form", [":lm:lm", ":lm.rnn:lm.rnn", ":::lm.encoder,lm.decoder"])
def test_parts_of_a_checkpoint(saved, form):
    model = lm_model(uncertainty={"cell_input@1-2": "bayes"})
    check_init_param(f"{saved}{form}", model, complete=True)
    load_pretrained_model(f"{saved}{form}", model, ignore_init_mismatch=False)
    for name in ("lm.rnn.weight_ih_l1", "lm.rnn.bias_hh_l0"):
        assert torch.equal(model.state_dict()[name], load_state(saved)[name])


def test_a_part_of_a_point_estimate_lm_takes_the_mean_of_a_posterior(tmp_path):
    bayes = lm_model(uncertainty={"cell_input@1-2": "bayes"}).state_dict()
    torch.save(bayes, tmp_path / "bayes.pth")
    model, part = lm_model(), f"{tmp_path}/bayes.pth:lm.rnn:lm.rnn"
    check_init_param(part, model, complete=True)
    load_pretrained_model(part, model, ignore_init_mismatch=False)
    for name, value in model.lm.rnn.state_dict().items():
        assert torch.equal(value, bayes[f"lm.rnn.{name}"])


def test_folders_that_do_not_load(make, point, tmp_path):
    """ESPnet writes checkpoint.pth before the epoch's model."""
    exp = make("bayes", *lstm({"cell_input@1": "bayes"}))
    state = load_state(exp / "valid.loss.ave.pth")
    means = {key: value for key, value in state.items() if not is_posterior_key(key)}
    numbers = {key: value.long() for key, value in state.items()}
    other_type = r"holds torch\.int64, expected torch\.float32"
    for damaged, message in ((means, "not in the checkpoint"), (numbers, other_type)):
        torch.save(damaged, exp / "valid.loss.ave.pth")
        with pytest.raises(InputError, match=message):
            load_lm(exp)
    exp = shutil.copytree(point, tmp_path / "exp", symlinks=True)
    (exp / "valid.loss.ave.pth").unlink()
    (exp / "valid.loss.ave.pth").symlink_to("gone.pth")
    with pytest.raises(ValueError, match="goes on where it was stopped"):
        load_lm(exp)

    class Code:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "ran"),)

    torch.save({"lm": Code()}, tmp_path / "bad.pth")
    with pytest.raises(ValueError, match="a folder, where a checkpoint was expected"):
        load_state(point)
    with pytest.raises(ValueError, match="cannot be read"):
        load_state(tmp_path / "bad.pth")
    assert not (tmp_path / "ran").exists()


def test_resuming_with_other_locations_or_tokens_is_refused(train_lm, tmp_path, point):
    exp = train_lm(tmp_path / "exp", *LSTM, *CELL)
    before = (exp / "config.yaml").read_bytes()
    other = ["--lm_conf", "uncertainty.forget_gate@2=bayes"]
    with pytest.raises(ValueError, match="another architecture"):
        train_lm(exp, *LSTM, *other, "--resume", "true", max_epoch=2)
    assert (exp / "config.yaml").read_bytes() == before
    args = read_config(point / "config.yaml")
    model = BayesLMTask.build_model(args)
    check_resume(point / "checkpoint.pth", model, args)
    run = torch.load(point / "checkpoint.pth", weights_only=False)
    for name, other in (("reporter", {"epoch": "2", "stats": {}}), ("optimizers", [3])):
        with pytest.raises(InputError, match="cannot be resumed: reporter, optimizers of the"):
            check_run({**run, name: other}, path="checkpoint.pth")
    tokens = args.token_list
    args.token_list = [*tokens[:2], tokens[3], tokens[2], *tokens[4:]]
    with pytest.raises(InputError, match="another token list"):
        check_resume(point / "checkpoint.pth", model, args)


def test_the_prior_asked_for_wins_over_the_initial_checkpoints(point, train_lm, tmp_path):
    bayes = train_lm(tmp_path / "bayes", *LSTM, *CELL, *ADAM)
    prior = point / "valid.loss.best.pth"
    options = ["--init_param", bayes / "1epoch.pth", "--model_conf", f"prior={prior}"]
    state = load_state(train_lm(tmp_path / "exp", *LSTM, *CELL, *options, *STILL) / "1epoch.pth")
    for name in (f"lm.rnn.{part}" for part in ("weight_ih_l0", "weight_hh_l1", "bias_ih_l1")):
        # the rows of the cell input, of 8 units
        assert torch.equal(state[f"{name}_cell_input_prior_mean"], load_state(prior)[name][16:24])
        assert torch.equal(state[name], load_state(bayes / "1epoch.pth")[name])


NUM_CASES = 40
# What stands in a tensor's place: of another shape, of another type, or no tensor at all.
OTHERS = [
    *map(torch.zeros, [3, (), 0]),
    torch.zeros(16, 8, dtype=torch.complex64),
    torch.zeros(32, 8, dtype=torch.int64),
    torch.zeros(2, 2).to_sparse(),
    *[None, "text", 3, [1.0, 2.0], {"a": torch.zeros(1)}],
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
    return train_lm(tmp_path_factory.mktemp("trained") / "exp", *LSTM, *CELL, *ADAM)


def run_cases(path, load, state, *, named=None):
    """Load damaged files in place of one that holds `state`; errors name it, or `named`."""
    data, num_errors = path.read_bytes(), 0
    load()  # as long as it is whole
    for case in range(NUM_CASES):
        rng = random.Random(case)
        in_archive = rng.random() < 0.5
        path.write_bytes(damaged_state(rng, state) if in_archive else damaged_bytes(rng, data))
        try:
            load()
        except InputError as error:
            assert str(error).startswith(f"{named or path}: "), f"case {case}: {error}"
            assert "\n" not in str(error) and len(str(error)) < 1000, f"case {case}: {error}"
            num_errors += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {error!r}") from error
    path.write_bytes(data)
    assert num_errors > 0.6 * NUM_CASES


def model_of(exp):
    return BayesLMTask.build_model(read_config(exp / "config.yaml"))


def test_load(trained):
    link = trained / "valid.loss.ave.pth"
    run_cases(link.resolve(), lambda: load_lm(trained), load_state(link), named=link)


@pytest.mark.parametrize("option", ["prior", "from"])
def test_starting_points_and_priors(trained, tmp_path, option):
    """A damaged start or prior is one error; `--from` gives one file to both."""
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

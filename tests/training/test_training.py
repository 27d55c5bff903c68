"""Training through ESPnet's own task and trainer, in this process and in others."""

import argparse
import os
import re
import socket
import subprocess
import sys

import pytest
import torch
import yaml

from espnet_bayeslm.training.checkpoint import load_state, read_checkpoint
from espnet_bayeslm.training.load import load_lm
from espnet_bayeslm.training.task import BayesLMTask, count_tokens

LSTM = ["--lm", "bayes_lstm", "--lm_conf", "unit=8", "--lm_conf", "dropout_rate=0.0"]
TRANSFORMER = ["--lm", "bayes_transformer", "--lm_conf", "att_unit=8"]
TRANSFORMER += ["--lm_conf", "head=2", "--lm_conf", "unit=8", "--lm_conf", "layer=2"]
TRANSFORMER += ["--lm_conf", "dropout_rate=0.0"]
FFN = ["--lm_conf", "uncertainty.ffn@1=bayes"]
ADAM = ["--optim", "adam", "--optim_conf", "lr=0.01"]
CELL = ["--lm_conf", "uncertainty.cell_input@1-2=bayes"]
# A standard deviation of 2e-9: the draws change nothing that is compared.
QUIET = ["--lm_conf", "init_std=1.0e-9"]


def stats(output, epoch=1, part="train"):
    return read_checkpoint(output / "checkpoint.pth")["reporter"]["stats"][epoch][part]


@pytest.fixture(scope="module")
def point(train_lm, tmp_path_factory):
    return train_lm(tmp_path_factory.mktemp("point") / "exp", *LSTM, *ADAM, max_epoch=2)


def test_point_model_learns_and_is_the_baseline(point):
    first, second = (stats(point, epoch, "valid") for epoch in (1, 2))
    assert second["ppl"] < first["ppl"] < 13
    assert second["loss"] == second["nll"] and second["kl"] == 0
    config = yaml.safe_load((point / "config.yaml").read_text())
    assert config["model"] == "bayes_lm"


def test_reported_perplexity_is_that_of_the_text(point):
    for part in ("train", "valid"):
        values = stats(point, 1, part)
        assert values["ppl"] == pytest.approx(torch.tensor(values["nll"]).exp().item(), rel=1e-6)


def test_num_train_tokens_is_counted(corpus, train_lm, tmp_path):
    output = train_lm(tmp_path / "exp", *LSTM, *CELL, "--optim_conf", "lr=0.0")
    lines = (corpus / "train.txt").read_text().splitlines()
    tokens = sum(len(line.split()) for line in lines)  # the key stands for </s>
    assert count_tokens([f"{corpus}/train.shape"]) == tokens
    kl = load_lm(output).lm.kl().item()
    assert stats(output)["kl"] == pytest.approx(kl / tokens, rel=1e-5)


@pytest.mark.parametrize("batch_size, accum_grad", [(7, 1), (32, 1), (1, 4), (7, 4)])
def test_the_reported_loss_is_the_elbo(train_lm, tmp_path, batch_size, accum_grad):
    """An epoch without learning: the loss depends on the text and the weights alone."""
    options = [*LSTM, *CELL, *QUIET, "--optim", "sgd", "--optim_conf", "lr=0.0"]
    options += ["--train_dtype", "float64"]
    output = train_lm(tmp_path / "exp", *options, "--accum_grad", accum_grad, batch_size=batch_size)
    one = train_lm(tmp_path / "one", *options, batch_size=1)
    assert stats(output)["loss"] == pytest.approx(stats(one)["loss"], abs=1e-6)


def test_bayesian_fine_tuning_starts_from_the_point_model(point, train_lm, tmp_path):
    checkpoint = point / "valid.loss.best.pth"
    output = train_lm(
        tmp_path / "exp",
        *[*LSTM, *CELL, "--init_param", checkpoint, "--model_conf", f"prior={checkpoint}"],
        *["--optim", "sgd", "--optim_conf", "lr=0.0"],
    )
    state, before = load_state(output / "valid.loss.ave.pth"), load_state(checkpoint)
    for key, value in before.items():
        assert torch.equal(state[key], value), key
    rows = slice(16, 24)  # the cell input's, of 8 units
    for name in ("weight_ih_l0", "weight_hh_l1", "bias_ih_l1"):
        prior = state[f"lm.rnn.{name}_cell_input_prior_mean"]
        assert torch.equal(prior, before[f"lm.rnn.{name}"][rows])
    assert stats(output, 1, "valid")["nll"] == pytest.approx(
        min(stats(point, n, "valid")["nll"] for n in (1, 2)), abs=1e-5
    )


def test_bayesian_means_load_into_the_point_model(train_lm, tmp_path):
    bayes = train_lm(tmp_path / "bayes", *LSTM, *CELL, *ADAM)
    best = bayes / "valid.loss.best.pth"
    output = train_lm(
        tmp_path / "exp", *LSTM, "--init_param", best, "--optim", "sgd", "--optim_conf", "lr=0.0"
    )
    state, before = load_state(output / "valid.loss.ave.pth"), load_state(best)
    assert set(state) < set(before)
    assert all(torch.equal(value, before[key]) for key, value in state.items())
    assert stats(output, 1, "valid")["nll"] == pytest.approx(stats(bayes, 1, "valid")["nll"])


def test_a_resumed_run_repeats_the_unbroken_one(train_lm, tmp_path):
    options = [*TRANSFORMER, "--lm_conf", "uncertainty.ffn@1=bayes", *ADAM]
    unbroken = train_lm(tmp_path / "unbroken", *options, max_epoch=3)
    train_lm(tmp_path / "broken", *options, max_epoch=1)
    broken = train_lm(tmp_path / "broken", *options, "--resume", "true", max_epoch=3)
    a, b = load_state(unbroken / "3epoch.pth"), load_state(broken / "3epoch.pth")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert int(a["lm.noise_step"]) == 3 * (120 // 16)


def test_learning_rate_is_halved_when_perplexity_does_not_fall(train_lm, tmp_path):
    output = train_lm(
        tmp_path / "exp",
        *[*LSTM, "--optim", "sgd", "--optim_conf", "lr=0.0", "--scheduler", "reducelronplateau"],
        *["--scheduler_conf", "factor=0.5", "--scheduler_conf", "patience=0"],
        max_epoch=3,
    )
    state = read_checkpoint(output / "checkpoint.pth")
    assert state["schedulers"][0]["factor"] == 0.5
    assert state["schedulers"][0]["num_bad_epochs"] == 0  # each bad epoch was answered


def test_init_leaves_the_standard_deviations(train_lm, tmp_path):
    output = train_lm(
        tmp_path / "exp", *LSTM, *CELL, "--init", "xavier_uniform", "--dry_run", "true"
    )
    args = yaml.safe_load((output / "config.yaml").read_text())
    model = BayesLMTask.build_model(argparse.Namespace(**args))
    log_std = [v for k, v in model.named_parameters() if k.endswith("_log_std")]
    assert log_std and all((v == torch.tensor(0.01).log()).all() for v in log_std)


def test_weight_decay_leaves_the_standard_deviations(train_lm, tmp_path):
    decay = ["--optim", "sgd", "--optim_conf", "lr=1.0", "--optim_conf", "weight_decay=0.5"]
    frozen = ["--model_conf", "kl_weight=0.0", *QUIET]
    state = load_state(train_lm(tmp_path / "exp", *LSTM, *CELL, *decay, *frozen) / "1epoch.pth")
    log_std = [v for k, v in state.items() if k.endswith("_log_std")]
    assert log_std and all((v == torch.tensor(1e-9).log()).all() for v in log_std)
    assert state["lm.rnn.weight_hh_l0"].abs().max() < 0.1


def worker(corpus, output, *options, rank=None, world=None, port=None):
    """Start `python -m espnet_bayeslm -m espnet2.bin.lm_train` in a process of its own."""
    command = [sys.executable, "-m", "espnet_bayeslm", "-m", "espnet2.bin.lm_train"]
    command += ["--token_type", "word", "--token_list", f"{corpus}/tokens.txt"]
    for name in ("train", "valid"):
        command += [f"--{name}_data_path_and_name_and_type", f"{corpus}/{name}.txt,text,text"]
        command += [f"--{name}_shape_file", f"{corpus}/{name}.shape"]
    command += ["--batch_type", "unsorted", "--batch_size", "16", "--num_workers", "0"]
    command += ["--max_epoch", "1", "--use_matplotlib", "false", "--num_att_plot", "0"]
    command += ["--output_dir", str(output), *options]
    if world:
        command += ["--dist_world_size", str(world), "--dist_rank", str(rank), "--ngpu", "0"]
        command += ["--dist_backend", "gloo", "--dist_master_addr", "localhost"]
        command += ["--dist_master_port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def run_two(corpus, output, *options):
    port = free_port()
    ranks = [worker(corpus, output, *options, rank=r, world=2, port=port) for r in range(2)]
    logs = [process.communicate(timeout=300)[0] for process in ranks]
    assert all(process.returncode == 0 for process in ranks), "\n".join(logs)[-3000:]
    return output


@pytest.mark.parametrize("lm", [[*LSTM, *CELL], [*TRANSFORMER, *FFN]], ids=["lstm", "transformer"])
def test_two_processes_have_the_loss_of_one(corpus, train_lm, tmp_path, lm):
    options = [*lm, *QUIET, "--optim", "sgd", "--optim_conf", "lr=0.0"]
    options += ["--train_dtype", "float64"]
    two = run_two(corpus, tmp_path / "two", *options)
    one = train_lm(tmp_path / "one", *options)
    for part in ("train", "valid"):
        assert stats(two, 1, part)["loss"] == pytest.approx(stats(one, 1, part)["loss"], abs=1e-6)


def test_two_processes_learn_as_one(corpus, train_lm, tmp_path):
    """The gradient counts the KL once: the same weights after an epoch of steps.

    One process with twice the batch makes the same steps as two, where a batch is split.
    """
    options = [*LSTM, *CELL, *QUIET, "--optim", "sgd", "--optim_conf", "lr=0.5"]
    options += ["--model_conf", "kl_weight=0.1"]
    two = run_two(corpus, tmp_path / "two", *options)
    one = train_lm(tmp_path / "one", *options)
    a, b = load_state(two / "1epoch.pth"), load_state(one / "1epoch.pth")
    for key in a:
        assert torch.allclose(a[key].double(), b[key].double(), atol=1e-5), key


def test_ranks_draw_differently(corpus, tmp_path):
    script = (
        "import torch, torch.distributed as d\n"
        "from espnet_bayeslm.lm import BayesLSTMLM\n"
        "d.init_process_group('gloo')\n"
        "torch.manual_seed(0)\n"
        "lm = BayesLSTMLM(9, unit=4, dropout_rate=0.0, uncertainty={'cell_input@1': 'bayes'})\n"
        "print('logit', lm.train()(torch.ones(1, 1, dtype=torch.long))[0].sum().item())\n"
    )
    port = str(free_port())
    values = set()
    ranks = []
    for rank in ("0", "1"):
        env = {**os.environ, "RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
        env["MASTER_PORT"] = port
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True
            )
        )
    for process in ranks:
        values.update(re.findall(r"logit (\S+)", process.communicate(timeout=120)[0]))
    assert len(values) == 2


@pytest.mark.parametrize(
    "options, words",
    [
        (["--lm_conf", "uncertainty.cell@1=bayes"], ["'cell'", "cell_input"]),
        (["--lm_conf", "uncertainty.cell_input@3=bayes"], ["1 to 2"]),
        (["--model_conf", "prior=missing.pth"], ["missing.pth", "cannot be read"]),
        (["--init_param", "missing.pth"], ["missing.pth", "cannot be read"]),
    ],
)
def test_bad_options_end_in_one_error(train_lm, tmp_path, options, words):
    with pytest.raises(ValueError) as error:
        train_lm(tmp_path / "exp", *LSTM, *options)
    assert all(word in str(error.value) for word in words)
    assert not (tmp_path / "exp" / "checkpoint.pth").exists()


@pytest.mark.parametrize("option", ["--init_param", "--model_conf=prior"])
def test_checkpoint_of_another_architecture(point, train_lm, tmp_path, option):
    value = f"{point}/valid.loss.best.pth"
    words = ["--model_conf", f"prior={value}"] if "prior" in option else [option, value]
    with pytest.raises(ValueError, match="another architecture"):
        train_lm(tmp_path / "exp", *TRANSFORMER, *words)
    with pytest.raises(ValueError, match="has shape"):
        train_lm(tmp_path / "exp", *LSTM, "--lm_conf", "unit=12", *words)


@pytest.mark.parametrize(
    "tokens, word",
    [
        (["<blank>", "a", "<sos/eos>"], "lacks <unk>"),
        (["<blank>", "<unk>", "a"], "lacks <sos/eos>"),
        (["<blank>", "<unk>", "<sos/eos>", "a"], "<sos/eos> last"),
        (["<blank>", "<unk>", "a", "a", "<sos/eos>"], ":4: the token 'a'"),
    ],
)
def test_bad_token_lists(train_lm, tmp_path, tokens, word):
    path = tmp_path / "tokens.txt"
    path.write_text("\n".join(tokens) + "\n")
    with pytest.raises(ValueError) as error:
        train_lm(tmp_path / "exp", *LSTM, "--token_list", path)
    assert word in str(error.value) and str(path) in str(error.value)


def test_bad_shape_file(tmp_path):
    path = tmp_path / "shape"
    path.write_text("u1 3,10\nu2 x\n")
    with pytest.raises(ValueError, match="shape:2: expected `utterance length"):
        count_tokens([str(path)])


def test_damaged_checkpoints(point, train_lm, tmp_path):
    whole = (point / "checkpoint.pth").read_bytes()
    exp = tmp_path / "exp"
    exp.mkdir()
    (exp / "checkpoint.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"checkpoint\.pth: cannot be read as a checkpoint"):
        train_lm(exp, *LSTM, "--resume", "true", max_epoch=3)


def test_checkpoints_with_code_are_refused(tmp_path):
    class Code:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "ran"),)

    torch.save({"lm": Code()}, tmp_path / "bad.pth")
    with pytest.raises(ValueError, match="cannot be read"):
        load_state(tmp_path / "bad.pth")
    assert not (tmp_path / "ran").exists()


def test_point_checkpoint_is_not_taken_for_a_bayesian_one(point, train_lm, tmp_path):
    bayes = train_lm(tmp_path / "exp", *LSTM, *CELL)
    target = (bayes / "valid.loss.ave.pth").resolve()
    target.write_bytes((point / "valid.loss.best.pth").read_bytes())
    with pytest.raises(ValueError, match="not in the checkpoint"):
        load_lm(bayes)


def test_resuming_another_architecture(point, train_lm):
    with pytest.raises(ValueError, match="has shape"):
        train_lm(point, *LSTM, "--lm_conf", "unit=12", "--resume", "true", max_epoch=3)


def test_ranks_of_a_transformer_may_have_batches_of_unequal_length(corpus, tmp_path):
    """What grows with the longest sentence must not be a buffer that ranks share."""
    text = "".join(
        f"u{n:03d} {' '.join('abc'[: 1 + n % 3] * (1 + 40 * (n % 2)))}\n" for n in range(32)
    )
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "tokens.txt").write_bytes((corpus / "tokens.txt").read_bytes())
    for part in ("train", "valid"):
        (folder / f"{part}.txt").write_text(text)
        shapes = [f"{k} {len(w)},13\n" for k, *w in map(str.split, text.splitlines())]
        (folder / f"{part}.shape").write_text("".join(shapes))
    run_two(folder, tmp_path / "exp", *TRANSFORMER, *FFN, "--batch_size", "2")


def test_a_kill_between_checkpoint_and_model_heals(train_lm, tmp_path):
    """ESPnet writes checkpoint.pth before the epoch's model."""
    options = [*LSTM, *CELL, *ADAM, "--keep_nbest_models", "3"]
    exp = train_lm(tmp_path / "exp", *options, max_epoch=2)
    expected = load_state(exp / "2epoch.pth")
    (exp / "2epoch.pth").unlink()
    (exp / ".2epoch.pth.x1y2").write_bytes(b"half")
    with pytest.raises(ValueError, match="goes on where it was stopped"):
        (exp / "valid.loss.ave.pth").unlink()
        (exp / "valid.loss.ave.pth").symlink_to("2epoch.pth")
        load_lm(exp)
    train_lm(exp, *options, "--resume", "true", max_epoch=3)
    assert not list(exp.glob(".*.pth.*"))
    again = load_state(exp / "2epoch.pth")
    assert all(torch.equal(again[key], expected[key]) for key in expected)
    assert load_lm(exp).lm.locations() == ["cell_input@1", "cell_input@2"]


def test_resuming_with_other_locations_is_refused_before_anything_is_written(train_lm, tmp_path):
    exp = train_lm(tmp_path / "exp", *LSTM, *CELL)
    before = (exp / "config.yaml").read_bytes()
    other = ["--lm_conf", "uncertainty.forget_gate@2=bayes"]
    with pytest.raises(ValueError, match="another architecture"):
        train_lm(exp, *LSTM, *other, "--resume", "true", max_epoch=2)
    assert (exp / "config.yaml").read_bytes() == before


def test_resuming_with_other_tokens_of_the_same_number_is_refused(corpus, train_lm, tmp_path):
    exp = train_lm(tmp_path / "exp", *LSTM)
    tokens = (corpus / "tokens.txt").read_text().split()
    tokens[2], tokens[3] = tokens[3], tokens[2]
    (tmp_path / "tokens.txt").write_text("\n".join(tokens) + "\n")
    with pytest.raises(ValueError, match="another token list"):
        options = ["--token_list", tmp_path / "tokens.txt", "--resume", "true"]
        train_lm(exp, *LSTM, *options, max_epoch=2)


def test_the_prior_asked_for_wins_over_the_initial_checkpoints(point, train_lm, tmp_path):
    bayes = train_lm(tmp_path / "bayes", *LSTM, *CELL, *ADAM)
    prior = point / "valid.loss.best.pth"
    options = ["--init_param", bayes / "1epoch.pth", "--model_conf", f"prior={prior}"]
    still = ["--optim", "sgd", "--optim_conf", "lr=0.0"]
    state = load_state(train_lm(tmp_path / "exp", *LSTM, *CELL, *options, *still) / "1epoch.pth")
    name = "lm.rnn.weight_hh_l0"
    assert torch.equal(state[f"{name}_cell_input_prior_mean"], load_state(prior)[name][16:24])
    assert torch.equal(state[name], load_state(bayes / "1epoch.pth")[name])


def test_uncertain_weights_do_not_train_without_their_kl(train_lm, tmp_path):
    with pytest.raises(ValueError, match="without their KL"):
        train_lm(tmp_path / "exp", *LSTM, *CELL, "--model", "lm")


def test_a_deeper_model_is_no_prior_and_no_start(train_lm, tmp_path):
    deep = train_lm(tmp_path / "deep", *LSTM, "--lm_conf", "nlayers=3") / "1epoch.pth"
    for option in (["--model_conf", f"prior={deep}"], ["--init_param", deep]):
        with pytest.raises(ValueError, match="have no place in the model"):
            train_lm(tmp_path / "exp", *LSTM, *CELL, *option)


def test_parts_of_a_checkpoint(train_lm, tmp_path):
    bayes = train_lm(tmp_path / "bayes", *LSTM, *CELL, *ADAM) / "1epoch.pth"
    still = ["--optim", "sgd", "--optim_conf", "lr=0.0"]
    for n, form in enumerate(
        (f"{bayes}:lm:lm", f"{bayes}:lm.rnn:lm.rnn", f"{bayes}:::lm.encoder,lm.decoder")
    ):
        exp = train_lm(tmp_path / f"exp{n}", *LSTM, *still, "--init_param", form)
        name = "lm.rnn.weight_ih_l1"
        assert torch.equal(load_state(exp / "1epoch.pth")[name], load_state(bayes)[name])
    for form, word in (
        (f"{bayes}:lmx:lm", "no tensor of it is named lmx"),
        (f"{bayes}:lm:foo", "no foo"),
    ):
        with pytest.raises(ValueError, match=word):
            train_lm(tmp_path / "exp", *LSTM, "--init_param", form)

"""Two processes with gloo."""

import os
import re
import socket
import subprocess

import pytest
from training_options import (
    CELL,
    FFN,
    LSTM,
    QUIET,
    STILL,
    TRANSFORMER,
    assert_same,
    data_options,
    stats,
)

HANGING = 3600  # seconds: only ranks that wait for each other for ever take so long


def worker(python, corpus, output, *options, rank, world, port):
    """Start `python -m espnet_bayeslm -m espnet2.bin.lm_train` in a process of its own."""
    command = [python, "-m", "espnet_bayeslm", "-m", "espnet2.bin.lm_train"]
    command += [*data_options(corpus), "--max_epoch", "1", "--output_dir", str(output), *options]
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


@pytest.fixture
def run_two(python):
    """Return a function that runs a training as two processes and returns its folder."""

    def run(*words):
        port = free_port()
        ranks = [worker(python, *words, rank=rank, world=2, port=port) for rank in range(2)]
        logs = [process.communicate(timeout=HANGING)[0] for process in ranks]
        assert all(process.returncode == 0 for process in ranks), "\n".join(logs)[-3000:]
        return words[1]

    return run


# Every family; a parameter that the backward pass does not reach would stop DDP.
GP = ["--lm_conf", "uncertainty.cell_state@1=gp", "--lm_conf", "uncertainty.hidden_input@1=gp"]
GP += ["--lm_conf", "uncertainty.cell_input@2=gp"]
# Latent outputs that draw as good as nothing, as QUIET weights do.
LATENT = [
    *["--lm_conf", "uncertainty.hidden_output@1-2.kind=variational"],
    *["--lm_conf", "uncertainty.hidden_output@1-2.init_std=3.0e-9"],
]
LMS = {
    "lstm": [*LSTM, *CELL],
    "transformer": [*TRANSFORMER, *FFN],
    "lstm gp": [*LSTM, *GP],
    "lstm variational": [*LSTM, *LATENT],
    "lstm search": [*LSTM, "--lm_conf", "uncertainty.all_gates@1-2=search", *LATENT],
    "transformer search": [*TRANSFORMER, "--lm_conf", "uncertainty.ffn@*=search"],
    "transformer gp variational": [*TRANSFORMER, "--lm_conf", "uncertainty.ffn@1=gp", *LATENT],
}


@pytest.mark.parametrize("lm", LMS.values(), ids=LMS)
def test_two_processes_have_the_loss_of_one(run_two, corpus, train_lm, tmp_path, lm):
    options = [*lm, *QUIET, *STILL]
    options += ["--train_dtype", "float64", "--model_conf", "posterior_lr=null"]
    options += ["--model_conf", "architecture_lr=null"]
    two = run_two(corpus, tmp_path / "two", *options)
    one = train_lm(tmp_path / "one", *options)
    for part in ("train", "valid"):
        assert stats(two, 1, part)["loss"] == pytest.approx(stats(one, 1, part)["loss"], abs=1e-6)


def test_two_processes_learn_as_one(run_two, corpus, train_lm, tmp_path):
    """The gradient counts the KL once: the same weights after an epoch of steps.

    One process with twice the batch makes the same steps as two, where a batch is split.
    """
    options = [*LSTM, *CELL, *QUIET, "--optim", "sgd", "--optim_conf", "lr=0.5"]
    options += ["--model_conf", "kl_weight=0.1"]
    two = run_two(corpus, tmp_path / "two", *options)
    one = train_lm(tmp_path / "one", *options)
    assert_same(two / "1epoch.pth", one / "1epoch.pth", rtol=1e-5, atol=1e-5)


def test_ranks_draw_differently(python, tmp_path):
    script = (
        "import torch, torch.distributed as d\n"
        "from espnet_bayeslm.lm import BayesLSTMLM\n"
        "d.init_process_group('gloo')\n"
        "torch.manual_seed(0)\n"
        "lm = BayesLSTMLM(9, unit=4, dropout_rate=0.0, uncertainty={'cell_input@1': 'bayes'})\n"
        "print('logit', lm.train()(torch.ones(1, 1, dtype=torch.long))[0].sum().item())\n"
    )
    (tmp_path / "draw.py").write_text(script)
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [python, tmp_path / "draw.py"],
            env={**os.environ, **group, "RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    logs = "".join(process.communicate(timeout=HANGING)[0] for process in ranks)
    assert len(set(re.findall(r"logit (\S+)", logs))) == 2


def test_ranks_of_a_transformer_may_have_batches_of_unequal_length(run_two, corpus, tmp_path):
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

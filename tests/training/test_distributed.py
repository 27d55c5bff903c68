"""Two processes with gloo."""

import os
import socket

import pytest
import torch
from forked import CONTEXT, finish, log_of, start
from tiny_training import words, write_sentences
from training_options import CELL, FFN, LSTM, QUIET, STILL, TRANSFORMER, assert_same, stats

from espnet_bayeslm.lm import BayesLSTMLM


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def run_two(corpus, output, *options):
    """Run a training as two processes, and return its folder."""
    address = dict(dist_master_addr="localhost", dist_master_port=free_port())
    options = [*options, *words(ngpu=0, dist_backend="gloo", dist_world_size=2, **address)]
    ranks = [start(corpus, output, *options, "--dist_rank", n, max_epoch=1) for n in range(2)]
    assert [finish(rank) for rank in ranks] == [0, 0], log_of(output).read_text()[-3000:]
    return output


# Every family; a parameter that the backward pass does not reach would stop DDP.
GP = {"cell_state@1": "gp", "hidden_input@1": "gp", "cell_input@2": "gp"}
# Latent outputs that draw as good as nothing, as QUIET weights do.
LATENT = {"hidden_output@1-2": "{kind: variational, init_std: 3.0e-9}"}
LMS = {
    "lstm": (LSTM, {**GP, "cell_input@1": "bayes"}),
    "lstm search": (LSTM, {"all_gates@1-2": "search", **LATENT}),
    "transformer": (TRANSFORMER, {"ffn@1": "bayes", "ffn@2": "gp", **LATENT}),
}


@pytest.mark.parametrize("lm, uncertainty", LMS.values(), ids=LMS)
def test_two_processes_have_the_loss_of_one(corpus, train_lm, tmp_path, lm, uncertainty):
    places = [f"uncertainty.{place}={kind}" for place, kind in uncertainty.items()]
    rates = ["posterior_lr=null", "architecture_lr=null"]
    options = [*lm, *QUIET, *STILL]
    options += words(lm_conf=places, model_conf=rates, train_dtype="float64")
    two = run_two(corpus, tmp_path / "two", *options)
    one = train_lm(tmp_path / "one", *options)
    for part in ("train", "valid"):
        assert stats(two, 1, part)["loss"] == pytest.approx(stats(one, 1, part)["loss"], abs=1e-6)


LEARNT = {
    # the gradient counts the KL once
    "bound": [*CELL, *QUIET, *words(optim="sgd", optim_conf="lr=0.5", model_conf="kl_weight=0.1")],
    # all ranks draw one sample: the gradient of their mean is taken at it
    "ivon": words(optim="ivon", optim_conf=["lr=0.5", "hess_init=0.001"], train_dtype="float64"),
}


@pytest.mark.parametrize("options", LEARNT.values(), ids=LEARNT)
def test_two_processes_learn_as_one(corpus, train_lm, tmp_path, options):
    """The same weights after an epoch of steps.

    One process with twice the batch makes the same steps as two, where a batch is split.
    """
    options = [*LSTM, *options]
    two = run_two(corpus, tmp_path / "two", *options)
    one = train_lm(tmp_path / "one", *options)
    assert_same(two / "1epoch.pth", one / "1epoch.pth", rtol=1e-5, atol=1e-5)


def write_logit(rank, port, folder):
    """Write a logit of a sampled LM to a file of the rank."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    lm = BayesLSTMLM(9, unit=4, dropout_rate=0.0, uncertainty={"cell_input@1": "bayes"})
    logits, _ = lm.train()(torch.ones(1, 1, dtype=torch.long))
    (folder / f"{rank}").write_text(str(logits.sum().item()))


def test_ranks_draw_differently(tmp_path):
    port = free_port()
    ranks = [CONTEXT.Process(target=write_logit, args=(r, port, tmp_path)) for r in range(2)]
    for rank in ranks:
        rank.start()
    assert [finish(rank) for rank in ranks] == [0, 0]
    assert (tmp_path / "0").read_text() != (tmp_path / "1").read_text()


def test_ranks_of_a_transformer_may_have_batches_of_unequal_length(corpus, tmp_path):
    """What grows with the longest sentence must not be a buffer that ranks share."""
    (tmp_path / "tokens.txt").write_bytes((corpus / "tokens.txt").read_bytes())
    for part in ("train", "valid"):
        sentences = ["abc"[: 1 + n % 3] * (1 + 40 * (n % 2)) for n in range(32)]
        write_sentences(tmp_path, part, sentences)
    run_two(tmp_path, tmp_path / "exp", *TRANSFORMER, *FFN, "--batch_size", "2")

"""A training killed at any moment and resumed ends where an unbroken one does."""

import contextlib
import os
import random
import signal
import sys

import pytest
from forked import finish, log_of, start, train
from training_options import ADAM, CELL, LSTM, assert_same, stats

from espnet_bayeslm.loading.checkpoint import read_checkpoint

LMS = {
    "point": [*LSTM, *ADAM],
    "bayes": [*LSTM, *CELL, *ADAM, "--model_conf", "posterior_lr=0.01"],
}
KEPT = ["--keep_nbest_models", "2"]
# Where each stage of a run begins
BEGIN = {
    "epoch": ("call", "train_one_epoch"),
    "checkpoint": ("call", "checkpoint.pth"),
    "model": ("return", "checkpoint.pth"),
    "links": ("return", "Nepoch.pth"),
    "average": ("call", "average_nbest_models"),
}
KILL = signal.SIGKILL


@contextlib.contextmanager
def killed_in(stage, calls):
    """Kill the process so many calls of Python's after a stage begins, the first time."""
    left = None

    def count(frame, event, arg):
        nonlocal left
        name = frame.f_code.co_name
        if name == "save_whole":
            name = os.path.basename(frame.f_locals["f"])
            name = "Nepoch.pth" if name[0].isdigit() else name
        if left is None and (event, name) == BEGIN[stage]:
            left = calls
        if left is not None:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), KILL)

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def run_killed(corpus, output, options, max_epoch, *moments):
    """Kill a run at some moments, each time resumed, and run it to its end."""
    for moment in moments:
        around = (killed_in, *moment)
        status = finish(start(corpus, output, *options, max_epoch=max_epoch, around=around))
        assert status == -KILL, (moment, log_of(output).read_text()[-3000:])
        # each checkpoint is there as a whole or not at all
        for path in filter(os.path.exists, output.glob("*.pth")):
            read_checkpoint(path)
    return train(corpus, output, *options, max_epoch=max_epoch)


def check_same(broken, unbroken, max_epoch):
    """Check that two trainings ended alike."""
    losses = [
        [stats(exp, epoch, "valid")["loss"] for epoch in range(1, max_epoch + 1)]
        for exp in (broken, unbroken)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    average = "valid.loss.ave.pth"
    assert_same(broken / average, unbroken / average, rtol=1e-5, atol=1e-6)
    links = [
        {path.name: os.readlink(path) for path in exp.glob("*.pth") if path.is_symlink()}
        for exp in (broken, unbroken)
    ]
    assert links[0] == links[1] and "valid.loss.best.pth" in links[0]
    assert all((broken / target).exists() for target in links[0].values())
    assert not list(broken.glob(".*"))


def test_a_configuration_cut_short_by_a_kill(corpus, tmp_path):
    """ESPnet writes config.yaml in place, also when it resumes."""
    exp = train(corpus, tmp_path / "exp", *LMS["point"], max_epoch=1)
    path = exp / "config.yaml"
    whole = path.read_text()
    for size in (0, len(whole) // 2):
        path.write_text(whole[:size])
        train(corpus, exp, *LMS["point"], max_epoch=1)
        assert path.read_text() == whole


def test_a_training_that_stopped_early_stays_stopped(corpus, tmp_path):
    """ESPnet would train an epoch more, each time that it is run again."""
    options = [*LMS["point"], "--optim_conf", "lr=0.5", "--patience", "0"]
    exp = train(corpus, tmp_path / "exp", *options, max_epoch=20)
    last = read_checkpoint(exp / "checkpoint.pth")["reporter"]["epoch"]
    assert 1 < last < 20
    train(corpus, exp, *options, max_epoch=20)
    assert read_checkpoint(exp / "checkpoint.pth")["reporter"]["epoch"] == last
    train(corpus, exp, *options, "--patience", "1", max_epoch=last + 1)
    assert (exp / f"{last + 1}epoch.pth").exists()


def test_a_training_killed_three_times(corpus, tmp_path):
    options, rng = [*LMS["bayes"], *KEPT], random.Random(1)
    unbroken = train(corpus, tmp_path / "unbroken", *options, max_epoch=2)
    moments = [("checkpoint", rng.randint(1, 300)), ("links", rng.randint(1, 30))]
    moments.append(("epoch", rng.randint(1, 3000)))
    broken = run_killed(corpus, tmp_path / "broken", options, 2, *moments)
    check_same(broken, unbroken, 2)


@pytest.mark.parametrize("stage", ["model", "average"])
def test_a_kill_at_the_end_of_the_last_epoch(corpus, tmp_path, stage):
    """No epoch will come that would write the model and the links to it."""
    options = [*LMS["point"], *KEPT]
    unbroken = train(corpus, tmp_path / "unbroken", *options, max_epoch=1)
    check_same(run_killed(corpus, tmp_path / "broken", options, 1, (stage, 1)), unbroken, 1)

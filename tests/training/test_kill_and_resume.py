"""A training killed at any moment and resumed ends where an unbroken one does."""

import contextlib
import functools
import json
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
# As a run goes through them; each ends where the next begins.
STAGES = ("start", "epoch", "validation", "checkpoint", "model", "links", "average", "end")
BEGIN = {
    ("call", "main_worker"): "start",
    ("call", "train_one_epoch"): "epoch",
    ("call", "validate_one_epoch"): "validation",
    ("call", "checkpoint.pth"): "checkpoint",
    ("return", "checkpoint.pth"): "model",
    ("return", "Nepoch.pth"): "links",
    ("call", "average_nbest_models"): "average",
    ("return", "average_nbest_models"): "end",
}
KILL = signal.SIGKILL


def stage_of(frame, event):
    """Return the stage that a function's call or return begins, or None."""
    name = frame.f_code.co_name
    if name == "save_whole":
        name = os.path.basename(frame.f_locals["f"])
        name = "Nepoch.pth" if name[0].isdigit() else name
    return BEGIN.get((event, name))


class Watch:
    """Counts what Python calls, torch's functions too, in each stage of a run.

    Args:
        kill: (stage, calls): where to kill the process, the first time it gets there.
        census: A file for the number of calls in each stage, in place of that.
    """

    def __init__(self, kill=None, census=None):
        self.kill, self.census = kill, census
        self.stage, self.calls = None, 0
        self.counts = {stage: [] for stage in STAGES}

    def __call__(self, frame, event, arg):
        if event in ("call", "return"):
            stage = stage_of(frame, event)
            if stage not in (None, self.stage):
                self.end_stage()
                self.stage, self.calls = stage, 0
        self.calls += 1
        if self.kill is not None and (self.stage, self.calls) == self.kill:
            os.kill(os.getpid(), KILL)

    def end_stage(self):
        if self.stage is not None:
            self.counts[self.stage].append(self.calls)
        if self.census is not None:
            self.census.write_text(json.dumps(self.counts))


@contextlib.contextmanager
def watched(kill=None, census=None):
    """Watch what is done within."""
    sys.setprofile(Watch(kill, census))
    try:
        yield
    finally:
        sys.setprofile(None)


class Runs:
    """Runs of one LM in one folder, killed and resumed.

    Args:
        corpus: As `start` takes it.
        output: The folder.
        options: ESPnet's.
        max_epoch: Where they end.
    """

    def __init__(self, corpus, output, options, max_epoch):
        self.output = output
        self.start = functools.partial(start, corpus, output, *options, *KEPT, max_epoch=max_epoch)

    def killed(self, moment):
        """Run until a moment, where the run is killed."""
        status = finish(self.start(around=(watched, moment)))
        assert status == -KILL, (moment, log_of(self.output).read_text()[-3000:])
        self.check_files()

    def check_files(self):
        """Check that each checkpoint is there as a whole or not at all."""
        for path in self.output.glob("*.pth"):
            if path.exists():
                read_checkpoint(path)

    def end(self):
        """Run to the end."""
        status = finish(self.start())
        assert status == 0, log_of(self.output).read_text()[-3000:]


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
    options = LMS["bayes"]
    around = (watched, None, tmp_path / "census.json")
    unbroken = tmp_path / "unbroken"
    train(corpus, unbroken, *options, *KEPT, max_epoch=2, around=around)
    counts = json.loads((tmp_path / "census.json").read_text())
    runs, rng = Runs(corpus, tmp_path / "broken", options, 2), random.Random(1)
    for stage in ("checkpoint", "links", "epoch"):
        # a moment that the run reaches in any case
        runs.killed((stage, rng.randint(1, min(counts[stage]))))
    runs.end()
    check_same(runs.output, unbroken, 2)


@pytest.mark.parametrize("moment", [("model", 1), ("average", 1)], ids=str)
def test_a_kill_at_the_end_of_the_last_epoch(corpus, tmp_path, moment):
    """No epoch will come that would write the model and the links to it."""
    options = LMS["point"]
    unbroken = train(corpus, tmp_path / "unbroken", *options, *KEPT, max_epoch=1)
    runs = Runs(corpus, tmp_path / "broken", options, 1)
    runs.killed(moment)
    runs.end()
    check_same(runs.output, unbroken, 1)

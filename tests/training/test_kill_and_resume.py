"""Trainings that are killed, fill the disk, or find another one in their folder."""

import argparse
import contextlib
import errno
import io
import os
import pickle
import random
import resource
import signal
import subprocess
import sys

import pytest
import torch
from forked import finish, log_of, start, train
from training_options import ADAM, CELL, LSTM, assert_same, stats

from espnet_bayeslm.loading.experiment import load_state, read_checkpoint, read_config
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.training.whole_files import save_whole, writing_errors
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.folders import LOCK, folder_lock

POINT = [*LSTM, *ADAM]
OPTIONS = [*POINT, *CELL, "--keep_nbest_models", "2"]
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
    for epoch in range(1, max_epoch + 1):
        found, expected = (stats(exp, epoch, "valid")["loss"] for exp in (broken, unbroken))
        assert found == pytest.approx(expected, abs=1e-6)
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
    exp = train(corpus, tmp_path / "exp", *POINT, max_epoch=1)
    path = exp / "config.yaml"
    whole = path.read_text()
    for size in (0, len(whole) // 2):
        path.write_text(whole[:size])
        train(corpus, exp, *POINT, max_epoch=1)
        assert path.read_text() == whole


def test_a_training_that_stopped_early_stays_stopped(corpus, tmp_path):
    """ESPnet would train an epoch more, each time that it is run again."""
    options = [*POINT, "--optim_conf", "lr=0.5", "--patience", "0"]
    exp = train(corpus, tmp_path / "exp", *options, max_epoch=20)
    last = read_checkpoint(exp / "checkpoint.pth")["reporter"]["epoch"]
    assert 1 < last < 20
    (exp / ".checkpoint.pth.x7").write_bytes(b"what a kill has left")
    train(corpus, exp, *options, max_epoch=20)
    assert read_checkpoint(exp / "checkpoint.pth")["reporter"]["epoch"] == last
    assert not (exp / ".checkpoint.pth.x7").exists()
    train(corpus, exp, *options, "--patience", "1", max_epoch=last + 1)
    assert (exp / f"{last + 1}epoch.pth").exists()


@pytest.fixture(scope="module")
def unbroken(corpus, tmp_path_factory):
    """Return the folder of a training of two epochs that nothing stopped."""
    return train(corpus, tmp_path_factory.mktemp("unbroken") / "exp", *OPTIONS, max_epoch=2)


def test_a_training_killed_three_times(corpus, unbroken, tmp_path):
    rng = random.Random(1)
    moments = [("checkpoint", rng.randint(1, 300)), ("links", rng.randint(1, 30))]
    moments.append(("epoch", rng.randint(1, 3000)))
    broken = run_killed(corpus, tmp_path / "broken", OPTIONS, 2, *moments)
    check_same(broken, unbroken, 2)


@pytest.mark.parametrize("stage", ["model", "average"])
def test_a_kill_at_the_end_of_the_last_epoch(corpus, tmp_path, stage):
    """No epoch will come that would write the model and the links to it."""
    unbroken = train(corpus, tmp_path / "unbroken", *POINT, max_epoch=1)
    check_same(run_killed(corpus, tmp_path / "broken", POINT, 1, (stage, 1)), unbroken, 1)


FULL = "No space left on device"


def error_of(output):
    """Return the one error in the log of a training."""
    log = log_of(output).read_text()
    assert "Traceback" not in log, log[-3000:]
    (error,) = [line for line in log.splitlines() if "error:" in line]
    return error


def check_stopped(output, epoch):
    """Check what a training left that could not write: checkpoints that are whole."""
    assert read_checkpoint(output / "checkpoint.pth")["reporter"]["epoch"] == epoch
    assert load_state(output / "1epoch.pth")
    assert not list(output.glob(".*"))


def check_goes_on(corpus, output, unbroken):
    """Check that a training that was stopped ends as the unbroken one."""
    train(corpus, output, *OPTIONS, max_epoch=2)
    assert stats(output, 2, "valid")["loss"] == stats(unbroken, 2, "valid")["loss"]
    assert_same(output / "valid.loss.ave.pth", unbroken / "valid.loss.ave.pth")


@pytest.mark.parametrize("saves, kept", [(0, None), (2, 1), (3, 2)])
def test_no_room_for_a_checkpoint(corpus, train_lm, unbroken, tmp_path, monkeypatch, saves, kept):
    """Each epoch saves the checkpoint, then the model."""
    save, output = torch.save, tmp_path / "exp"
    left = iter([True] * saves)

    def full(obj, f, *args, **kwargs):
        if next(left, False):
            return save(obj, f, *args, **kwargs)
        f.write(b"half of it")
        raise OSError(errno.ENOSPC, FULL)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(InputError, match=FULL) as raised:
            train_lm(output, *OPTIONS, max_epoch=2)
    message = str(raised.value)
    file = ["checkpoint.pth", f"{(saves + 1) // 2}epoch.pth"][saves % 2]
    assert message.startswith(f"{output / file}: cannot be written ({FULL}). ")
    epoch = f"The checkpoint of epoch {kept} is kept" if kept else "No epoch was saved"
    assert f"{epoch}: make room" in message and "--resume true" in message
    assert "\n" not in message
    assert not list(output.glob(".*"))
    if saves == 2:
        check_stopped(output, 1)
    check_goes_on(corpus, output, unbroken)


@contextlib.contextmanager
def small_files(size):
    """Let no file within grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    yield


def test_a_limit_on_the_size_of_files(corpus, unbroken, tmp_path):
    """torch says nothing of the limit, but that a position in its archive is unexpected."""
    exp = train(corpus, tmp_path / "exp", *OPTIONS, max_epoch=1)
    limit = (exp / "checkpoint.pth").stat().st_size * 3 // 4
    log_of(exp).unlink()
    around = (small_files, limit)
    assert finish(start(corpus, exp, *OPTIONS, max_epoch=2, around=around)) == 1
    error = error_of(exp)
    assert f"{exp / 'checkpoint.pth'}: cannot be written (File too large). " in error
    assert "The checkpoint of epoch 1 is kept: make room" in error
    check_stopped(exp, 1)
    check_goes_on(corpus, exp, unbroken)


def test_writing_errors(train_lm, tmp_path):
    (tmp_path / "exp").write_text("")
    with pytest.raises(InputError, match=r"exp: cannot be written \(.*No epoch was saved: mend"):
        train_lm(tmp_path / "exp", *OPTIONS)
    for error in (
        OSError(errno.ENOENT, "No such file or directory", "exp/1epoch.pth"),
        PermissionError(errno.EACCES, "Permission denied", "data/train.txt"),
        OSError("a program's own"),
    ):
        with pytest.raises(OSError) as raised, writing_errors(tmp_path / "exp"):
            raise error
        assert raised.value is error


def test_saves_that_are_not_to_a_path_or_cannot_be(tmp_path):
    stream = io.BytesIO()
    save_whole(torch.save, {"a": 1}, stream)
    stream.seek(0)
    assert torch.load(stream) == {"a": 1}

    def save(obj, f):
        raise RuntimeError("no such type")

    with pytest.raises(RuntimeError, match="no such type"):
        save_whole(save, {}, tmp_path / "a.pth")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_no_room_for_the_configuration(train_lm, tmp_path):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "config.yaml").symlink_to("/dev/full")
    with pytest.raises(InputError, match=rf"exp: cannot be written \({FULL}\). No epoch was saved"):
        train_lm(tmp_path / "exp", *OPTIONS)


HOLD = """
import os, sys, time
from espnet_bayeslm.utils.folders import folder_lock
with folder_lock(sys.argv[1]):
    if os.fork() == 0:  # as a data loader's worker
        os.close(1)
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read()
"""
# What a spawned process does, in one that has not imported our LMs
WORKER = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    function, args = pickle.load(file)
function(args)
"""


@pytest.fixture
def held(tmp_path):
    """Return a context: another process holds a folder, is killed, and leaves a forked process."""

    @contextlib.contextmanager
    def hold(folder):
        command = [sys.executable, "-c", HOLD, folder, tmp_path / "stop"]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with subprocess.Popen(command, **pipes) as process:
            try:
                assert process.stdout.readline() == "held\n"
                yield process
            finally:
                process.kill()
        assert process.returncode == -KILL

    yield hold
    (tmp_path / "stop").touch()


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    """Training goes on there, as on some network file systems; other errors are told."""
    number = errno.ENOLCK

    def lockf(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("espnet_bayeslm.utils.folders.fcntl.lockf", lockf)
    with folder_lock(tmp_path):
        assert "start no second training in this folder" in caplog.text
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output"), folder_lock(tmp_path):
        pass


def test_lm_train_waits_for_no_dead_owner(corpus, tmp_path, held):
    exp = tmp_path / "exp"
    with held(exp) as owner:
        assert finish(start(corpus, exp, *LSTM, max_epoch=1)) == 1
    error = error_of(exp)
    assert f"{exp}: process {owner.pid} of " in error and "is training here" in error
    assert os.listdir(exp) == [LOCK]
    train(corpus, exp, *LSTM, max_epoch=1)
    assert (exp / "valid.loss.ave.pth").exists()


def test_workers(python, train_lm, tmp_path, held):
    """A spawned rank 0 is refused, and a parent before it spawns any; other ranks do not ask.

    Workers know our LMs, though `--multiprocessing_distributed` spawns them.
    """
    exp = train_lm(tmp_path / "exp", *LSTM, "--dry_run", "true")
    args = read_config(exp / "config.yaml")
    args.output_dir = str(tmp_path / "second")
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "work").write_bytes(pickle.dumps((BayesLMTask.main_worker, args)))

    def exit_code():
        return subprocess.run([python, tmp_path / "worker.py", tmp_path / "work"]).returncode

    with held(tmp_path / "second"):
        assert exit_code() == 1
        with pytest.raises(InputError, match="is training here"):
            spawning = dict(multiprocessing_distributed=True, ngpu=2)
            BayesLMTask.main(argparse.Namespace(**{**vars(args), **spawning}))
    assert os.listdir(tmp_path / "second") == [LOCK]
    assert exit_code() == 0
    config = read_config(tmp_path / "second" / "config.yaml")
    assert (config.lm, config.model) == ("bayes_lstm", "bayes_lm")

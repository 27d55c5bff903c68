"""Two trainings in one folder: the second is refused in one line until the first has ended."""

import argparse
import contextlib
import errno
import os
import pickle
import signal
import subprocess
import sys

import pytest
from forked import finish, log_of, start, train
from training_options import LSTM

from espnet_bayeslm.loading.experiment import read_config
from espnet_bayeslm.training.task import BayesLMTask
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.locks import LOCK, folder_lock

HOLD = """
import os, sys, time
from espnet_bayeslm.utils.locks import folder_lock
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


@contextlib.contextmanager
def held(folder, stop):
    """Let another process hold a folder, kill it, and leave a process that it has forked."""
    command = [sys.executable, "-c", HOLD, str(folder), str(stop)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **pipes) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.fixture
def stop(tmp_path):
    """Return a file whose appearance ends the processes that were left."""
    path = tmp_path / "stop"
    yield path
    path.touch()


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    """Training goes on there, as on some network file systems; other errors are told."""
    number = errno.ENOLCK

    def lockf(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("espnet_bayeslm.utils.locks.fcntl.lockf", lockf)
    with folder_lock(tmp_path):
        assert "start no second training in this folder" in caplog.text
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output"), folder_lock(tmp_path):
        pass


def test_lm_train_waits_for_no_dead_owner(corpus, tmp_path, stop):
    exp = tmp_path / "exp"
    with held(exp, stop) as owner:
        assert finish(start(corpus, exp, *LSTM, max_epoch=1)) == 1
    errors = [line for line in log_of(exp).read_text().splitlines() if "error:" in line]
    assert len(errors) == 1 and f"{exp}: process {owner.pid} of " in errors[0]
    assert "is training here" in errors[0] and "Traceback" not in log_of(exp).read_text()
    assert os.listdir(exp) == [LOCK]
    train(corpus, exp, *LSTM, max_epoch=1)
    assert (exp / "valid.loss.ave.pth").exists()


def test_workers(python, train_lm, tmp_path, stop):
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

    with held(tmp_path / "second", stop):
        assert exit_code() == 1
        with pytest.raises(InputError, match="is training here"):
            spawning = dict(multiprocessing_distributed=True, ngpu=2)
            BayesLMTask.main(argparse.Namespace(**{**vars(args), **spawning}))
    assert os.listdir(tmp_path / "second") == [LOCK]
    assert exit_code() == 0
    config = read_config(tmp_path / "second" / "config.yaml")
    assert (config.lm, config.model) == ("bayes_lstm", "bayes_lm")

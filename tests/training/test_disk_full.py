"""A disk that fills up, or a folder that cannot be written to: one error, and nothing is lost."""

import contextlib
import errno
import os
import resource

import pytest
import torch
from forked import finish, log_of, start, train
from training_options import ADAM, CELL, LSTM, assert_same, stats

from espnet_bayeslm.loading.checkpoint import load_state, read_checkpoint
from espnet_bayeslm.training.trainer import writing_errors
from espnet_bayeslm.utils.errors import InputError

OPTIONS = [*LSTM, *CELL, *ADAM]
FULL = "No space left on device"


@pytest.fixture(scope="module")
def unbroken(corpus, tmp_path_factory):
    """Return the folder of a training of two epochs that nothing stopped."""
    return train(corpus, tmp_path_factory.mktemp("unbroken") / "exp", *OPTIONS, max_epoch=2)


def check_stopped(output, epoch):
    """Check what a training left that could not write: checkpoints that are whole."""
    assert read_checkpoint(output / "checkpoint.pth")["reporter"]["epoch"] == epoch
    assert load_state(output / "1epoch.pth")
    assert not list(output.glob(".*"))


def check_goes_on(corpus, output, unbroken):
    """Check that a training that was stopped ends as the unbroken one."""
    log_of(output).unlink(missing_ok=True)
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
    log = log_of(exp).read_text()
    assert "Traceback" not in log, log[-3000:]
    (error,) = [line for line in log.splitlines() if "error:" in line]
    assert f"{exp / 'checkpoint.pth'}: cannot be written (File too large). " in error
    assert "The checkpoint of epoch 1 is kept: make room" in error
    check_stopped(exp, 1)
    check_goes_on(corpus, exp, unbroken)


def test_a_file_where_the_folder_should_be(train_lm, tmp_path):
    (tmp_path / "exp").write_text("")
    with pytest.raises(InputError, match=r"exp: cannot be written \(.*No epoch was saved: mend"):
        train_lm(tmp_path / "exp", *OPTIONS)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_no_room_for_the_configuration(train_lm, tmp_path):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "config.yaml").symlink_to("/dev/full")
    with pytest.raises(InputError, match=rf"exp: cannot be written \({FULL}\). No epoch was saved"):
        train_lm(tmp_path / "exp", *OPTIONS)


def test_other_errors_stay_what_they_are(tmp_path):
    for error in (
        OSError(errno.ENOENT, "No such file or directory", "exp/1epoch.pth"),
        PermissionError(errno.EACCES, "Permission denied", "data/train.txt"),
        OSError("a program's own"),
    ):
        with pytest.raises(OSError) as raised, writing_errors(tmp_path / "exp"):
            raise error
        assert raised.value is error

"""A disk that fills up, or a folder that cannot be written to: one error, and nothing is lost."""

import contextlib
import ctypes
import errno
import functools
import os
import resource
import shutil

import pytest
import torch
from forked import CONTEXT, finish, log_of, start, train
from training_options import ADAM, CELL, LSTM, assert_same, stats

from espnet_bayeslm.loading.checkpoint import load_state, read_checkpoint
from espnet_bayeslm.training.saving import writing_errors
from espnet_bayeslm.training.trainer import BayesLMTrainer
from espnet_bayeslm.utils.errors import InputError

OPTIONS = [*LSTM, *CELL, *ADAM]
FULL = "No space left on device"
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


@pytest.fixture(scope="module")
def unbroken(corpus, tmp_path_factory):
    """Return the folder of a training of two epochs that nothing stopped."""
    return train(corpus, tmp_path_factory.mktemp("unbroken") / "exp", *OPTIONS, max_epoch=2)


@pytest.fixture(scope="module")
def first_epoch(corpus, tmp_path_factory):
    return train(corpus, tmp_path_factory.mktemp("first") / "exp", *OPTIONS, max_epoch=1)


@pytest.fixture
def one_epoch(first_epoch, tmp_path):
    """Return the folder of a training of one epoch."""
    return shutil.copytree(first_epoch, tmp_path / "exp", symlinks=True)


def error_of(corpus, output, *options, **kwargs):
    """Return the one line that a training of two epochs ends with."""
    assert finish(start(corpus, output, *OPTIONS, *options, max_epoch=2, **kwargs)) == 1
    log = log_of(output).read_text()
    assert "Traceback" not in log, log[-3000:]
    lines = [line for line in log.splitlines() if "error:" in line]
    assert len(lines) == 1 and log.splitlines()[-1] == lines[0], log[-3000:]
    return lines[0]


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


def test_a_limit_on_the_size_of_files(corpus, one_epoch, unbroken):
    """torch says nothing of the limit, but that a position in its archive is unexpected."""
    limit = (one_epoch / "checkpoint.pth").stat().st_size * 3 // 4
    error = error_of(corpus, one_epoch, around=(small_files, limit))
    assert f"{one_epoch / 'checkpoint.pth'}: cannot be written (File too large). " in error
    assert "The checkpoint of epoch 1 is kept: make room" in error
    check_stopped(one_epoch, 1)
    check_goes_on(corpus, one_epoch, unbroken)


def mount(folder, options, flags=0):
    """Mount a file system in memory at a folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (name.encode() for name in ("none", os.fspath(folder), "tmpfs"))
    if libc.mount(*names, ctypes.c_ulong(flags), options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def leave_namespaces():
    """Make mounts that this process alone sees possible."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for name, value in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as f:
            f.write(value)


@contextlib.contextmanager
def disk(folder, size, copy=None, prepare=None):
    """Have a disk of so many bytes at a folder within; what is on it is copied at the end.

    Args:
        folder: Where; what is there is on the disk at first.
        size: Bytes.
        copy: A new folder.
        prepare: Called with the folder once the disk is there.
    """
    leave_namespaces()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    mount(folder, f"size={size}")
    for name, content in before.items():
        (folder / name).write_bytes(content)
    if prepare is not None:
        prepare(folder)
    try:
        yield
    finally:
        if copy is not None:
            shutil.copytree(folder, copy, symlinks=True)


def try_disk(folder):
    """Succeed where this process can have a disk of its own."""
    with disk(folder, 1 << 16):
        pass


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """Skip where no process may have a file system of its own."""
    process = CONTEXT.Process(target=try_disk, args=(tmp_path_factory.mktemp("disk"),))
    process.start()
    if finish(process) != 0:
        pytest.skip("no user namespaces here")


def pages(folder):
    """Return how many bytes of a disk the files of a folder take."""
    page = os.sysconf("SC_PAGE_SIZE")
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(-(-path.stat().st_size // page) * page for path in files)


def fill(folder, epoch):
    """Fill the disk when an epoch begins."""
    run_epoch = BayesLMTrainer.train_one_epoch

    def train_one_epoch(**kwargs):
        if kwargs["reporter"].epoch == epoch:
            with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as f:
                while True:
                    f.write(bytes(os.sysconf("SC_PAGE_SIZE")))
        return run_epoch(**kwargs)

    BayesLMTrainer.train_one_epoch = train_one_epoch


def test_a_disk_that_fills_in_an_epoch(corpus, one_epoch, unbroken, disks, tmp_path):
    """TensorBoard's thread notices it first."""
    size = 2 * pages(one_epoch)
    output, copy = tmp_path / "small", tmp_path / "copy"
    output.mkdir()
    around = (disk, output, size, copy, functools.partial(fill, epoch=2))
    error = error_of(corpus, output, "--log_interval", "1", around=around)
    assert f"cannot be written ({FULL}). The checkpoint of epoch 1 is kept: make room" in error
    assert f"TensorBoard's events: [Errno {errno.ENOSPC}]" in log_of(output).read_text()
    check_stopped(copy, 1)
    (copy / "ballast").unlink()
    check_goes_on(corpus, copy, unbroken)


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

"""`bayeslm rescore` on several processes and on Dask's workers: the output of one process."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from command_lines import contents, run, words

from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.utils import blocks

BLOCK_SIZE = 20


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.rescoring.list_blocks.BLOCK_SIZE", BLOCK_SIZE)


@pytest.fixture(scope="module")
def cluster():
    """Two workers of Dask for all tests of this module."""
    distributed = pytest.importorskip("distributed", reason="Dask: pip install -e '.[dask]'")
    options = dict(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=40)
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["local", "dask"])
def engine(request, tmp_path):
    """Options of an engine with two workers, and a function that returns their process ids."""
    if request.param == "local":
        return {"workers": 2}, lambda: children()
    client = request.getfixturevalue("cluster")
    (tmp_path / "engine.yaml").write_text(f"cluster: {client.scheduler.address}\n")
    options = {"engine": "dask", "engine_conf": tmp_path / "engine.yaml"}
    known = list(client.run(os.getpid).values())
    return options, lambda: [pid for pid in known if is_alive(pid)]


def is_alive(pid):
    """True if a process runs; a killed one may still have to be waited for by its parent."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def children():
    """Process ids of the children of this process that were forked from it."""
    pid = os.getpid()
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for path in tasks for child in path.read_text().split()]
    found = [child for child in found if is_alive(child)]
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return [c for c in found if Path(f"/proc/{c}/cmdline").read_bytes() == command]


@pytest.fixture
def lists(nbest, point, bayes, ngram):
    return {
        "nbest": nbest / "dev",
        "lm": [point, bayes],
        "ngram": ngram,
        "weights": "0.3,0.5,0.2",
        "lmwt": 9,
    }


@pytest.fixture
def watched(monkeypatch):
    """What is done when block 1, 2, .. is kept, and the names of those that are."""
    write, counts, acts = blocks.atomic_write, [], {}

    @contextlib.contextmanager
    def noted(path, mode):
        with write(path, mode) as f:
            yield f
        counts.append(path.name)
        acts.get(len(counts), lambda: None)()

    monkeypatch.setattr(blocks, "atomic_write", noted)
    return acts, counts


def test_workers_write_what_one_process_writes(lists, engine, segments, tmp_path):
    """With context, samples and uncertainty too; recordings stay whole."""
    options, _ = engine
    of_bayes = {**lists, "lm": lists["lm"][1], "weights": "0.6,0.4"}
    more = {"num_samples": 2, "uncertainty": "true", "token_scores": "true"}
    context = {"segments": segments, "context": "previous"}
    for name, given in {
        "plain": lists,
        "uncertain": {**of_bayes, **more},
        "context": {**lists, **context},
        "self_normalized": {**lists, "self_normalized": "true"},
    }.items():
        one = contents(run(**given, output=tmp_path / name / "one"))
        assert contents(run(**given, **options, output=tmp_path / name / "two")) == one
    assert not list(tmp_path.rglob("*.blocks"))


def test_workers_that_are_killed_are_replaced(lists, engine, watched, tmp_path):
    """After the first and the third finished block one is killed, as by a lack of memory."""
    one = contents(run(**lists, output=tmp_path / "one"))
    options, pids = engine
    acts, counts = watched
    counts.clear()
    killed = []

    def kill():
        killed.append(pids()[0])
        os.kill(killed[-1], signal.SIGKILL)

    acts.update({1: kill, 3: kill})
    assert contents(run(**lists, **options, output=tmp_path / "two")) == one
    assert len(set(killed)) == 2 and len(set(counts)) == len(counts) == 8


def test_a_killed_client_resumes_from_its_finished_blocks(lists, engine, watched, tmp_path):
    one = contents(run(**lists, output=tmp_path / "one"))
    options, _ = engine
    acts, counts = watched
    counts.clear()
    if (child := os.fork()) == 0:
        try:
            acts[3] = lambda: os.kill(os.getpid(), signal.SIGKILL)
            run(**lists, output=tmp_path / "two")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (folder,) = tmp_path.glob(".two.blocks")
    assert len(list(folder.iterdir())) == 3
    assert contents(run(**lists, **options, output=tmp_path / "two")) == one
    assert len(counts) == 8 - 3 and not folder.exists()


def test_other_options_do_not_take_the_blocks(lists, watched, tmp_path):
    acts, counts = watched
    acts[2] = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(SystemExit):
        run(**lists, output=tmp_path / "out")
    assert list(tmp_path.glob(".out.blocks/*"))
    del acts[2]
    counts.clear()
    given = {**lists, "unk_size": 3}
    assert contents(run(**given, output=tmp_path / "out")) == contents(
        run(**given, output=tmp_path / "other")
    )
    assert len(counts) == 2 * 8


def test_bad_lists_are_one_error_and_leave_nothing(nbest, point, engine, tmp_path, refused):
    options, _ = engine
    given = dict(nbest=nbest / "dev", lm=point, max_oov_rate=-1, output=tmp_path / "new" / "out")
    refused(main, words(**given, **options), "and --max_oov_rate is -1")


def test_an_lm_that_cannot_be_used_is_one_error(nbest, broken, engine, tmp_path, refused):
    options, _ = engine
    given = dict(nbest=nbest / "dev", lm=broken, output=tmp_path / "out")
    refused(main, words(**given, **options), "valid.loss.ave.pth")


def test_a_task_that_ends_its_workers_is_blamed(lists, tmp_path, monkeypatch, refused):
    """As of a list that takes more memory than a worker has."""
    monkeypatch.setattr(blocks, "_call", end_of_a_worker)
    command = words(**lists, workers=2, output=tmp_path / "out")
    refused(main, command, "4 workers ended during the same task", "Give fewer --workers")


def end_of_a_worker(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_without_the_package(lists, cluster, tmp_path, refused):
    conf = tmp_path / "engine.yaml"
    conf.write_text(f"cluster: {cluster.scheduler.address}\n")
    cluster.run(exec, "import sys; sys.modules['espnet_bayeslm'] = None")
    command = words(**lists, engine="dask", engine_conf=conf, output=tmp_path / "out")
    message = "2 of 2 workers lack the package espnet_bayeslm, the first tcp://"
    refused(main, command, message, "pip install 'espnet_bayeslm[dask]'")

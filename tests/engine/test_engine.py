"""Engines: tasks in their order, few at a time, and what cannot be an engine."""

import gc
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import tracemalloc
from concurrent.futures import BrokenExecutor, CancelledError
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tqdm import tqdm

from espnet_bayeslm.engine.processes import LocalExecutor, set_threads, threads_of
from espnet_bayeslm.engine.work import LOCAL, Blocks, EngineOptions
from espnet_bayeslm.utils.errors import InputError

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "large_sets.md"
HERE, TWO = LOCAL, EngineOptions(workers=2)


def wait_and_square(number):
    time.sleep(0.01 * (3 - number % 4))
    return number**2, os.getpid()


class Squares:
    """An object whose answers take their time."""

    def squares(self, block):
        return [wait_and_square(number) for number in block]

    def refuse(self, block):
        raise_input_error(*block)


@pytest.mark.parametrize("engine, workers", [(HERE, 1), (TWO, 2)], ids=["here", "two"])
def test_results_come_in_order_and_few_items_are_in_memory(engine, workers):
    taken = []

    def items():
        for number in range(40):
            taken.append(number)
            yield [number]

    with engine.pool() as pool:
        found = Blocks(pool, Squares).map("squares", items(), desc="", unit="")
        pids = set()
        for number, (block, [(square, pid)]) in enumerate(found):
            assert ([number], number**2) == (block, square)
            assert len(taken) <= number + 1 + 3 * (workers if pool else 0)
            pids.add(pid)
    assert len(pids) == workers and (os.getpid() in pids) == (engine is HERE)


def test_answers_are_kept_with_the_blocks(tmp_path):
    class Count:
        def __init__(self):
            self.asked = 0

        def count(self, _):
            self.asked += 1
            return self.asked

    found = Blocks(None, Count)
    assert [found.ask("count", 0), found.ask("count", 0)] == [1, 2]
    with found.kept(tmp_path / "out", "these files"):
        assert [found.ask("count", 0), found.ask("count", 0), found.ask("count", 1)] == [3, 3, 4]


def test_threads_of_a_process_without_torch(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delitem(sys.modules, "torch")
    set_threads(3)
    assert os.environ["OMP_NUM_THREADS"] == "3" and threads_of(8) == 3


def test_a_task_that_waits_for_a_process_when_all_end():
    executor = LocalExecutor(1, num_threads=1)
    with executor:
        # as after a kill: no process is there, and none is started any more
        waiting = executor._threads.submit(executor._run, wait_and_square, (2,), {})
        while not waiting.running():
            time.sleep(0.001)
    with pytest.raises(BrokenExecutor, match="the processes are being ended"):
        waiting.result()


def raise_input_error(number):
    raise InputError(f"number {number}", remedy="Give another.")


@pytest.mark.parametrize("engine", [HERE, TWO], ids=["here", "two"])
def test_an_error_of_a_task_is_the_error(engine):
    with pytest.raises(InputError, match=r"^number 7\. Give another\.$"), engine.pool() as pool:
        list(Blocks(pool, Squares).map("refuse", [[7]], desc="", unit=""))


class LockedError(Exception):
    """An error that cannot be packed."""

    def __init__(self):
        super().__init__("no memory", threading.Lock())


class PairError(Exception):
    """An error that cannot be unpacked, unless Dask is imported."""

    def __init__(self, first, second):
        super().__init__(f"{first} of {second}")


@pytest.mark.parametrize(
    "make, message",
    [
        (LockedError, r"^LockedError: \('no memory', "),
        (partial(PairError, 1, 2), "1 of 2$"),
    ],
)
def test_an_error_that_cannot_be_sent_is_told(make, message):
    with pytest.raises((RuntimeError, PairError), match=message), TWO.pool() as pool:
        list(pool.completed(lambda n: pool.executor.submit(raise_made, make), [7]))


def raise_made(make):
    raise make()


def end_in_the_middle(text):
    """Return a text, but be killed when half of it is written."""

    def write_half(connection, message):
        os.write(connection.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = write_half
    return text


def end_with_a_lock(_):
    tqdm.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)


def take_the_lock(_):
    return tqdm.get_lock().acquire(timeout=100)


@pytest.mark.parametrize("end", [end_in_the_middle, end_with_a_lock])
def test_a_killed_process_stops_nobody(end):
    """Whatever it was writing or holding, and nothing that others do is lost."""
    with TWO.pool() as pool:
        submit = pool.executor.submit
        with pytest.raises(BrokenExecutor):
            submit(end, "a" * 100_000).result(timeout=300)
        assert all([submit(take_the_lock, number).result(timeout=300) for number in range(4)])
        others = [submit(wait_and_square, number) for number in (1, 2, 3)]
        with pytest.raises(BrokenExecutor):
            submit(end, "a").result(timeout=300)
        assert [other.result(timeout=300)[0] for other in others] == [1, 4, 9]


class Made:
    """An object that takes long to make."""

    def __init__(self, folder):
        time.sleep(0.5)
        (folder / str(os.getpid())).touch()

    def answer(self, question):
        return question + 1


def test_all_workers_make_the_object_at_once(tmp_path):
    with TWO.pool() as pool:
        assert Blocks(pool, Made, tmp_path).ask("answer", 41) == 42
    assert len(list(tmp_path.iterdir())) == 2


class Unsendable:
    """An argument whose packing fails."""

    def __reduce__(self):
        raise OSError("too many open files")


def test_a_task_that_cannot_be_sent_stops_nobody():
    with TWO.pool() as pool:
        submit = pool.executor.submit
        with pytest.raises(OSError, match="too many open files"):
            submit(abs, Unsendable()).result(timeout=300)
        assert submit(abs, -1).result(timeout=300) == 1


def test_where_a_process_cannot_be_started_none_is_left(monkeypatch):
    fork, started = os.fork, []

    def fork_once():
        if started:
            raise OSError("no more processes")
        started.append(None)
        return fork()

    monkeypatch.setattr(os, "fork", fork_once)
    with pytest.raises(OSError, match="no more processes"), TWO.pool() as pool:
        pool.executor.submit(abs, -1)
    assert not multiprocessing.active_children()


def hang_without_pipes():
    os._exit = abs
    os.closerange(3, 256)
    time.sleep(600)


def test_a_killed_process_is_gone_after_the_block(monkeypatch):
    """Also where the kernel takes its time."""
    kill = multiprocessing.Process.kill
    monkeypatch.setattr(
        multiprocessing.process.BaseProcess,
        "kill",
        lambda self: threading.Timer(0.5, kill, [self]).start(),
    )
    with pytest.raises(BrokenExecutor), TWO.pool() as pool:
        pool.executor.submit(hang_without_pipes).result(timeout=300)
    assert not multiprocessing.active_children()


def test_ctrl_c_while_a_process_is_started_is_not_lost(interruptible):
    comes = [signal.SIGINT]
    os.register_at_fork(after_in_parent=lambda: comes and signal.raise_signal(comes.pop()))
    with pytest.raises(KeyboardInterrupt), TWO.pool() as pool:
        pool.executor.submit(abs, -1)
    assert not comes and not multiprocessing.active_children()


def test_threads_are_shared_out_or_as_they_are_given(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_of(count) for count in (1, 3, 8, 20)] == [8, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_of(8) == 3


@pytest.fixture
def on_dask(tmp_path):
    """Return a function: content of a file and number of workers -> options of the engine."""
    pytest.importorskip("dask_jobqueue", reason="Dask: pip install -e '.[dask]'")

    def options(conf, workers=None):
        path = tmp_path / "engine.yaml"
        path.write_text(conf)
        return EngineOptions(engine="dask", workers=workers, engine_conf=str(path))

    return options


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that puts a script of a name first on the path."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def write(name, commands=""):
        (tmp_path / name).write_text(f"#!/bin/sh\n{commands}\n")
        (tmp_path / name).chmod(0o755)

    return write


def cluster_of(options):
    from espnet_bayeslm.engine.dask_cluster import make_cluster, read_conf

    name, conf = read_conf(options.engine_conf, options.workers)
    return make_cluster(name, conf, options.workers, path=None)


@pytest.mark.parametrize(
    "conf, workers, message",
    [
        ("cluster: lsf", 2, "engine.yaml: cluster: lsf: unknown. Give local, ssh, slurm, pbs, sge"),
        ("- a", 2, "engine.yaml: expected a yaml mapping, got \"['a']\""),
        ("a: b: c", 2, "engine.yaml: not a yaml file"),
        ("cluster: slurm\ncores: 1", None, "cluster: slurm needs the number of workers"),
        ("cluster: tcp://127.0.0.1:1", 2, "has workers of its own, and --workers is given"),
        ("cluster: tcp://127.0.0.1:1\ncores: 1", None, "and cores is given. Leave it out"),
        ("cluster: ssh\nhosts: [a, b]", 2, "a worker on each of its `hosts` but the first"),
        ("", 0, "--workers 0: 1 or more processes were expected"),
    ],
)
def test_engines_that_cannot_be(on_dask, conf, workers, message):
    with pytest.raises(InputError, match=re.escape(message)):
        on_dask(conf, workers).pool()


def test_clusters_that_do_not_answer_or_start(on_dask, program, tmp_path, monkeypatch):
    import dask

    def check(message, conf, workers=1):
        with pytest.raises(InputError, match=message), on_dask(conf, workers).pool():
            pytest.fail("it has started")

    with dask.config.set({"distributed.comm.timeouts.connect": "200ms"}):
        message = r"engine\.yaml: no scheduler answers at tcp://127\.0\.0\.1:1 \("
        check(message, "cluster: tcp://127.0.0.1:1", workers=None)
    check(r"cluster: local does not start \(.*'coers'", "cluster: local\ncoers: 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    conf = "cluster: slurm\ncores: 1\n"
    check("cluster: slurm, and there is no program 'sbatch'", f"{conf}memory: 1GB\n")
    program("sbatch")
    check(r"cluster: slurm does not start \(.*memory", conf)


def test_the_example_of_the_page_is_a_slurm_job(on_dask, program, tmp_path):
    """The file is as it stands on the page; a program that is called `sbatch` gets the jobs."""
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    program("sbatch", f"cp $1 {tmp_path}/job.sh\necho Submitted batch job 1")
    program("scancel")
    with cluster_of(on_dask(example, 1)) as cluster:
        script = cluster.job_script()
        while not (tmp_path / "job.sh").exists():
            time.sleep(0.01)
    assert re.search(r"^#SBATCH -p \S+$", script, re.MULTILINE)
    assert re.search(r"^#SBATCH --cpus-per-task=\d+$", script, re.MULTILINE)
    assert re.search(r"^export OMP_NUM_THREADS=\d+$", script, re.MULTILINE)
    assert re.search(r"^\S+python\S* -m \S+ tcp://.* --nthreads 1$", script, re.MULTILINE)


@pytest.mark.parametrize(
    "cluster, submit, own, directives",
    [
        ("pbs", "qsub", "resource_spec: 'select=1:ncpus=4'", ["#PBS -q cpu", "#PBS -A speech"]),
        ("sge", "qsub", "resource_spec: 'h_vmem=8G'", ["#$ -q cpu", "#$ -P speech"]),
        ("slurm", "sbatch", "job_cpu: 4", ["#SBATCH -p cpu", "#SBATCH -A speech"]),
    ],
)
def test_files_of_batch_systems_become_jobs(
    on_dask, program, cluster, submit, own, directives, monkeypatch
):
    """Dask-jobqueue's own script has the queue, the account, the prologue and one thread."""
    account = "project" if cluster == "sge" else "account"
    conf = f"cluster: {cluster}\nqueue: cpu\n{account}: speech\ncores: 4\nprocesses: 1\n{own}\n"
    conf += "memory: 8GB\nwalltime: '08:00:00'\njob_script_prologue: [source venv/bin/activate]\n"
    program(submit, "echo Your job 1 has been submitted")
    monkeypatch.setattr(f"dask_jobqueue.{cluster.upper()}Cluster.adapt", lambda *_, **__: None)
    with cluster_of(on_dask(conf, 2)) as made:
        lines = made.job_script().splitlines()
    assert set(directives) <= set(lines) and "source venv/bin/activate" in lines
    assert any("08:00:00" in line for line in lines if line.startswith("#"))
    assert re.search(r" tcp://.* --nthreads 1 ", f"{lines[-1]} ")


def test_workers_of_this_machine_keep_memory_and_the_client_does_not(monkeypatch):
    """Memory of workers is there for the next tensor; tasks that are done leave nothing behind.

    Nor does Dask look at the workers' stacks.
    """
    dask = pytest.importorskip("dask", reason="Dask: pip install -e '.[dask]'")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)  # a cluster of another test sets it
    pytest.importorskip("distributed", reason="Dask: pip install -e '.[dask]'")
    with EngineOptions(engine="dask", workers=1).pool() as pool:
        submit = pool.executor.submit
        assert submit(os.environ.get, "MALLOC_TRIM_THRESHOLD_").result() is None
        assert submit(dask.config.get, "distributed.worker.profile.enabled").result() is False
        tracemalloc.start()
        for _ in range(40):
            sent = os.urandom(200_000)
            assert submit(os.path.normcase, sent).result() == sent
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 4_000_000


def test_a_file_of_machines_names_a_worker_on_each(on_dask, monkeypatch):
    """The first of `hosts` is the scheduler's; SSH itself is not tried."""
    given = {}
    monkeypatch.setattr("distributed.SSHCluster", lambda **options: given.update(options))
    cluster_of(on_dask("cluster: ssh\nhosts: [head, a, b]\nworker_options: {n_workers: 2}\n"))
    workers = {"nthreads": 1, "n_workers": 2}
    assert given == {"hosts": ["head", "a", "b"], "worker_options": workers}


def test_errors_of_dask_are_told_as_of_any_engine(monkeypatch):
    distributed = pytest.importorskip("distributed", reason="Dask: pip install -e '.[dask]'")
    from espnet_bayeslm.engine.dask_cluster import explain

    killed = explain(distributed.KilledWorker("task", None, 3))
    assert "4 workers ended during the same task" in str(killed)
    lost = RuntimeError("Error during deserialization of the task graph.")
    lost.__cause__ = ModuleNotFoundError("No module named 'espnet_bayeslm'")
    assert "lacks a package (No module named 'espnet_bayeslm'). pip install" in str(explain(lost))
    assert "the scheduler has gone. Start it again" in str(explain(CancelledError()))
    other = ValueError("other")
    assert explain(other) is other
    monkeypatch.setitem(sys.modules, "distributed", None)
    message = "--engine dask needs the package distributed. pip install 'espnet_bayeslm[dask]'"
    with pytest.raises(InputError, match=re.escape(message)):
        EngineOptions(engine="dask").pool()

"""Engines: tasks in their order, few at a time, and what cannot be an engine."""

import gc
import os
import re
import sys
import time
import tracemalloc
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import yaml

from espnet_bayeslm.utils.engine import LOCAL, EngineOptions, threads_of
from espnet_bayeslm.utils.errors import InputError

CLASSES = {"pbs": "PBSCluster", "sge": "SGECluster", "slurm": "SLURMCluster"}
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "large_sets.md"
HERE, TWO = LOCAL, EngineOptions(workers=2)


def wait_and_square(number):
    time.sleep(0.01 * (3 - number % 4))
    return number**2, os.getpid()


@pytest.mark.parametrize("engine", [HERE, TWO], ids=["here", "two"])
def test_results_come_in_order_and_few_items_are_in_memory(engine):
    taken = []

    def items():
        for number in range(40):
            taken.append(number)
            yield number

    with engine.pool() as pool:
        found = pool.completed(
            lambda number: pool.executor.submit(wait_and_square, number), items(), in_order=True
        )
        pids = set()
        for number, (item, (square, pid)) in enumerate(found):
            assert (number, number**2) == (item, square)
            assert len(taken) <= number + 1 + 3 * pool.workers
            pids.add(pid)
    assert len(pids) == pool.workers and (os.getpid() in pids) == (engine is HERE)


def raise_input_error(number):
    raise InputError(f"number {number}", remedy="Give another.")


@pytest.mark.parametrize("engine", [HERE, TWO], ids=["here", "two"])
def test_an_error_of_a_task_is_the_error(engine):
    with pytest.raises(InputError, match=r"^number 7\. Give another\.$"), engine.pool() as pool:
        list(pool.completed(lambda n: pool.executor.submit(raise_input_error, n), [7]))


def test_threads_are_shared_out_or_as_they_are_given(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_of(count) for count in (1, 3, 8, 20)] == [8, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_of(8) == 3


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
        (None, 0, "--workers 0: 1 or more processes were expected"),
    ],
)
def test_engines_that_cannot_be(conf, workers, message, tmp_path):
    pytest.importorskip("dask_jobqueue", reason="Dask: pip install -e '.[dask]'")
    path = None
    if conf is not None:
        path = str(tmp_path / "engine.yaml")
        (tmp_path / "engine.yaml").write_text(conf)
    options = EngineOptions(engine="dask", workers=workers, engine_conf=path)
    with pytest.raises(InputError, match=re.escape(message)):
        options.check_engine()


def start(conf, tmp_path, workers=None):
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(conf))
    options = EngineOptions(engine="dask", workers=workers, engine_conf=str(path))
    with options.pool() as pool:
        return pool


def test_clusters_that_do_not_answer_or_start(tmp_path, monkeypatch):
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed", reason="Dask: pip install -e '.[dask]'")
    message = r"engine\.yaml: no scheduler answers at tcp://127\.0\.0\.1:1 \("
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        pytest.raises(InputError, match=message),
    ):
        start({"cluster": "tcp://127.0.0.1:1"}, tmp_path)
    pytest.importorskip("dask_jobqueue", reason="Dask: pip install -e '.[dask]'")
    with pytest.raises(InputError, match=r"cluster: local does not start \(.*'coers'"):
        start({"cluster": "local", "coers": 1}, tmp_path, workers=1)
    slurm = {"cluster": "slurm", "cores": 1, "memory": "1GB"}
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="cluster: slurm, and there is no program 'sbatch'"):
        start(slurm, tmp_path, workers=1)
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    with pytest.raises(InputError, match=r"cluster: slurm does not start \(.*memory"):
        start({"cluster": "slurm", "cores": 1}, tmp_path, workers=1)


def test_the_example_of_the_page_is_a_slurm_job(tmp_path, monkeypatch):
    """The file is as it stands on the page; a program that is called `sbatch` gets the jobs."""
    pytest.importorskip("dask_jobqueue", reason="Dask: pip install -e '.[dask]'")
    from espnet_bayeslm.utils.dask_cluster import make_cluster, read_conf

    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "engine.yaml").write_text(example)
    name, options = read_conf(str(tmp_path / "engine.yaml"), 100)
    assert name == "slurm"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sbatch = f"#!/bin/sh\ncp $1 {tmp_path}/job.sh\necho Submitted batch job 1\n"
    for program, text in (("sbatch", sbatch), ("scancel", "#!/bin/sh\n")):
        (tmp_path / program).write_text(text)
        (tmp_path / program).chmod(0o755)
    with make_cluster(name, options, 1, path=None) as cluster:
        script = cluster.job_script()
        while not (tmp_path / "job.sh").exists():
            time.sleep(0.01)
    assert re.search(r"^#SBATCH -p \S+$", script, re.MULTILINE)
    assert re.search(r"^#SBATCH --cpus-per-task=\d+$", script, re.MULTILINE)
    assert re.search(r"^export OMP_NUM_THREADS=\d+$", script, re.MULTILINE)
    assert re.search(r"^\S+python\S* -m \S+ tcp://.* --nthreads 1$", script, re.MULTILINE)


@pytest.mark.parametrize(
    "cluster, program, own, directives",
    [
        ("pbs", "qsub", "resource_spec: 'select=1:ncpus=4'", ["#PBS -q cpu", "#PBS -A speech"]),
        ("sge", "qsub", "resource_spec: 'h_vmem=8G'", ["#$ -q cpu", "#$ -P speech"]),
        ("slurm", "sbatch", "job_cpu: 4", ["#SBATCH -p cpu", "#SBATCH -A speech"]),
    ],
)
def test_files_of_batch_systems_become_jobs(
    cluster, program, own, directives, tmp_path, monkeypatch
):
    """Dask-jobqueue's own script has the queue, the account, the prologue and one thread."""
    pytest.importorskip("dask_jobqueue", reason="Dask: pip install -e '.[dask]'")
    from espnet_bayeslm.utils.dask_cluster import make_cluster, read_conf

    account = "project" if cluster == "sge" else "account"
    conf = f"cluster: {cluster}\nqueue: cpu\n{account}: speech\ncores: 4\nprocesses: 1\n{own}\n"
    conf += "memory: 8GB\nwalltime: '08:00:00'\njob_script_prologue: [source venv/bin/activate]\n"
    (tmp_path / "engine.yaml").write_text(conf)
    (tmp_path / program).write_text("#!/bin/sh\necho Your job 1 has been submitted\n")
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    name, options = read_conf(str(tmp_path / "engine.yaml"), 2)
    monkeypatch.setattr(f"dask_jobqueue.{CLASSES[cluster]}.adapt", lambda *_, **__: None)
    with make_cluster(name, options, 2, path=None) as made:
        lines = made.job_script().splitlines()
    assert set(directives) <= set(lines) and "source venv/bin/activate" in lines
    assert any("08:00:00" in line for line in lines if line.startswith("#"))
    assert re.search(r" tcp://.* --nthreads 1 ", f"{lines[-1]} ")


def test_workers_of_this_machine_keep_memory_and_the_client_does_not(monkeypatch):
    """Memory of workers is there for the next tensor; tasks that are done leave nothing behind."""
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)  # a cluster of another test sets it
    pytest.importorskip("distributed", reason="Dask: pip install -e '.[dask]'")
    with EngineOptions(engine="dask", workers=1).pool() as pool:
        submit = pool.executor.submit
        assert submit(os.environ.get, "MALLOC_TRIM_THRESHOLD_").result() is None
        tracemalloc.start()
        for _ in range(40):
            sent = os.urandom(200_000)
            assert submit(os.path.normcase, sent).result() == sent
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 4_000_000


def test_a_file_of_machines_names_a_worker_on_each(tmp_path, monkeypatch):
    """The first of `hosts` is the scheduler's; SSH itself is not tried."""
    distributed = pytest.importorskip("distributed", reason="Dask: pip install -e '.[dask]'")
    from espnet_bayeslm.utils.dask_cluster import make_cluster, read_conf

    given = {}
    monkeypatch.setattr(distributed, "SSHCluster", lambda **options: given.update(options))
    (tmp_path / "engine.yaml").write_text(
        "cluster: ssh\nhosts: [head, a, b]\nworker_options: {n_workers: 2}\n"
    )
    name, options = read_conf(str(tmp_path / "engine.yaml"), None)
    make_cluster(name, options, None, path=None)
    workers = {"nthreads": 1, "n_workers": 2}
    assert given == {"hosts": ["head", "a", "b"], "worker_options": workers}


def test_errors_of_dask_are_told_as_of_any_engine(monkeypatch):
    distributed = pytest.importorskip("distributed", reason="Dask: pip install -e '.[dask]'")
    from espnet_bayeslm.utils.dask_cluster import explain

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
        EngineOptions(engine="dask").check_engine()

"""Tools on several processes and on Dask's workers: the output is that of one process."""

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from command_lines import contents, run
from oracles.lattice_paths import random_lattice, write_htk
from tiny_training import words
from written_files import write

from espnet_bayeslm.bin import bayeslm, lattice, perplexity
from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.engine import work
from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.workflows.runner import run_steps
from espnet_bayeslm.workflows.steps import Step

BLOCK_SIZE = 20


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.rescoring.list_worker.BLOCK_SIZE", BLOCK_SIZE)


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


@pytest.fixture
def dask(cluster, tmp_path):
    """Options of the engine with the two workers of Dask."""
    conf = tmp_path / "engine.yaml"
    conf.write_text(f"cluster: {cluster.scheduler.address}\n")
    return {"engine": "dask", "engine_conf": str(conf)}


@pytest.fixture(params=["local", "dask"])
def engine(request):
    """Options of an engine with two workers, and a function that returns their process ids."""
    if request.param == "local":
        return {"workers": 2}, children
    options = request.getfixturevalue("dask")
    known = list(request.getfixturevalue("cluster").run(os.getpid).values())
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
def lists(nbest, mixture):
    return {"nbest": nbest / "dev", **mixture, "lmwt": 9}


@pytest.fixture
def watched(monkeypatch):
    """Actions when block 1, 2, .. is kept, and the names of the kept blocks."""
    write, counts, acts = work.atomic_write, [], {}

    @contextlib.contextmanager
    def noted(path, mode):
        with write(path, mode) as f:
            yield f
        counts.append(path.name)
        acts.get(len(counts), lambda: None)()

    monkeypatch.setattr(work, "atomic_write", noted)
    return acts, counts


def test_workers_write_what_one_process_writes(lists, engine, segments, tmp_path):
    """With context, samples and uncertainty too; recordings stay whole."""
    options, _ = engine
    of_bayes = {**lists, "lm": lists["lm"][1], "weights": "0.6,0.4"}
    more = {"num_samples": 2, "uncertainty": "true", "token_scores": "true"}
    context = {"segments": segments, "context": "previous"}
    for name, given in {
        "uncertain": {**of_bayes, **more},
        "context": {**lists, **context},
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
        # one that was killed may still be listed
        killed.append(next(pid for pid in pids() if pid not in killed))
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


@pytest.mark.parametrize("change", ["unk_size", "subtract_lm"])
def test_other_options_do_not_take_the_blocks(lists, watched, tmp_path, change):
    """Nor another LM under the same name, here one that is subtracted."""
    source = tmp_path / "source.arpa"
    source.write_bytes(Path(lists["ngram"]).read_bytes())
    lists.update(subtract_lm=source, subtract_weight=-0.3)
    acts, counts = watched
    acts[2] = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(SystemExit):
        run(**lists, output=tmp_path / "out")
    assert list(tmp_path.glob(".out.blocks/*"))
    counts.clear()
    acts.clear()
    if change == "unk_size":
        lists["unk_size"] = 3
    else:
        source.write_text(source.read_text() + "\n")
    run(**lists, output=tmp_path / "out")
    assert len(counts) == 8


def test_a_task_that_ends_its_workers_is_blamed(lists, tmp_path, monkeypatch, refused):
    """As of a list that takes more memory than a worker has."""
    monkeypatch.setattr(work, "_call", end_of_a_worker)
    command = words(**lists, workers=2, output=tmp_path / "out")
    refused(main, command, "4 workers ended during the same task", "Give fewer --workers")


def end_of_a_worker(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_perplexities_are_those_of_one_process(
    plain_text, mixture, engine, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("espnet_bayeslm.mixture.mixture_worker.BLOCK_SIZE", 7)
    options, _ = engine
    for more in ({}, {"context": 2}, {"cache": tmp_path / "cache"}):
        found = []
        for name, how in {"one": {}, "two": options}.items():
            files = {"output": tmp_path / f"{name}.json", "per_sentence": tmp_path / f"{name}.tsv"}
            text = {"text": plain_text / "valid.txt", **more}
            perplexity.main(words(**text, **mixture, **files, **how))
            found.append([path.read_bytes() for path in files.values()] + [capsys.readouterr()[0]])
        assert found[0] == found[1]
    assert not list(tmp_path.glob(".*.blocks"))


def test_lattices_are_those_of_one_process(mixture, engine, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("espnet_bayeslm.rescoring.lattice_worker.LATTICES", 3)
    options, _ = engine
    drawn = (np.random.default_rng(n) for n in range(10))
    lattices = [random_lattice(rng, words="abcde", utt=f"u{n}") for n, rng in enumerate(drawn)]
    write_htk(lattices, tmp_path / "lattices")
    (tmp_path / "refs").write_text("".join(f"u{n} a b c\n" for n in range(10)))
    given = {"lattices": tmp_path / "lattices", "ref": tmp_path / "refs", "write_lattices": "true"}
    found = []
    for name, how in {"one": {}, "two": options}.items():
        lattice.main(words(**given, **mixture, **how, output=tmp_path / name))
        files = {p.name: p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()}
        found.append((files, capsys.readouterr()[0]))
    assert found[0] == found[1] and len(found[0][0]) == 10 + 3


def test_steps_on_dask_are_processes_with_logs(dask, plain_text, tmp_path):
    ngram = ["ngram", *words(text=plain_text / "train.txt", order=1, discount_fallback="true")]
    good = Step("good", [[*ngram, "--arpa", str(tmp_path / "1.arpa")]])
    bad = Step("bad", [["ngram", "--text", "missing", "--arpa", str(tmp_path / "2.arpa")]])
    message = r"bad\.log: ended with status 1: bayeslm ngram: error: missing: cannot be read"
    with pytest.raises(InputError, match=message), EngineOptions(**dask).pool(trains=True) as pool:
        run_steps(pool, [good, bad], tmp_path, bayeslm.main)
    assert (tmp_path / "1.arpa").exists() and (tmp_path / "good.done").exists()
    assert (tmp_path / "good.log").read_text().startswith("$ bayeslm ngram --text ")


@pytest.mark.slow
def test_jobs_of_slurm_write_what_one_process_writes(lists, tmp_path, monkeypatch):
    """A program that is called `sbatch` runs the jobs on this machine."""
    pytest.importorskip("dask_jobqueue", reason="Dask: pip install -e '.[dask]'")
    one = contents(run(**lists, output=tmp_path / "one"))
    programs = {
        "sbatch": f"#!/bin/sh\nbash $1 > {tmp_path}/$$.log 2>&1 &\necho Submitted batch job $!\n",
        "scancel": "#!/bin/sh\npkill -P $1\n",
    }
    for name, text in programs.items():
        write(tmp_path / name, text)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    conf = "cluster: slurm\ncores: 1\nmemory: 1GB\nscheduler_options: {host: 127.0.0.1}\n"
    (tmp_path / "engine.yaml").write_text(conf)
    engine = {"engine": "dask", "engine_conf": tmp_path / "engine.yaml", "workers": 2}
    assert contents(run(**lists, **engine, output=tmp_path / "two")) == one
    assert len(list(tmp_path.glob("*.log"))) == 2


def test_a_scheduler_without_workers(lists, tmp_path, refused):
    distributed = pytest.importorskip("distributed", reason="Dask: pip install -e '.[dask]'")
    with distributed.LocalCluster(n_workers=0, dashboard_address=None, silence_logs=40) as empty:
        address = empty.scheduler.address
        (tmp_path / "engine.yaml").write_text(f"cluster: {address}\n")
        engine = {"engine": "dask", "engine_conf": tmp_path / "engine.yaml"}
        message = f"the scheduler at {address} has no workers. Start some with `dask worker`."
        refused(main, words(**lists, **engine, output=tmp_path / "out"), message)


def test_a_worker_without_the_package(lists, cluster, dask, tmp_path, refused):
    cluster.run(exec, "import sys; sys.modules['espnet_bayeslm'] = None")
    command = words(**lists, **dask, output=tmp_path / "out")
    message = "2 of 2 workers lack the package espnet_bayeslm, the first tcp://"
    refused(main, command, message, "pip install 'espnet_bayeslm[dask]'")

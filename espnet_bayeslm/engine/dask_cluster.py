"""Workers by Dask: processes of this machine, jobs of a batch system, or a running scheduler."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import shutil
from concurrent.futures import CancelledError
from typing import Any, Dict, Iterator, Optional, Tuple

from espnet_bayeslm.engine.pool import EngineError, Pool, ended_too_often
from espnet_bayeslm.engine.processes import num_cores, threads_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_yaml_mapping
from espnet_bayeslm.utils.log import LOG

# Cluster -> module and class
CLUSTERS = {
    "local": ("distributed", "LocalCluster"),
    "ssh": ("distributed", "SSHCluster"),
    "slurm": ("dask_jobqueue", "SLURMCluster"),
    "pbs": ("dask_jobqueue", "PBSCluster"),
    "sge": ("dask_jobqueue", "SGECluster"),
}
PACKAGE = __name__.partition(".")[0]
SETTINGS = {
    # Dask has workers give memory back at once: twice the time for tensors that come and go
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    # Dask keeps the last 1,000 messages, which are blocks of lists here
    "distributed.admin.low-level-log-length": 0,
    # for pages that nobody opens here Dask looks at each worker's stack 100 times a second, and
    # measures the delay of its loops 50 times
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
}
INSTALL = "pip install 'espnet_bayeslm[dask]' here and where the workers run."


def read_conf(path: Optional[str], workers: Optional[int]) -> Tuple[str, Dict[str, Any]]:
    """Cluster, or address of a scheduler, and the options of the cluster's class.

    No file (None) is a local cluster; `workers` is the value of `--workers`.
    """
    options = {} if path is None else read_yaml_mapping(path)
    name = str(options.pop("cluster", "local"))
    is_address, problem, remedy = "://" in name, "", ""
    if not is_address and name not in CLUSTERS:
        problem = f"{name}: unknown"
        remedy = f"Give {', '.join(CLUSTERS)}, or a scheduler's address such as tcp://host:8786."
    elif is_address and (options or workers is not None):
        given = ", ".join([*options, *(["--workers"] if workers is not None else [])])
        problem = f"{name} has workers of its own, and {given} is given"
        remedy = "Leave it out, or start another cluster."
    elif is_jobs(name) and workers is None:
        problem, remedy = f"{name} needs the number of workers", "Give --workers N."
    elif name == "ssh" and workers is not None:
        problem = "ssh has a worker on each of its `hosts` but the first, and --workers is given"
        remedy = "Leave --workers out; `worker_options: {n_workers: N}` is for each host."
    if problem:
        raise InputError(f"cluster: {problem}", path=path, remedy=remedy)
    _import("distributed" if is_address else CLUSTERS[name][0])
    return name, options


def is_jobs(cluster: str) -> bool:
    """True if the workers of a cluster are jobs of a batch system."""
    return CLUSTERS.get(cluster, ("",))[0] == "dask_jobqueue"


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"--engine dask needs the package {module}", remedy=INSTALL) from error


@contextlib.contextmanager
def dask_pool(
    name: str, options: Dict[str, Any], workers: Optional[int], *, path: Optional[str]
) -> Iterator[Pool]:
    """Workers of a cluster within the block, as `read_conf` has read it from the file `path`."""
    distributed = _import("distributed")
    # a worker that is replaced is nothing to act on
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_import("dask").config.set(SETTINGS))
        if "://" in name:
            cluster: Any = name
        else:
            cluster = stack.enter_context(make_cluster(name, options, workers, path=path))
        try:
            client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        except (OSError, ValueError) as error:
            raise InputError(
                f"no scheduler answers at {name} ({_one_line(error)})",
                path=path,
                remedy="Start one with `dask scheduler`, or correct the address.",
            ) from error
        # `--workers` of jobs that still wait in the queue are not there yet
        count = workers or len(client.scheduler_info(n_workers=-1)["workers"])
        if count == 0:
            remedy = "Start some with `dask worker`."
            raise InputError(f"the scheduler at {name} has no workers", path=path, remedy=remedy)
        LOG.info("Dask: %s, %d workers", name, count)
        client.wait_for_workers(1)
        specs = client.run(importlib.util.find_spec, PACKAGE)
        lacking = [address for address, spec in specs.items() if spec is None]
        if lacking:
            raise InputError(
                f"{len(lacking)} of {len(specs)} workers lack the package {PACKAGE}, the first"
                f" {lacking[0]}",
                remedy=INSTALL,
            )
        executor = client.get_executor(pure=False)
        try:
            yield Pool(executor, count, explain)
        except BaseException:
            executor.shutdown(wait=False)
            raise


def make_cluster(
    name: str, options: Dict[str, Any], workers: Optional[int], *, path: Optional[str]
) -> Any:
    """Cluster, one of `CLUSTERS`, with workers that are started, or asked for."""
    module, cls_name = CLUSTERS[name]
    cls = getattr(_import(module), cls_name)
    if name == "local":
        count = workers or num_cores()
        usual = dict(n_workers=count, dashboard_address=None, memory_limit=None, silence_logs=40)
        threads = {"OMP_NUM_THREADS": str(threads_of(count))}
        options = {**usual, "env": threads, **options, "threads_per_worker": 1}
    elif name == "ssh":
        of_workers = {"nthreads": 1, **(options.get("worker_options") or {})}
        options = {**options, "worker_options": of_workers}
    else:
        # one task at a time: a task takes the threads that OMP_NUM_THREADS gives it
        extra = [*options.get("worker_extra_args", ()), "--nthreads", "1"]
        options = {**options, "worker_extra_args": extra}
        submit = cls.job_cls.submit_command.split()[0]
        if shutil.which(submit) is None:
            raise InputError(
                f"cluster: {name}, and there is no program {submit!r}",
                path=path,
                remedy="Run this where jobs can be submitted.",
            )
    try:
        cluster = cls(**options)
    except (TypeError, ValueError, RuntimeError, ImportError, OSError) as error:
        raise InputError(
            f"cluster: {name} does not start ({_one_line(error)})",
            path=path,
            remedy=f"Its keys are the arguments of {module}.{cls_name}.",
        ) from error
    if is_jobs(name):
        # a job that ends early is submitted again
        cluster.adapt(minimum=workers, maximum=workers)
    return cluster


def explain(error: Exception) -> Exception:
    """InputError for an error of Dask itself; another error as it is."""
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        return ended_too_often(4)
    if isinstance(error, CancelledError):
        return EngineError(
            "the scheduler has gone",
            remedy="Start it again; the same command continues from the finished blocks.",
        )
    if "deserialization" in str(error):
        problem = f"the scheduler, or a worker, lacks a package ({_one_line(error)})"
        return EngineError(problem, remedy=INSTALL)
    return error


def _one_line(error: BaseException) -> str:
    """Message of what is at the bottom of an error, as one line."""
    while (cause := error.__cause__) is not None:
        error = cause
    return " ".join((str(error) or type(error).__name__).split())[:200].rstrip(".")

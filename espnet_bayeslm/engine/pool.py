"""Where work is done: in this process, in processes of this machine, or on a cluster by Dask.

All three are a `concurrent.futures.Executor`. A worker that is killed is replaced, and its task is
done again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

from tqdm import tqdm

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import option

T = TypeVar("T")
GROUP = "Engine"
# Tasks under way for each worker: one is computed while others are on their way
AHEAD = 3
# Workers that may end during one task before the task itself is blamed
MAX_TRIES = 4


class Pool(NamedTuple):
    """Workers of an executor; `explain` turns an error of its own into an InputError."""

    executor: Executor
    workers: int
    explain: Callable[[Exception], Exception] = lambda error: error

    @property
    def is_here(self) -> bool:
        """True if tasks are run in this process."""
        return isinstance(self.executor, SerialExecutor)

    def completed(
        self,
        submit: Callable[[T], Future],
        items: Iterable[T],
        *,
        in_order: bool = False,
        finish: Callable[[Future], Any] = Future.result,
    ) -> Iterator[Tuple[T, Any]]:
        """Yield each item and its result; only a few items are in memory at a time.

        `submit` gives the task of an item to the executor, and `finish` returns the result of a
        completed task. Results come as they are completed, or `in_order` of the items.
        """
        most = 1 if self.is_here else AHEAD * self.workers
        todo, following = iter(enumerate(items)), 0
        pending: Dict[Future, Tuple[int, T, int]] = {}
        results: Dict[int, Tuple[T, Any]] = {}
        try:
            while True:
                while len(pending) + len(results) < most and (task := next(todo, None)) is not None:
                    pending[submit(task[1])] = (*task, 1)
                if not pending:
                    return
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    number, item, tries = pending.pop(future)
                    try:
                        results[number] = item, finish(future)
                    except BrokenExecutor as error:
                        if tries == MAX_TRIES:
                            raise ended_too_often(tries) from error
                        pending[submit(item)] = (number, item, tries + 1)
                    except Exception as error:
                        explained = self.explain(error)
                        raise explained from (None if explained is error else error)
                while results and (not in_order or following in results):
                    number = following if in_order else next(iter(results))
                    yield results.pop(number)
                    following += 1
        finally:
            for future in pending:
                future.cancel()


class EngineError(InputError):
    """Workers that cannot go on; the same command continues from the finished blocks."""


def ended_too_often(tries: int) -> EngineError:
    """Error of a task whose workers ended again and again."""
    return EngineError(
        f"{tries} workers ended during the same task",
        remedy="Is there enough memory? Give fewer --workers, or workers with more memory.",
    )


class SerialExecutor(Executor):
    """Runs each task at once, in this process."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Run a task."""
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class LocalExecutor(Executor):
    """Processes of this machine; one that was killed is replaced at the next task.

    The processes are forked, so that slow imports, those of `preload`, are made once. They end with
    this process, even if it is killed. Each has a pipe of its own and shares no lock with another:
    one that is killed while it writes, or holds a lock, stops nobody.
    """

    def __init__(self, workers: int, preload: Sequence[str] = (), *, num_threads: int):
        for module in preload:
            importlib.import_module(module)
        self._workers = workers
        self._num_threads = num_threads
        # the processes end when nobody holds the other end of this pipe
        self._alive, self._held = os.pipe()
        # a thread for each process waits for its answers
        self._threads = ThreadPoolExecutor(workers)
        self._idle: SimpleQueue[Optional[Connection]] = SimpleQueue()
        self._ended: SimpleQueue[BaseProcess] = SimpleQueue()
        self._processes: Dict[Connection, BaseProcess] = {}

    def _fork(self) -> None:
        """Start a process.

        Only the thread that gives the tasks does this: locks that it holds would stay locked in a
        process that another thread starts.
        """
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        ends = theirs, self._alive, self._held
        process = fork.Process(target=_work, args=(*ends, self._num_threads))
        # Python loses a Ctrl-C that comes while it forks: it waits
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
            self._processes[ours] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._idle.put(ours)

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Give a task to a process; those that are not there are started first."""
        self._join_ended()
        for _ in range(self._workers - len(self._processes)):
            self._fork()
        return self._threads.submit(self._run, fn, args, kwargs)

    def _join_ended(self) -> None:
        """Wait until processes that were killed are gone."""
        while not self._ended.empty():
            self._ended.get().join()

    def _run(self, *task: Any) -> Any:
        """Result of a task on a process that has none."""
        message = pickle.dumps(task)
        connection = self._idle.get()
        if connection is None:
            raise BrokenExecutor("the processes are being ended")
        try:
            connection.send_bytes(message)
            answer = connection.recv_bytes()
        except Exception as error:
            process = self._processes.pop(connection)
            process.kill()  # where this process lacks memory, it is alive
            self._ended.put(process)
            connection.close()
            raise BrokenExecutor("a process was killed") from error
        self._idle.put(connection)
        succeeded, result = pickle.loads(answer)
        if not succeeded:
            raise result
        return result

    def __exit__(self, kind: Any, *rest: Any) -> None:
        """End the processes, after an error at once."""
        # then no more tasks ask for a process than there are threads
        self._threads.shutdown(wait=False, cancel_futures=True)
        if kind is not None:
            os.close(self._held)
        for _ in range(self._workers):
            self._idle.put(None)
        self._threads.shutdown()
        for connection in self._processes:
            with contextlib.suppress(OSError):
                connection.send(None)
        for connection, process in self._processes.items():
            process.join()
            connection.close()
        self._join_ended()
        if kind is None:
            os.close(self._held)
        os.close(self._alive)


def _work(connection: Connection, alive: int, held: int, threads: int) -> None:
    """Do the tasks of a pipe, in a process of a `LocalExecutor`, until None comes."""
    os.close(held)
    # Ctrl-C reaches the whole group; the first process tells of it and then ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    # tqdm's own is shared by all processes, and one that is killed may hold it
    tqdm.set_lock(threading.RLock())
    threading.Thread(target=end_with_pipe, args=(alive,), daemon=True).start()
    set_threads(threads)
    while (task := connection.recv()) is not None:
        connection.send_bytes(_answer(*task))


def _answer(fn: Callable, args: Any, kwargs: Any) -> bytes:
    """True and the result of a task, or False and its error, packed."""
    try:
        return pickle.dumps((True, fn(*args, **kwargs)))
    except BaseException as error:
        try:
            answer = pickle.dumps((False, error))
            pickle.loads(answer)  # where an error needs more than its message
        except Exception:
            answer = pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
        return answer


def end_with_pipe(pipe: int) -> None:
    """End this process when the other end of a pipe is closed."""
    os.read(pipe, 1)
    os._exit(1)


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def threads_of(processes: int) -> int:
    """Threads of each of some processes: OMP_NUM_THREADS, or its share of the cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else max(num_cores() // processes, 1)


def set_threads(threads: int) -> None:
    """Compute with a number of threads in this process."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that say where work is done."""

    engine: str = option(
        "What shares out the work: processes of this machine, or Dask",
        "local",
        choices=("local", "dask"),
        group=GROUP,
    )
    workers: Optional[int] = option(
        "Processes that share the work (default: 1; of trainings, and with --engine dask, as many"
        " as this machine has cores)",
        None,
        group=GROUP,
    )
    engine_conf: Optional[str] = option(
        "yaml file for --engine dask. `cluster` is local, slurm, pbs, sge, ssh, or the address of"
        " a scheduler; other keys are options of the cluster's class in dask-jobqueue or"
        " distributed",
        None,
        group=GROUP,
    )

    def check_engine(self) -> None:
        """Raise an InputError where the options cannot be used: before the long work."""
        if self.workers is not None and self.workers < 1:
            raise InputError(f"--workers {self.workers}: 1 or more processes were expected")
        if self.engine == "dask":
            from espnet_bayeslm.engine.dask_cluster import read_conf  # imports dask

            read_conf(self.engine_conf, self.workers)
        elif self.engine_conf is not None:
            raise InputError("--engine_conf without --engine dask", remedy="Give both.")

    @contextlib.contextmanager
    def pool(
        self, *, trains: bool = False, preload: Sequence[str] = (), in_program: bool = False
    ) -> Iterator[Pool]:
        """Workers within the block; after an error they are ended at once.

        Tasks that train need a process of their own, by default one for each core. The modules of
        `preload` are imported before processes are forked. In a program torch may have computed
        before: OpenMP hangs in a forked process, unless this has one thread.
        """
        self.check_engine()
        if self.engine == "dask":
            from espnet_bayeslm.engine.dask_cluster import dask_pool  # imports dask

            with dask_pool(self.engine_conf, self.workers) as pool:
                yield pool
            return
        workers = self.workers or (num_cores() if trains else 1)
        executor: Any = SerialExecutor()
        if workers > 1 or trains:
            num_threads = 1 if in_program else threads_of(workers)
            executor = LocalExecutor(workers, preload, num_threads=num_threads)
        with executor:
            yield Pool(executor, workers)


LOCAL = EngineOptions()
"""This machine."""

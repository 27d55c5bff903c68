"""Processes of this machine that do tasks: forked, replaced where they are killed.

They are a `concurrent.futures.Executor`.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, Callable, Dict, Optional, Sequence

from tqdm import tqdm


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

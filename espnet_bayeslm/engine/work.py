"""Where work is done, and blocks of it: in this process, in processes of this machine, or by Dask.

Results of blocks are kept as they are finished, and joined in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import pickle
import shutil
import threading
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import (
    Any,
    Callable,
    ContextManager,
    Iterable,
    Iterator,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)
from weakref import WeakKeyDictionary

from espnet_bayeslm.engine.dask_cluster import dask_pool, read_conf
from espnet_bayeslm.engine.pool import EngineError, Pool
from espnet_bayeslm.engine.processes import LocalExecutor, num_cores, threads_of
from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write
from espnet_bayeslm.utils.folders import leftover_prefix
from espnet_bayeslm.utils.options import ToolOptions, option

Block = TypeVar("Block", bound=Sequence)
GROUP = "Engine"
ONE_AT_A_TIME = threading.Lock()
"""A worker may have several threads, and an object such as an LM uses them all."""


@contextlib.contextmanager
def local_pool(workers: int, preload: Sequence[str], *, num_threads: int) -> Iterator[Pool]:
    """Processes of this machine within the block, each with so many threads."""
    with LocalExecutor(workers, preload, num_threads=num_threads) as executor:
        yield Pool(executor, workers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions(ToolOptions):
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

    def pool(
        self, *, trains: bool = False, preload: Sequence[str] = (), in_program: bool = False
    ) -> ContextManager[Any]:
        """Workers within a `with` block: a `Pool`, or None where this process does the work.

        Options that cannot be used are refused at once, before the block. After an error in the
        block the workers are ended at once.

        Tasks that train need a process of their own, by default one for each core. The modules of
        `preload` are imported before processes are forked. In a program torch may have computed
        before: OpenMP hangs in a forked process, unless this has one thread.
        """
        if self.workers is not None and self.workers < 1:
            raise InputError(f"--workers {self.workers}: 1 or more processes were expected")
        if self.engine == "dask":
            name, conf = read_conf(self.engine_conf, self.workers)
            return dask_pool(name, conf, self.workers, path=self.engine_conf)
        if self.engine_conf is not None:
            raise InputError("--engine_conf without --engine dask", remedy="Give both.")
        workers = self.workers or (num_cores() if trains else 1)
        if workers == 1 and not trains:
            return contextlib.nullcontext()
        return local_pool(workers, preload, num_threads=1 if in_program else threads_of(workers))


LOCAL = EngineOptions()
"""This machine."""


@functools.lru_cache(maxsize=1)
def _made(packed: bytes) -> Any:
    """Object of a worker, from the function that makes it and its arguments."""
    _, folder, make = pickle.loads(packed)
    with contextlib.suppress(OSError):  # elsewhere relative paths have no meaning
        os.chdir(folder)
    return make()


def _prepare(packed: bytes) -> None:
    """Make the worker's object."""
    with ONE_AT_A_TIME:
        _made(packed)


def _call(packed: bytes, method: str, argument: bytes) -> bytes:
    """Result of a method of the worker's object, which is made where it is not there yet."""
    with ONE_AT_A_TIME:
        return pickle.dumps(getattr(_made(packed), method)(pickle.loads(argument)))


class Blocks:
    """An object that each worker makes once, by `make(*args)`, and the results of its methods.

    Workers import the function, and begin at once. Without a pool this process is the worker.
    """

    def __init__(self, pool: Optional[Pool], make: Callable, *args: Any):
        self.pool = pool
        self._folder: Optional[Path] = None
        self._identity = ""
        if pool is None:
            self._here = make(*args)
            return
        # files may change between two runs: no run takes the object of another
        packed = (uuid.uuid4().hex, os.getcwd(), functools.partial(make, *args))
        self._packed = pickle.dumps(packed)
        # Dask forgets a task that nobody holds
        self._begun = [pool.executor.submit(_prepare, self._packed) for _ in range(pool.workers)]
        # where results are kept, of the tasks under way
        self._paths: WeakKeyDictionary[Future, Path] = WeakKeyDictionary()

    def _path(self, folder: Path, method: str, item: Any) -> Path:
        """File in a folder that keeps the result of a block."""
        name = f"{self._identity} {method} {item!r}"
        return folder / hashlib.sha256(name.encode()).hexdigest()

    def _submit(self, pool: Pool, method: str, item: Any) -> Future:
        """Give a block to the executor; the result is bytes, which are kept as they are.

        An earlier run may have left them.
        """
        path = self._folder and self._path(self._folder, method, item)
        if path is not None and path.exists():
            known: Future = Future()
            known.set_result(path.read_bytes())
            return known
        future = pool.executor.submit(_call, self._packed, method, pickle.dumps(item))
        if path is not None:
            self._paths[future] = path
        return future

    def _finish(self, future: Future) -> bytes:
        """Result of a block, which is written to its file, whole or not at all."""
        packed: bytes = future.result()
        if (path := self._paths.pop(future, None)) is not None:
            with atomic_write(path, "wb") as f:
                f.write(packed)
        return packed

    def ask(self, method: str, item: Any = None) -> Any:
        """Result of a method on any worker; this process keeps it as the result of a block."""
        if self.pool is not None:
            submit = functools.partial(self._submit, self.pool, method)
            return pickle.loads(next(self.pool.completed(submit, [item]))[1])
        if self._folder is None:
            return getattr(self._here, method)(item)
        path = self._path(self._folder, method, item)
        if path.exists():
            return pickle.loads(path.read_bytes())
        result = getattr(self._here, method)(item)
        with atomic_write(path, "wb") as f:
            pickle.dump(result, f)
        return result

    @contextlib.contextmanager
    def kept(self, output: PathLike, identity: str) -> Iterator[None]:
        """Keep the results of blocks beside `output` until the block of code ends well.

        A run that was stopped or killed leaves them, and the next one with the same identity, which
        is all that results depend on besides the blocks, takes them. After bad input they go.
        """
        target = Path(output).resolve()
        place = target if target.is_dir() else target.parent
        self._folder = place / f"{leftover_prefix(target)}blocks"
        self._identity = identity
        made = [above for above in (place, *place.parents) if not above.exists()]
        goes = True
        try:
            yield
        except BaseException as error:
            goes = isinstance(error, InputError) and not isinstance(error, EngineError)
            raise
        finally:
            folder, self._folder = self._folder, None
            if goes:
                shutil.rmtree(folder, ignore_errors=True)
            for above in made:
                with contextlib.suppress(OSError):  # not empty
                    above.rmdir()

    def map(
        self,
        method: str,
        blocks: Iterable[Block],
        *,
        desc: str,
        unit: str,
        total: Optional[int] = None,
        sent: Callable[[Block], Any] = lambda block: block,
    ) -> Iterator[Tuple[Block, Any]]:
        """Yield each block and the result of a method for it, in the order of the blocks.

        `desc` and `unit` are for the progress bar over all workers, `total` counts the items of all
        blocks, and `sent` gives the part of a block that the method gets.
        """
        if self.pool is None:
            for block in blocks:
                yield block, self.ask(method, sent(block))
            return
        give = functools.partial(self._submit, self.pool, method)
        submit: Callable[[Block], Future] = lambda block: give(sent(block))  # noqa: E731
        with progress(desc=desc, unit=unit, total=total) as bar:
            completed = self.pool.completed(submit, blocks, in_order=True, finish=self._finish)
            for block, packed in completed:
                bar.update(len(block))
                yield block, pickle.loads(packed)

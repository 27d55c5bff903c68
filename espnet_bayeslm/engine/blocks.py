"""Blocks of one long work: shared out among workers, kept as they are finished, joined in order."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import shutil
import threading
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Tuple, TypeVar
from weakref import WeakKeyDictionary

from espnet_bayeslm.engine.pool import EngineError, Pool
from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, leftover_prefix

Block = TypeVar("Block", bound=Sequence)
ONE_AT_A_TIME = threading.Lock()
"""A worker may have several threads, and an object such as an LM uses them all."""


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

    Workers import the function, and begin at once.
    """

    def __init__(self, pool: Pool, make: Callable, *args: Any):
        self.pool = pool
        # where this process is the worker, the object is made here, once
        self._make = functools.lru_cache(functools.partial(make, *args))
        # files may change between two runs: no run takes the object of another
        packed = (uuid.uuid4().hex, os.getcwd(), functools.partial(make, *args))
        self._packed = b"" if pool.is_here else pickle.dumps(packed)
        begun = 0 if pool.is_here else pool.workers
        # Dask forgets a task that nobody holds
        self._begun = [pool.executor.submit(_prepare, self._packed) for _ in range(begun)]
        self._folder: Optional[Path] = None
        self._identity = ""
        # where results are kept, of the tasks under way
        self._paths: WeakKeyDictionary[Future, Path] = WeakKeyDictionary()

    def _submit(self, method: str, item: Any) -> Future:
        """Give a block to the executor; the result is bytes, which are kept as they are.

        An earlier run may have left them.
        """
        path = None
        if self._folder is not None:
            name = hashlib.sha256(f"{self._identity} {method} {item!r}".encode()).hexdigest()
            path = self._folder / name
            if path.exists():
                known: Future = Future()
                known.set_result(path.read_bytes())
                return known
        submit = self.pool.executor.submit
        if self.pool.is_here:
            future = submit(lambda: pickle.dumps(getattr(self._make(), method)(item)))
        else:
            future = submit(_call, self._packed, method, pickle.dumps(item))
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
        """Result of a method on any worker."""
        completed = self.pool.completed(functools.partial(self._submit, method), [item])
        return pickle.loads(next(completed)[1])

    @contextlib.contextmanager
    def kept(self, output: Optional[PathLike], identity: str) -> Iterator[None]:
        """Keep the results of blocks beside `output`, if given, until the block of code ends well.

        A run that was stopped or killed leaves them, and the next one with the same identity, which
        is all that results depend on besides the blocks, takes them. After bad input they go.
        """
        if output is None:
            yield
            return
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
        submit: Callable[[Block], Future] = lambda block: self._submit(method, sent(block))  # noqa: E731
        with progress(desc=desc, unit=unit, total=total, hidden=self.pool.is_here) as bar:
            completed = self.pool.completed(submit, blocks, in_order=True, finish=self._finish)
            for block, packed in completed:
                bar.update(len(block))
                yield block, pickle.loads(packed)

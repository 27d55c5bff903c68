"""Workers that share tasks: a `concurrent.futures.Executor` of processes, or of Dask.

A worker that is killed is replaced, and its task is done again.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any, Callable, Dict, Iterable, Iterator, NamedTuple, Tuple, TypeVar

from espnet_bayeslm.utils.errors import InputError

T = TypeVar("T")
# Tasks under way for each worker: one is computed while others are on their way
AHEAD = 3
# Workers that may end during one task before the task itself is blamed
MAX_TRIES = 4


class Pool(NamedTuple):
    """Workers of an executor; `explain` turns an error of its own into an InputError."""

    executor: Executor
    workers: int
    explain: Callable[[Exception], Exception] = lambda error: error

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
        completed task. Results come as they are completed, or `in_order` of the items. An iterator
        that has no item for now is asked again after the next result.
        """
        most = AHEAD * self.workers
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

"""Worker threads: each one computes with its own copy of the model, on one core."""

from __future__ import annotations

import itertools
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import torch

from normec.models import FlatModel

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers:
    """A pool of threads with one model each; results come in the order of the tasks, whichever thread computed them.

    Every worker computes on one core, also when it is alone, so that results are bit-equal for any number of workers.
    """

    def __init__(self, model: FlatModel, count: int) -> None:
        self._count = count
        self._models: queue.SimpleQueue[FlatModel] = queue.SimpleQueue()
        for replica in [model, *(model.replica() for _ in range(count - 1))]:
            self._models.put(replica)
        self._threads_before = torch.get_num_threads()

    def __enter__(self) -> Workers:
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(self._count, initializer=torch.set_num_threads, initargs=(1,))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)

    def map(self, work: Callable[[FlatModel, Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """work(model, task) for each task, in order; at most two tasks per worker wait at a time."""
        waiting = iter(tasks)
        first = list(itertools.islice(waiting, 2))
        if self._count == 1 or len(first) < 2:  # another thread would only move the work, to where memory is cold
            yield from (self._run(work, task) for task in itertools.chain(first, waiting))
            return
        pending: deque[Future[Result]] = deque()
        for task in itertools.chain(first, waiting):
            pending.append(self._pool.submit(self._run, work, task))
            if len(pending) > 2 * self._count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _run(self, work: Callable[[FlatModel, Task], Result], task: Task) -> Result:
        model = self._models.get()
        try:
            return work(model, task)
        finally:
            self._models.put(model)

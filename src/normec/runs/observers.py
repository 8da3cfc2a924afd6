"""Who watches a run, and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

import numpy as np
from torch import Tensor, nn

from normec.algorithms import Server
from normec.runs.experiment import Plan
from normec.runs.written import MetricsRow, Summary

P = ParamSpec("P")


class Observer:
    """Base of every observer: each method is an event of a run, and does nothing here.

    An exception that a method raises ends the run. Of several ranks the first alone has observers.
    """

    def started(self, plan: Plan) -> None:
        """Called once, after every check and before the first round of this process."""

    def computed(self, clients: Sequence[Hashable], updates: Tensor) -> None:
        """Called for each block of clients with their ids and local updates (G, d), which no server sees in the clear.

        It comes from the threads of the workers, several at a time. The updates are views: copy what has to stay.
        """

    def released(self, rounds_done: int, server: Server, cohort: np.ndarray | None, mean: Tensor | None) -> None:
        """Called with all that the server holds before the first round of this process, after each one, and when all are over.

        cohort: (M,) who transmitted in the round that has just ended, None where no round has. mean: (d,) what it released, in
        float64; None where it released nothing.
        """

    def round(self, row: MetricsRow) -> None:
        """Called with each line of the metrics; row["round"] is 0 before training."""

    def finished(self, model: nn.Module, summary: Summary) -> None:
        """Called once, with the trained model and the summary, when both are written."""


@dataclass(frozen=True)
class Audience:
    """The observers of a run in order. An event goes to those that have a method for it, of whatever class they are."""

    observers: tuple[object, ...] = ()

    @classmethod
    def of(cls, observer: Observer | Sequence[Observer] | None) -> Audience:
        """One observer, several, or none."""
        if observer is None:
            return cls()
        return cls(tuple(observer) if isinstance(observer, Sequence) else (observer,))

    def tell(self, event: Callable[Concatenate[Observer, P], None], *what: P.args, **more: P.kwargs) -> None:
        """Tells everyone. event: a method of `Observer`."""
        for method in self._methods(event):
            method(*what, **more)

    @property
    def computed(self) -> Callable[[Sequence[Hashable], Tensor], None] | None:
        """What tells everyone of updates; None where nobody wants to know, so that ordinary runs do nothing for it."""
        heard = any(True for _ in self._methods(Observer.computed))
        return (lambda clients, updates: self.tell(Observer.computed, clients, updates)) if heard else None

    def _methods(self, event: Callable[..., None]) -> Iterator[Callable[..., None]]:
        for observer in self.observers:
            method = getattr(observer, event.__name__, None)
            if method is not None and getattr(method, "__func__", method) is not event:
                yield method

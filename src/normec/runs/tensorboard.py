"""The metrics of a run for TensorBoard: `normec train --tensorboard`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from normec.errors import BadInput
from normec.runs.observers import Observer
from normec.runs.written import MetricsRow
from normec.settings import flat


class TensorBoardObserver(Observer):
    """Writes every number of the metrics as a scalar by round, below `folder`.

    Use it as a context, so that the last rounds are written.
    """

    def __init__(self, folder: Path) -> None:
        """Raises BadInput where tensorboard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BadInput("tensorboard", "is not installed", remedy="Install it with pip install 'normec[tensorboard]'") from None
        self._make, self._folder = SummaryWriter, folder
        self._writer: Any = None

    def __enter__(self) -> TensorBoardObserver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()

    def round(self, row: MetricsRow) -> None:
        """As `Observer.round`. What an interrupted run had written beyond its checkpoint is taken back."""
        if self._writer is None:
            self._writer = self._make(str(self._folder), purge_step=row["round"])
        for name, value in flat(row).items():
            if name != "round" and isinstance(value, int | float):
                self._writer.add_scalar(name.replace(".", "/"), value, row["round"])
        self._writer.flush()

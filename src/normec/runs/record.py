"""What a run's folder tells a reader, also while the run goes on."""

from __future__ import annotations

import contextlib
import functools
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from normec.errors import BadInput
from normec.evaluation.clients import ClientScores
from normec.hashed import check_last_line, unsealed
from normec.privacy.account import Account
from normec.runs.folder import RunFolder
from normec.runs.spending import account_of, check_audit, check_metrics, check_summary, finite_or_none, promises
from normec.runs.written import MetricsRow
from normec.settings import Tree

Number = Literal["test_accuracy", "test_loss", "train_loss", "transmissions", "bytes_up", "bytes_down", "epsilon", "seconds"]
"""Of a line of metrics."""
DAMAGES = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a file of a run's folder raises where it is damaged."""


@dataclass(frozen=True)
class Record:
    """What a run's folder tells. settings: the configuration in full. metrics: a dict a round. summary: None before the run's end.

    audit: of a run that is an audit what it has found, or before its end only how many canaries there are. account: what the ledger
    says that was spent, None of a run that promises nothing; the last of the metrics shows that ε.
    """

    path: Path
    settings: Tree
    metrics: list[MetricsRow]
    summary: Tree | None
    audit: Tree | None = None
    account: Account | None = None

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record of a run, also of one that is going on or was interrupted.

        Raises:
            BadInput: for a folder that holds no run, for damaged files, naming the first, and for files that contradict the ledger.
        """
        folder = RunFolder(path)
        if not folder.metrics.is_file():
            raise BadInput(str(path), "holds no run (metrics.jsonl is missing)", remedy="Give a run's folder")
        reading = folder.summary
        try:
            summary = unsealed(_text(reading)) if reading.is_file() else None  # first: where it is there, all others are
            reading = folder.metrics
            metrics = _rows(_text(reading))
            reading = folder.config if folder.config.is_file() else folder.settings
            settings = _toml(_text(reading)) if reading == folder.config else unsealed(_text(reading))
            reading = folder.audit
            audit = unsealed(_text(reading)) if reading.is_file() else None
            if not (audit is None or _is_audit(audit)):
                raise TypeError("it holds something else")
        except DAMAGES as error:
            raise _damaged(reading, error) from None
        if summary is not None:
            folder.check_results(summary, folder.metrics, folder.config)
        account = account_of(folder, promises(settings, metrics, summary))  # after the metrics, which it is always ahead of
        if summary is not None:
            check_summary(account, summary, folder.summary)
        if account is not None:
            check_metrics(account, metrics, folder.metrics)
            if audit is not None:
                check_audit(account, audit, folder.audit)
        if metrics:
            metrics[-1]["epsilon"] = finite_or_none(account)
        return cls(path, settings, metrics, summary, audit, account)

    @functools.cached_property
    def clients(self) -> list[ClientScores]:
        """Of a finished run how each client fares, which only a simulation can know; read when it is asked for, since it may be large.

        Raises:
            BadInput: where the file is damaged, or of another run.
        """
        folder = RunFolder(self.path)
        path = folder.clients
        try:
            rows = unsealed(_text(path))["simulation_only"] if path.is_file() else []
            if not isinstance(rows, list):
                raise TypeError("it holds something else")
        except DAMAGES as error:
            raise _damaged(path, error) from None
        if self.summary is not None:
            folder.check_results(self.summary, path)
        return rows

    @property
    def epsilon(self) -> float | None:
        """What the run has spent by its ledger, for everyone who shows it; None is infinite: nothing is promised."""
        return finite_or_none(self.account)

    @property
    def epsilon_every_round(self) -> float | None:
        """The same for a client that is asked in every round; None where ε does not rest on whom the server asks."""
        return self.account.spent.every_round if self.account else None

    def best(self, metric: Number = "test_accuracy") -> float | None:
        """The largest value of a number over the rounds; None where it was never taken."""
        return max((value for row in self.metrics if (value := row.get(metric)) is not None), default=None)

    def last(self, metric: Number) -> float | None:
        """The last value of a number; None where it was never taken."""
        return next((value for row in reversed(self.metrics) if (value := row.get(metric)) is not None), None)

    @property
    def last_metrics(self) -> dict[str, float | None]:
        """The metrics beside loss and accuracy where they were last taken, by name."""
        taken = (row["metrics"] for row in reversed(self.metrics) if isinstance(row.get("metrics"), dict))
        return next((each for each in taken if any(value is not None for value in each.values())), {})

    def reaching(self, target: float | None) -> MetricsRow | None:
        """The first evaluated round whose test accuracy is at least `target`; None where there is none."""
        if target is None:
            return None
        return next((row for row in self.metrics if (accuracy := row.get("test_accuracy")) is not None and accuracy >= target), None)


def _damaged(path: Path, error: Exception) -> BadInput:
    return BadInput(str(path), f"is damaged ({type(error).__name__}: {error})", remedy="Leave this run out, or run it again")


def _is_audit(content: Tree) -> bool:
    """Whether it is what an audit writes at its start, or at its end."""
    if "tests" not in content:
        return isinstance(content["canaries"], int)
    return {"canaries", "claimed", "flagged"} <= content.keys() and {"edges", "counts"} <= content["histograms"].keys()


def _rows(text: str) -> list[MetricsRow]:
    """The lines of the metrics; the last may be half written now."""
    *whole, rest = text.split("\n")
    with contextlib.suppress(json.JSONDecodeError):
        if json.JSONDecoder().raw_decode(rest)[1] < len(rest):
            raise ValueError("its last line does not end")
    rows = [cast(MetricsRow, unsealed(line)) for line in whole]
    if [row["round"] for row in rows] != list(range(len(rows))):
        raise ValueError("a line is missing, or in another place")
    return rows


def _toml(text: str) -> Tree:
    check_last_line(text)
    return tomllib.loads(text)


def _text(path: Path) -> str:
    return path.read_bytes().decode()

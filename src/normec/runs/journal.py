"""The journal of a run, simulated or deployed: ledger, metrics and checkpoint, so that a crash forgets no release and loses little else."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Server
from normec.errors import BadInput
from normec.evaluation.evaluate import ScoresRow
from normec.privacy import Mechanism, Privacy, Spent, SpentSoFar, epsilon
from normec.privacy.account import Evaluated
from normec.privacy.header import Header
from normec.privacy.ledger import Ledger
from normec.privacy.promise import Claim, claim_table, state_claim
from normec.runs.folder import NO_ROUND, Checkpoint, Output, RunFolder
from normec.runs.written import MetricsRow, SharedRow, SharedSummary
from normec.settings import Tree
from normec.version import versions


class Promise(NamedTuple):
    """What a run promises. delta: None without privacy. spent: the accountant of the mechanism that is claimed."""

    mechanism: Mechanism
    privacy: Privacy
    delta: float | None
    spent: SpentSoFar


@dataclass(kw_only=True)
class Standing:
    """Where any run stands between two rounds. transmissions: messages from clients so far."""

    server: Server
    rounds_done: int = 0
    transmissions: int = 0
    seconds: float = 0.0


class RunJournal:
    """Of one run. Without a folder nothing is written; without privacy or a folder there is no ledger, and what was planned counts.

    rows: the metrics so far. replays: whether the output of an interrupted round is stored, to be released when the run resumes;
    otherwise the round is done again, and counts again.
    """

    def __init__(self, folder: RunFolder | None, promise: Promise, replays: bool = True) -> None:
        self.folder, self.promise, self.replays = folder, promise, replays
        self.ledger: Ledger | None = None
        self.rows: list[MetricsRow] = []
        self._clock = time.perf_counter()

    @property
    def mechanism(self) -> Mechanism:
        """The one of the run."""
        return self.promise.mechanism

    # where a run stands

    def open(self, settings: Tree, like: Mapping[str, Tensor], numbers: Sequence[str]) -> Checkpoint | None:
        """The folder's checkpoint, None where there is none; from here on the folder belongs to this run.

        like: vectors that it holds, of their sizes. numbers: counts that it holds.

        Raises:
            BadInput: where the folder holds another run, naming the difference, or is damaged; for a ledger that is of another
                mechanism, or that knows of fewer rounds than were seen.
        """
        if self.folder is None:
            return None
        self.folder.check_settings(settings)
        self._open_ledger(self.folder)
        checkpoint = self.folder.load_checkpoint()
        if checkpoint is None:
            self.rows = self.folder.start_metrics(NO_ROUND)
            return None
        tensors, counts = checkpoint
        _check_counts(counts, numbers)
        if self.ledger:
            self.ledger.check_holds(counts.get("ledger"))
        self.rows = self.folder.start_metrics(counts["rounds_done"])
        _check_shapes(tensors, like)
        self.start_clock(counts["seconds"])
        self._settle(counts["rounds_done"])
        return checkpoint

    def _open_ledger(self, folder: RunFolder) -> None:
        mechanism, privacy, delta, spent = self.promise
        if not mechanism.trust.promises:
            return
        promised = spent.mechanism  # an audit's canaries are promised nothing
        header = Header.of(mechanism, privacy, delta, spent.planned.accountant, promised)
        self.ledger = Ledger.open(folder.ledger, header.table())
        self.ledger.check_covers(folder.visible_rounds(), folder.holds_output())

    def _settle(self, rounds_done: int) -> None:
        """Ends a release that the checkpoint after so many rounds holds already."""
        if self.ledger and (pending := self.ledger.pending()) and pending[0] < rounds_done:
            self.ledger.release(pending[0])

    def save(self, checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint; it names the ledger's last line, so that it goes with no other ledger."""
        if self.folder:
            named = {"ledger": self.ledger.head} if self.ledger else {}
            self.folder.save_checkpoint(checkpoint._replace(counts=checkpoint.counts | named))

    def check_in_place(self) -> None:
        """Raises TrainingFailed where ledger or metrics are not the files that were written any more."""
        if self.ledger:
            self.ledger.check_in_place()
        if self.folder:
            self.folder.rows.check()

    # a round

    def begin(self, k: int) -> Output | None:
        """Before any coin or noise of round k: its intent; or the output of an interrupted attempt, to be released now."""
        if self.folder is None or self.ledger is None:
            return None
        if (fingerprint := self._interrupted(k)) is not None:
            return self.folder.load_output(fingerprint)
        self.ledger.intent(k)
        return None

    def _interrupted(self, k: int) -> str | None:
        """The hash of the stored output of round k, where an attempt was interrupted and is not to be repeated."""
        pending = self.ledger.pending() if self.ledger and self.replays and not self.ledger.seeded else None
        return pending[1] if pending and pending[0] == k else None

    def commit(self, k: int, output: Output) -> None:
        """The output of round k, with those whose messages may be in it, is stored and on the ledger before anyone can see it."""
        if self.folder is None or self.ledger is None or self.ledger.pending() == (k, output.fingerprint()):
            return
        if self.replays and not self.ledger.seeded:
            self.folder.save_output(output)
        if self.mechanism.trust.per_client:  # for the clients' own accounts; elsewhere participants are a secret
            participants = np.flatnonzero(output.cohort).tolist()
            exposure = self.mechanism.trust.exposure(len(participants))
            self.ledger.commit(k, output.fingerprint(), participants=participants, exposure=exposure)
        else:
            self.ledger.commit(k, output.fingerprint())

    def end(self, k: int, released: bool = True) -> None:
        """Round k has ended, and what it released is visible; or it has released nothing."""
        if self.ledger:
            (self.ledger.release if released else self.ledger.give_up)(k)

    # metrics

    def start_clock(self, seconds: float) -> None:
        """The run's wall time goes on from so many seconds."""
        self._clock = time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, over all its processes."""
        return time.perf_counter() - self._clock

    def row(self, standing: Standing, scores: ScoresRow, bytes_up: int, bytes_down: int, also_spent: float = 0.0) -> SharedRow:
        """A line of the metrics. also_spent: ε of what the ledger does not count."""
        return {
            "round": standing.rounds_done,
            **scores,
            "transmissions": standing.transmissions,
            "bytes_up": bytes_up,
            "bytes_down": bytes_down,
            "epsilon": _finite(self.spent_after(standing.rounds_done) + also_spent),
            "seconds": round(standing.seconds, 3),
        }

    def write(self, row: MetricsRow) -> None:
        """Adds a line to the metrics."""
        self.rows.append(row)
        if self.folder:
            self.folder.append_metrics(row)

    def recount(self, rounds_done: int) -> bool:
        """Attempts that ended in a crash count too: the last line of the metrics says so. Returns whether it had to be changed."""
        spent = _finite(self.spent_after(rounds_done))
        if self.folder is None or self.rows[-1]["epsilon"] == spent:
            return False
        self.rows[-1]["epsilon"] = spent
        self.folder.replace_metrics(self.rows)
        return True

    # what counts

    @property
    def full(self) -> bool:
        """Whether the releases that were accounted are used up; with seeded noise, of which repetitions count once, they never are."""
        return self.ledger is not None and not self.ledger.seeded and self.ledger.counted() >= self.mechanism.rounds

    def budget_is_spent(self, k: int) -> bool:
        """Whether retries have used up the releases that were accounted, so that round k must not begin.

        Raises:
            BadInput: where that is so, and there is no checkpoint to end with: its model would be the untrained one.
        """
        spent = self.full and self._interrupted(k) is None
        if spent and k == 0:
            raise BadInput(
                "resume",
                f": the ledger counts {self.counted(k)} releases, all that were accounted, and there is no checkpoint",
                remedy="Restore the checkpoint, or start again in another folder",
            )
        return spent

    def counted(self, rounds_done: int) -> int:
        """How many releases count after so many rounds."""
        return rounds_done if self.ledger is None or self.ledger.seeded else self.ledger.counted()

    def spent_after(self, rounds_done: int) -> float:
        """ε of all releases that count after so many rounds."""
        return self.promise.spent.after(self.counted(rounds_done))

    def spent(self) -> Spent:
        """ε of the planned releases, or of those that count where these are more, and its accountant."""
        counted = self.counted(self.mechanism.rounds)
        if counted <= self.mechanism.rounds:
            return self.promise.spent.planned
        return epsilon(replace(self.mechanism, rounds=counted), self.promise.delta or 0.0)

    def claim(self, largest_exposure: float, evaluated: Evaluated | None = None) -> Claim:
        """The same in words. largest_exposure, evaluated: as `state_claim`."""
        mechanism, privacy, delta, _ = self.promise
        return state_claim(
            mechanism, self.spent(), delta=delta or 0.0, exposure=largest_exposure, limit=privacy.client_limit, evaluated=evaluated
        )

    def summary(self, claim: Claim) -> SharedSummary:
        """What every summary says: the claim, and how the metrics ended."""
        last = self.rows[-1]
        return {
            **claim_table(self.mechanism, claim, self.promise.privacy.noise),
            "rounds": last["round"],
            "test_accuracy": last["test_accuracy"],
            "test_loss": last["test_loss"],
            "transmissions": last["transmissions"],
            "bytes_up": last["bytes_up"],
            "bytes_down": last["bytes_down"],
            "seconds": last["seconds"],
            "versions": {**versions(), "python": platform.python_version()},
        }

    def exposure(self, held: Tensor) -> Tensor:
        """Σ 1/h_k (M,) over each client's rounds: as `held`, or with secure noise by the ledger, where every attempt counts."""
        if self.ledger is None or self.ledger.seeded or not self.mechanism.trust.per_client:
            return held
        return torch.from_numpy(self.ledger.exposures(self.mechanism, pending=not self.replays))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _check_counts(counts: Mapping[str, Any], numbers: Sequence[str]) -> None:
    """Refuses a checkpoint whose numbers are missing, or no numbers."""
    for name in numbers:
        value: Any = counts.get(name)
        kinds = (int, float) if name == "seconds" else (int,)
        if type(value) not in kinds or not 0 <= value < math.inf:
            raise BadInput("resume", f": the checkpoint is damaged ({name}={value!r})", remedy="Start again in another folder")


def _check_shapes(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Refuses a checkpoint whose vectors are missing or of other sizes."""
    for name, vector in like.items():
        if name not in tensors or tensors[name].shape != vector.shape:
            raise BadInput("resume", f": the checkpoint is damaged ({name})", remedy="Start again in another folder")

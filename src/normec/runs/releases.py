"""The releases of a run on its ledger, each before it can be seen; every recorder has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normec.errors import BadInput
from normec.privacy import Spent, epsilon
from normec.privacy.header import Header
from normec.privacy.ledger import Ledger
from normec.runs.experiment import Plan
from normec.runs.folder import Output, RunFolder


class Releases:
    """Of one run. Without a folder or without privacy there is no ledger, and what was planned counts."""

    def __init__(self, plan: Plan, folder: RunFolder | None) -> None:
        self._plan, self._folder = plan, folder if plan.mechanism.trust.promises else None
        self._ledger: Ledger | None = None

    def open(self) -> None:
        """Before anything else is read in the folder.

        Raises:
            BadInput: for a ledger that is damaged, of another mechanism, or that knows of fewer rounds than were seen.
        """
        if self._folder is None:
            return
        plan = self._plan
        planned, promised = plan.spent.planned, plan.spent.mechanism  # an audit's canaries are promised nothing
        header = Header.of(plan.mechanism, plan.experiment.privacy, plan.delta, planned.accountant, promised)
        self._ledger = Ledger.open(self._folder.ledger, header.table())
        self._ledger.check_covers(self._folder.visible_rounds(), self._folder.holds_output())

    def mark(self) -> dict[str, str]:
        """What a checkpoint holds of the ledger, so that it goes with no other one."""
        return {"ledger": self._ledger.head} if self._ledger else {}

    def check_mark(self, counts: dict[str, Any]) -> None:
        """Refuses a checkpoint of another run.

        Raises:
            BadInput: saying so.
        """
        if self._ledger:
            self._ledger.check_holds(counts.get("ledger"))

    def check_in_place(self) -> None:
        """Raises TrainingFailed where the ledger is not the file that was written any more."""
        if self._ledger:
            self._ledger.check_in_place()

    def settle(self, rounds_done: int) -> None:
        """Ends a release that the checkpoint after so many rounds holds already."""
        if self._ledger and (pending := self._ledger.pending()) and pending[0] < rounds_done:
            self._ledger.release(pending[0])

    def budget_is_spent(self, k: int) -> bool:
        """Whether retries have used up the releases that were accounted, so that round k must not begin.

        Raises:
            BadInput: where that is so, and there is no checkpoint to end with: its model would be the untrained one.
        """
        if self._ledger is None or self._ledger.seeded or self._ledger.counted() < self._plan.mechanism.rounds:
            return False
        pending = self._ledger.pending()
        spent = pending is None or pending[0] != k
        if spent and k == 0:
            problem = f": the ledger counts {self._ledger.counted()} releases, all that were accounted, and there is no checkpoint"
            raise BadInput("resume", f"{problem}. Restore the checkpoint, or start again in another folder.")
        return spent

    def begin(self, k: int) -> Output | None:
        """Before any coin or noise of round k: its intent; or the output of an interrupted attempt, to be released now."""
        if self._folder is None or self._ledger is None:
            return None
        pending = self._ledger.pending()
        if pending and pending[0] == k and not self._ledger.seeded:
            return self._folder.load_output(pending[1])
        self._ledger.intent(k)
        return None

    def commit(self, k: int, output: Output) -> None:
        """The output of round k is stored and on the ledger before anyone can see it."""
        if self._folder is None or self._ledger is None or self._ledger.pending() == (k, output.fingerprint()):
            return
        if not self._ledger.seeded:
            self._folder.save_output(output)
        self._ledger.commit(k, output.fingerprint(), **self._known_cohort(output))

    def end(self, k: int, released: bool) -> None:
        """Round k has ended, and what it released is visible; or it has released nothing."""
        if self._ledger:
            (self._ledger.release if released else self._ledger.give_up)(k)

    def counted(self, rounds_done: int) -> int:
        """How many releases count after so many rounds."""
        return rounds_done if self._ledger is None or self._ledger.seeded else self._ledger.counted()

    def spent_after(self, rounds_done: int) -> float:
        """ε of all releases that count after so many rounds."""
        return self._plan.spent.after(self.counted(rounds_done))

    def claim(self) -> Spent:
        """ε of all releases that count at the run's end, and its accountant."""
        counted = self.counted(self._plan.mechanism.rounds)
        if counted == self._plan.mechanism.rounds:
            return self._plan.spent.planned
        return epsilon(replace(self._plan.mechanism, rounds=counted), self._plan.delta or 0.0)

    def exposure(self, held: Tensor) -> Tensor:
        """Σ 1/h_k (M,) over each client's rounds: as `held`, or with secure noise by the ledger, where every attempt counts."""
        mechanism = self._plan.mechanism
        if self._ledger is None or self._ledger.seeded or not mechanism.trust.per_client:
            return held
        return torch.from_numpy(self._ledger.exposures(mechanism, pending=False))

    def _known_cohort(self, output: Output) -> dict[str, Any]:
        """Who takes part, for the clients' own accounts; nothing where that is a secret."""
        if not self._plan.mechanism.trust.per_client:
            return {}
        participants = np.flatnonzero(output.cohort).tolist()
        return {"participants": participants, "exposure": self._plan.mechanism.trust.exposure(len(participants))}

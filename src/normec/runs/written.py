"""What a run writes down, as types: a line of its metrics, the verdict of the theorems on it, its summary."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from normec.engine.clients import SimulationOnly
from normec.evaluation.clients import Spread
from normec.evaluation.evaluate import ScoresRow
from normec.privacy.promise import ClaimTable
from normec.settings import Tree
from normec.theory.bounds import BoundTable, Form


class SharedRow(ScoresRow):
    """What every line of metrics holds, of a simulation and of a deployment.

    round: how many are done, 0 before training. transmissions: messages from clients so far. epsilon: what has been spent, None
    where it is infinite. seconds: wall time so far.

    The first line of a run with privacy also holds `not_private`, as `uncovered.named_once` says.
    """

    round: int
    transmissions: int
    bytes_up: int
    bytes_down: int
    epsilon: float | None
    seconds: float


class MetricsRow(SharedRow):
    """A line of metrics."""

    simulation_only: SimulationOnly | None


class ConstantsTable(TypedDict):
    """The constants with which a theorem was checked, as `Constants` and `Setting`. how: whether they are proven or estimated."""

    how: str
    L: float
    F: float
    R: float
    heterogeneity: float
    D: float
    order_heterogeneity: float
    sigma: float


class Certificate(TypedDict):
    """The verdict of the theorems on a run, as `verdict.certificate` makes it; what it may lack, it lacks outside the theorems."""

    simulation_only: bool
    verdict: str
    reasons: list[str]
    gradient_norm_first: float | None
    gradient_norm_min: float | None
    memory_error_first: float | None
    memory_error_max: float | None
    invariant_held: bool | None
    theorem: NotRequired[int]
    conditions: NotRequired[list[str]]
    bound: NotRequired[dict[Form, BoundTable]]
    constants: NotRequired[ConstantsTable]


class BestTable(TypedDict):
    """The best model of a run. by: the number that it was chosen by, with its value. note: what the choice means for privacy."""

    by: str
    round: int
    value: float
    file: str
    note: str | None


class SharedSummary(ClaimTable):
    """What every summary says: the claim, and how the metrics ended.

    Under privacy also `not_private` and `epsilon_with_counts`, as `uncovered.beside_the_claim` says.
    """

    rounds: int
    test_accuracy: float | None
    test_loss: float | None
    transmissions: int
    bytes_up: int
    bytes_down: int
    seconds: float
    versions: dict[str, str]


class SpreadOnly(TypedDict):
    """What no server would see of a run."""

    spread: Spread | None


class Summary(SharedSummary):
    """The summary of a simulated run. settings: as `Plan.describe`. The file also holds the hash of each of the run's other files.

    convergence: the guarantee that covers it, or the verdict that was asked for. clients_at_limit: those that `client_limit` has
    silenced. given_up_rounds: those that released nothing. test_largest_class: the share of the test targets in their largest class.
    """

    algorithm: str
    convergence: str
    clients_at_limit: int
    theory: Certificate | None
    simulation_only: SpreadOnly
    best: BestTable | None
    metrics: dict[str, float | None] | None
    test_largest_class: float | None
    train_loss: float | None
    given_up_rounds: int
    notes: tuple[str, ...]
    classes: tuple[str, ...] | None
    settings: Tree

"""What stands beside a run's claim that no noise covers: each field of its files, declared once.

Counts tell who took part to somebody who knows the others' coins: they are covered where the claim supposes that participants are known,
under trust secagg and local.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar, cast

from normec.privacy import Mechanism
from normec.privacy.gaussian import over_participations
from normec.runs.written import MetricsRow, SharedSummary

S = TypeVar("S", bound=SharedSummary)
R = TypeVar("R", bound=MetricsRow)
Kind = Literal["covered", "counts", "exact", "of the server"]
"""covered: by the claim, or of public settings alone. counts: of participants. exact: of the clients' data, without noise. of the server:
of the server's own data in a deployment, and exact in a simulation, where its samples are held out from the clients."""

ROW: dict[str, Kind] = {
    **dict.fromkeys(("round", "epsilon", "hash", "not_private"), "covered"),
    **dict.fromkeys(("transmissions", "bytes_up", "bytes_down", "federation"), "counts"),
    **dict.fromkeys(("train_loss", "simulation_only", "seconds"), "exact"),
    **dict.fromkeys(("test_loss", "test_accuracy", "metrics", "evaluation"), "of the server"),
}
"""Of metrics.jsonl."""
SUMMARY: dict[str, Kind] = {
    **dict.fromkeys(("claim", "private", "epsilon", "epsilon_realised_max", "epsilon_every_round", "epsilon_with_counts"), "covered"),
    **dict.fromkeys(("delta", "unit", "adjacency", "trust", "sampling", "rate", "accountant", "noise", "not_private"), "covered"),
    **dict.fromkeys(("noise_multiplier", "noise_std", "sensitivity", "rounds", "versions", "algorithm", "hash"), "covered"),
    **dict.fromkeys(("experiment", "clients", "settings", "files"), "covered"),
    **dict.fromkeys(("transmissions", "bytes_up", "bytes_down", "clients_at_limit", "given_up_rounds", "federation"), "counts"),
    **dict.fromkeys(("train_loss", "simulation_only", "seconds", "theory", "best", "notes", "classes"), "exact"),
    **dict.fromkeys(("test_loss", "test_accuracy", "metrics", "test_largest_class", "evaluation", "convergence"), "of the server"),
}
"""Of summary.json."""
HASHES = "settings.data.fingerprint"
"""In summary.json: a hash of all samples, with which a guess of the data can be checked."""
FILES = ("clients.json", "checkpoint/ (memories, hashes of the data)")


def not_private(mechanism: Mechanism, file: str, table: Mapping[str, object], *, deployed: bool) -> list[str]:
    """The fields of a file that no noise covers, as far as they hold something: "FILE: FIELD" each. None without privacy."""
    if not mechanism.private:
        return []
    kinds: set[Kind] = {"exact"} if deployed else {"exact", "of the server"}
    kinds |= {"counts"} if mechanism.trust.at_server else set()
    declared = SUMMARY if file == "summary.json" else ROW
    return [f"{file}: {name}" for name, value in table.items() if declared[name] in kinds and value not in (None, [], ())]


def beside_the_claim(mechanism: Mechanism, delta: float | None, summary: S, row: MetricsRow, *, deployed: bool) -> S:
    """A summary with what its claim does not cover: `not_private`, and ε where exact counts are published too.

    row: the last line of the metrics.
    """
    if not mechanism.private:
        return summary
    listed = [*not_private(mechanism, "summary.json", summary, deployed=deployed)]
    listed += [] if deployed else [f"summary.json: {HASHES}"]
    listed += not_private(mechanism, "metrics.jsonl", row, deployed=deployed)
    listed += [] if deployed else FILES
    first = {"claim": summary["claim"], "not_private": listed, "epsilon_with_counts": epsilon_with_counts(mechanism, delta)}
    return cast(S, {**first, **{name: value for name, value in summary.items() if name not in first}})


def epsilon_with_counts(mechanism: Mechanism, delta: float | None) -> float | None:
    """ε against somebody who knows the other clients' coins and is told how many took part in each round, and so who did.

    Only where it is another than the claim's: with secret cohorts.
    """
    secret = mechanism.trust.at_server and mechanism.sampling in ("poisson", "fixed")
    if not mechanism.private or not secret or delta is None:
        return None
    return over_participations(mechanism.in_units_of_the_bound(), delta).epsilon


def named_once(rows: Sequence[MetricsRow], mechanism: Mechanism, row: R, *, deployed: bool = False) -> R:
    """A line of the metrics; the first one, where a reader begins, names what no noise covers. rows: those before it."""
    if rows or not mechanism.private:
        return row
    fields = not_private(mechanism, "metrics.jsonl", dict.fromkeys(row, True), deployed=deployed)
    return cast(R, {**row, "not_private": [each.partition(": ")[2] for each in fields]})

"""What a run promises, in one sentence, and what would void it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from normec.errors import plural
from normec.privacy.promise import EVERY_ROUND, SEEDED, shown_epsilon, with_every_round
from normec.runs.record import Record

WHO_SEES = {
    "central": "It holds against whoever sees the models. The server sees every message, and must keep secret who took part.",
    "secagg": "It holds if sums come from a secure aggregation, with min_honest honest participants or more. normec simulates that.",
    "local": "It holds against the server too, which sees every message and who sent it.",
}
DRAWS = (
    "Its ε averages over the cohorts, and the server draws them. Against a server that draws others, the ε of a client that is asked in "
    "every round holds."
)


def claim(run: Record) -> str:
    """The claim of a run's summary; of a run without one, what it has spent so far."""
    if run.summary is not None:
        return str(run.summary.get("claim", "Its summary holds no claim.")) + _beside_an_older_claim(run)
    rounds = run.metrics[-1]["round"] if run.metrics else 0
    unfinished = f"Unfinished: {rounds} of {_planned(run)} rounds"
    if run.account is None or not _private(run):
        return f"{unfinished}; not private: nobody adds noise, ε = ∞."
    mechanism = run.account.mechanism
    rate = "" if mechanism.sampling == "full" else f" at rate {mechanism.rate:g}"
    bound = with_every_round(run.epsilon, run.epsilon_every_round)
    so_far = f"ε = {bound}, δ = {run.account.delta!r} spent so far" if run.account.counted else "nothing spent yet"
    return (
        f"{unfinished}; {so_far} of a client-level promise under {mechanism.adjacency} adjacency, trust {mechanism.trust.name}, "
        f"{mechanism.sampling} sampling{rate}; its accountant is named at the end."
    )


def _beside_an_older_claim(run: Record) -> str:
    """What a claim does not say that was written before claims said who draws the cohorts."""
    every = run.epsilon_every_round
    if every is None or run.summary is None or EVERY_ROUND in run.summary:
        return ""
    return f" The server drew the cohorts; a client that it asked in every round has ε = {shown_epsilon(every)}."


def _audit_lines(run: Record) -> list[str]:
    """What a run that is an audit is, and what became of it."""
    if run.audit is None:
        return []
    canaries = plural(int(run.audit["canaries"]), "canary client")
    inside = f"An audit: {canaries} took part beside the others, so that its accuracy is not a run's."
    if "tests" not in run.audit:
        return [inside, "It was interrupted, or is still running: there is no verdict."]
    flagged = [test["name"] for test in run.audit["tests"] if test["flagged"]]
    return [inside, f"Flagged by: {', '.join(flagged)}. Nothing is promised until that is explained." if flagged else "No test is flagged."]


def _planned(run: Record) -> object:
    return run.settings.get("rounds", run.settings.get("sizes", {}).get("rounds", "?"))


def _private(run: Record) -> bool:
    """Whether a run promises something, by its ledger."""
    return run.account is not None and run.account.mechanism.private


def standing(run: Record) -> list[str]:
    """What must stand beside a run's numbers wherever they are shown: that they are no result, or that the promise does not hold."""
    lines = _audit_lines(run)
    if run.summary is None:
        lines.append(claim(run))
    elif _private(run) and SEEDED in str(run.summary.get("claim")):
        lines.append(SEEDED)
    return lines


def voids(run: Record) -> list[str]:
    """What the claim rests on, and what would void it."""
    summary = run.summary or {}
    audit = _audit_lines(run)
    if run.audit and run.audit.get("flagged"):
        return audit
    if not _private(run):
        return ["No number on this page, and no model of this run, is protected."]
    privacy = run.settings.get("privacy", {})
    trust = summary.get("trust", privacy.get("trust"))
    lines = [*audit, *([WHO_SEES[trust]] if trust in WHO_SEES else [])]
    lines += [DRAWS] if run.epsilon_every_round is not None else []
    if SEEDED in str(summary.get("claim")) or (run.summary is None and privacy.get("noise") not in ("secure", None)):
        lines.append("Whoever knows the seed can subtract the noise: run it with privacy.noise=secure for a model that is to be released.")
    lines.append("Its δ and ε are of this run alone: choosing among runs on the same clients, or repeating one, spends more.")
    return [*lines, *_uncovered(summary)]


def _by_file(listed: Iterable[str]) -> str:
    """Fields that are named "FILE: FIELD", and whole files, by file."""
    files: dict[str, list[str]] = {}
    for each in listed:
        file, _, field = each.partition(": ")
        files.setdefault(file, []).extend([field] if field else [])
    return "; ".join(f"{file} ({', '.join(fields)})" if fields else file for file, fields in files.items())


def _uncovered(summary: Mapping[str, Any]) -> list[str]:
    """What the run's files hold that no noise covers, and what that costs."""
    simulated = "experiment" not in summary  # a deployment's scores are of the server's own data, and of released models
    listed = summary.get("not_private") or []
    exact = "Losses, accuracies, norms and counts on this page are exact and outside the claim: for a simulation, or for trusted eyes."
    lines = [exact] if simulated else []
    lines += [f"No noise covers {_by_file(map(str, listed))}."] if listed else []
    with_counts = summary.get("epsilon_with_counts")
    if isinstance(with_counts, float):
        counts = "Somebody who knows the others' coins and is told how many took part in each round knows who did: against that one"
        lines.append(f"{counts} ε = {shown_epsilon(with_counts)}.")
    lines.append(
        "ε holds for a number of rounds chosen beforehand: an end, or a best round, chosen by looking at exact numbers is outside."
    )
    return lines

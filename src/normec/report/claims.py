"""What a run promises, in one sentence, and what would void it."""

from __future__ import annotations

from normec.promise import SEEDED, upper
from normec.runs import Record

WHO_SEES = {
    "central": "It holds against whoever sees the models. The server sees every message, and must keep secret who took part.",
    "secagg": "It holds if sums come from a secure aggregation, with min_honest honest participants or more. normec simulates that.",
    "local": "It holds against the server too, which sees every message and who sent it.",
}


def claim(run: Record) -> str:
    """The claim of a run's summary; of a run without one, what it has spent so far."""
    if run.summary is not None:
        return str(run.summary.get("claim", "Its summary holds no claim."))
    rounds = run.metrics[-1]["round"] if run.metrics else 0
    spent = run.last("epsilon")
    so_far = "nothing private was claimed yet" if spent is None else f"ε = {upper(spent)} spent so far"
    return f"Unfinished: {rounds} of {run.settings.get('rounds', '?')} rounds; {so_far}."


def voids(run: Record) -> list[str]:
    """What the claim rests on, and what would void it."""
    summary = run.summary or {}
    if not summary.get("private"):
        return ["No number on this page, and no model of this run, is protected."]
    lines = [WHO_SEES[summary["trust"]]] if summary.get("trust") in WHO_SEES else []
    if SEEDED in str(summary.get("claim")):
        lines.append("Whoever knows the seed can subtract the noise: run it with privacy.noise=secure for a model that is to be released.")
    lines.append("Its δ and ε are of this run alone: choosing among runs on the same clients, or repeating one, spends more.")
    lines.append("Losses, accuracies and norms on this page are exact and outside the claim: for a simulation, or for trusted eyes.")
    if "outside" in str(summary.get("convergence")):
        lines.append(f"No theorem covers its convergence: {summary['convergence']}.")
    return lines

"""A run's ε for everyone who shows it: by its ledger, which no other file of the run may contradict."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path

from normec.errors import BadInput, plural
from normec.privacy.account import Account
from normec.privacy.ledger import Ledger, read
from normec.privacy.promise import EVERY_ROUND, REFUTED, claim_table, shown_epsilon, state_claim, who_draws
from normec.runs.folder import RunFolder
from normec.runs.written import MetricsRow
from normec.settings import Tree
from normec.version import __version__

CLOSE = 1e-6
"""By how much two ε may differ, relatively, that are the same but for rounding."""
REMEDY = "Leave this run out, or run it again."


def account_of(folder: RunFolder, private: bool) -> Account | None:
    """The account of a run's ledger; None of a run that promises nothing.

    private: whether the run's other files speak of a promise.

    Raises:
        BadInput: for a ledger that is damaged, or missing where a promise needs one.
    """
    if not folder.ledger.exists():
        if private:
            raise BadInput(
                str(folder.ledger),
                "is missing, and without it no ε can be shown for this run",
                remedy="Restore it, with ledger.head, or leave this run out",
            )
        return None
    try:
        ledger = read(folder.ledger)
        return Account.of(ledger, evaluations_of(folder)) if ledger.lines else _without_a_line(folder.ledger)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(str(folder.ledger), f"names no mechanism ({type(error).__name__}: {error})", remedy=REMEDY) from None


def evaluations_of(folder: RunFolder) -> Ledger | None:
    """The ledger of the evaluations by a deployment's clients; None of a run without them.

    Raises:
        BadInput: where it is damaged; where it is missing, and the run's settings ask for evaluations.
    """
    if folder.evaluations.exists():
        check_covers(folder.evaluations.parent, 0)
        found = read(folder.evaluations)
        return found if found.lines else None  # killed before its first line, and before any round
    settings = json.loads(folder.settings.read_text(encoding="utf-8")) if folder.settings.exists() else {}
    if {"sizes", "evaluation"} <= settings.keys() and folder.visible_rounds():  # a deployment's
        raise BadInput(
            str(folder.evaluations),
            "is missing, which counts what the clients' evaluations have released",
            remedy="Restore it, with ledger.head, or leave this run out",
        )
    return None


def check_covers(folder: Path, begun: int) -> None:
    """Refuses a ledger of evaluations, or its absence, where more of them have begun or were seen.

    Raises:
        BadInput: saying how many.
    """
    metrics, ledger = folder / "metrics.jsonl", folder / "ledger.jsonl"
    known = max(begun, metrics.read_bytes().count(b"\n") if metrics.exists() else 0)
    counted = read(ledger).counted() if ledger.exists() else 0
    if counted < known:
        raise BadInput(
            str(ledger), f"counts {plural(counted, 'evaluation')}, and {known} have begun", remedy="Restore the newer one, with ledger.head"
        )


def _without_a_line(path: Path) -> Account:
    raise BadInput(str(path), "holds no whole line", remedy=REMEDY)


def finite_or_none(account: Account | None) -> float | None:
    """ε of all releases that count, as JSON holds it: None is infinite, also of a run that promises nothing."""
    spent = math.inf if account is None else account.spent.epsilon
    return spent if math.isfinite(spent) else None


def promises(settings: Tree, metrics: list[MetricsRow], summary: Tree | None) -> bool:
    """Whether any file of a run speaks of a promise."""
    trust = settings.get("privacy", {}).get("trust", "none")
    said = [summary.get("epsilon"), summary.get("private") or None] if summary is not None else []
    return trust != "none" or any(value is not None for value in (*said, *(row.get("epsilon") for row in metrics)))


def check_summary(account: Account | None, summary: Tree, path: Path) -> None:
    """Refuses a summary whose claim is not that of the ledger, or of a run that promises nothing.

    Raises:
        BadInput: naming the first value that differs.
    """
    if account is None:
        if "claim" in summary and not str(summary["claim"]).startswith("Not private"):
            raise BadInput(str(path), "holds a claim, and its run promises nothing", remedy=REMEDY)
        return
    tables = []
    for planned in {False, account.ledger.counted() <= account.mechanism.rounds}:  # a server claims all it planned
        training, evaluated = account.training(planned), account.planned_evaluations
        made = state_claim(
            account.mechanism,
            training,
            delta=account.own_delta,
            exposure=account.largest_exposure,
            limit=account.client_limit,
            evaluated=evaluated,
        )
        table = dict(claim_table(account.mechanism, made, account.header.noise))
        if EVERY_ROUND not in summary:  # of a run that ended before summaries said who draws the cohorts
            del table[EVERY_ROUND]
            table["claim"] = made.sentence.replace(who_draws(account.mechanism, made.spent), "")
        tables.append(table)
    found = [_first_difference(table, summary) for table in tables]
    if None in found:
        return
    here = account.header.library, summary.get("versions", {}).get("normec")
    claimed = summary.get("epsilon")
    careful = isinstance(claimed, float) and claimed >= account.spent.epsilon * (1 - CLOSE)
    if careful and here != (version("dp-accounting"), __version__):
        return  # another accountant's claim, and none that says less
    what = {"epsilon": "ε", "delta": "δ"}.get(str(found[0]), found[0])
    raise BadInput(str(path), f"names another {what} than the run's ledger, which counts {_counts(account)}", remedy=REMEDY)


def check_metrics(account: Account, metrics: list[MetricsRow], path: Path) -> None:
    """Refuses metrics that show more rounds than the ledger knows of, or less ε than it counts.

    The last row and one in the middle are computed anew, and ε never falls: what is quick to check for hundreds of runs.

    Raises:
        BadInput: naming the round.
    """
    if not metrics:
        return
    account.ledger.check_covers(metrics[-1]["round"], output=False)
    if not account.mechanism.private:
        return
    anew = {len(metrics) // 2, len(metrics) - 1}
    before = 0.0
    for place, row in enumerate(metrics):
        number, least = row.get("epsilon"), account.at_least_after(row["round"]) if place in anew else before
        if not isinstance(number, float | int) or not number >= least * (1 - CLOSE):
            raise BadInput(
                str(path),
                f"names a smaller ε after round {row['round']} than the run's ledger, which counts {_counts(account)} in all",
                remedy=REMEDY,
            )
        before = number


def check_audit(account: Account, audit: Tree, path: Path) -> None:
    """Refuses an audit that compares with less than the ledger counts.

    Raises:
        BadInput: with both ε.
    """
    claimed = audit.get("claimed", math.inf)
    if not isinstance(claimed, float | int) or not claimed >= account.spent.epsilon * (1 - CLOSE):
        raise BadInput(str(path), f"names a smaller ε than the run's ledger, which counts {_counts(account)}", remedy=REMEDY)


def _counts(account: Account) -> str:
    return f"{plural(account.counted, 'release')}, ε = {shown_epsilon(account.spent.epsilon)}"


def _first_difference(table: dict[str, object], summary: Tree) -> str | None:
    """The first key of a claim, ε before its sentence, of which the summary says something else."""
    for key in sorted(table, key=lambda name: (name == "claim", name != "epsilon")):
        right, said = table[key], summary.get(key)
        if isinstance(right, float) and isinstance(said, float):
            same = math.isclose(right, said, rel_tol=CLOSE)
        else:
            same = said == right or (key == "claim" and said == f"{REFUTED} {right}")
        if not same:
            return key
    return None

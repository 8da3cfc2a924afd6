"""The contract of registered algorithms: eleven points, each a function that raises `ContractBroken`.

An algorithm needs no line of its own for it; the names of its slots say what is an estimate of what (`v_hat` of the
clients' `v`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Algorithm, Context, algorithm_kind, client_step
from normec.algorithms.trial import check_functions
from normec.contract.small_runs import (
    CENTRES,
    CLIENTS,
    ROUNDS,
    D,
    Keeps,
    are_equal,
    experiment,
    halves,
    is_close,
    is_private,
    plain_loop,
    small_run,
    some_context,
    some_memory,
    some_rows,
    some_server,
    variants,
)
from normec.errors import NormecError
from normec.operators import Identity, row_norms
from normec.privacy import Central, Mechanism, Privacy
from normec.privacy.participation import Fixed, Full, Participation
from normec.runs.experiment import prepare
from normec.runs.loop import execute


class ContractBroken(NormecError):
    """An algorithm does not keep a point of the contract."""


def check(name: str | type[Algorithm]) -> None:
    """Puts the algorithm registered under `name`, or that class, with its default settings, through every point.

    Raises:
        ContractBroken: naming the point and what was found.
        BadInput: where no such algorithm is registered, or its functions do not return what they should.
    """
    algorithm = example(name)
    check_functions(algorithm, D, torch.float64)
    for point in POINTS:
        point(algorithm)


def example(name: str | type[Algorithm]) -> Algorithm:
    """An algorithm with its default settings, and those that it declares for small models."""
    kind = algorithm_kind("algorithm.name", vars(name).get("name", name) if isinstance(name, type) else name)
    return kind(**kind.small)


def sums_stay_within_the_sensitivity(algorithm: Algorithm) -> None:
    """(1) Neighbouring sets of clients have sums that differ by at most the stated sensitivity, for any updates.

    The messages of both sets are computed, so that a client that reaches the others' messages is found. Tried at the ends of
    the tuned settings too.
    """
    for tried in variants(algorithm):
        if is_private(tried):
            for dtype in (torch.float32, torch.float64):
                _sums(tried, dtype)
    _rows_are_independent(algorithm)


def _sums(algorithm: Algorithm, dtype: torch.dtype) -> None:
    lengths = 10.0 ** torch.linspace(-40, 35, 400, dtype=torch.float64)
    rows = (some_rows(400, D) * lengths[:, None]).to(dtype)
    rows[3], rows[7, 2] = math.nan, math.inf
    rows[390:], others = rows[390:] * 0 + some_rows(10, D, seed=5, dtype=dtype), some_rows(1, D, seed=6, dtype=dtype)
    memory, context = some_memory(algorithm, 400, dtype), some_context(algorithm, 400, dtype)
    message = client_step(algorithm, rows, memory, context).message.double()
    _require(1, algorithm, bool((row_norms(message) <= algorithm.operator.bound).all()), "a message is longer than the bound")
    for changed in (0, 200, 395):
        kept = [row for row in range(400) if row != changed]
        fewer = client_step(algorithm, rows[kept], tuple(slot[kept] for slot in memory), context._replace(uniform=halves(399, dtype)))
        replaced = rows.clone()
        replaced[changed] = others[0]
        sums = {
            "zero-out": fewer.message.double().sum(0),
            "replace-one": client_step(algorithm, replaced, memory, context).message.double().sum(0),
        }
        for adjacency, total in sums.items():
            mechanism = Mechanism(
                trust=Central(),
                adjacency=adjacency,  # type: ignore[arg-type]
                bound=algorithm.operator.bound,
                noise_multiplier=1.0,
                participation=Full(),
                clients=400,
                rounds=1,
            )
            stated = mechanism.sensitivity
            moved = float((message.sum(0) - total).norm())
            _require(1, algorithm, moved <= stated * (1 + 1e-9), f"a sum moves by {moved} under {adjacency}")


def _rows_are_independent(algorithm: Algorithm) -> None:
    """One client and many are the same code: what a client sends and keeps does not depend on who else computes, or where."""
    rows, memory, context = some_rows(6, D), some_memory(algorithm, 6, torch.float64), some_context(algorithm, 6, torch.float64)
    together = client_step(algorithm, rows, memory, context)
    for row in range(6):
        alone = client_step(algorithm, rows[[row]], tuple(slot[[row]] for slot in memory), context._replace(uniform=halves(1)))
        pairs = zip((together.message, *together.memory), (alone.message, *alone.memory), strict=True)
        _require(1, algorithm, all(is_close(a[row], b[0]) for a, b in pairs), "a client's step depends on the other clients")


def zero_updates_send_zero(algorithm: Algorithm) -> None:
    """(2) A zero update from a fresh memory gives a zero message and no motion; from any memory a finite one."""
    zeros = torch.zeros(4, D, dtype=torch.float64)
    fresh, context = tuple(zeros for _ in algorithm.client_slots), Context(tuple(zeros[0] for _ in algorithm.server_slots), halves(4))
    step = algorithm.client(zeros, fresh, context)
    _require(2, algorithm, not any(bool(part.any()) for part in (step.message, *step.memory)), "a zero update moves something")
    moved = algorithm.client(zeros, some_memory(algorithm, 4, torch.float64), context)
    _require(2, algorithm, all(bool(part.isfinite().all()) for part in (moved.message, *moved.memory)), "a zero update gives NaN")


def broken_clients_stay_as_they_are(algorithm: Algorithm) -> None:
    """(3) A client whose update is not finite sends zero and keeps its memory; with privacy the run continues."""
    rows, memory = some_rows(4, D), some_memory(algorithm, 4, torch.float64)
    rows[1, 0], rows[2, 0] = math.nan, math.inf
    step = client_step(algorithm, rows, memory, some_context(algorithm, 4, torch.float64))
    kept = all(torch.equal(old[1:3], new[1:3]) for old, new in zip(memory, step.memory, strict=True))
    _require(3, algorithm, kept and not bool(step.message[1:3].any()), "a broken client moves")
    if is_private(algorithm):
        centres = CENTRES.copy()
        centres[2] = 1e200
        end = small_run(algorithm, centres=centres, privacy=Privacy(trust="central", noise_multiplier=0.0))
        still = all(not bool(end[f"memory.{slot}"][2].any()) for slot in algorithm.client_slots)
        _require(3, algorithm, still and bool(end["x"].isfinite().all()), "a client with broken data moves")


def equals_its_reference(algorithm: Algorithm) -> None:
    """(4) Without noise a run is the plain loop of its functions; with an exact operator that finds the minimiser of a quadratic."""
    slow = algorithm.changed(server_lr=0.05)  # far from the minimiser, where much would be zero
    end = small_run(slow, participation=Full(), privacy=Privacy(trust="none"))
    _require(4, algorithm, is_close(end["x"], plain_loop(slow, ROUNDS)), "a run differs from the loop of its functions")
    exact = type("Exact", (type(algorithm),), {"operator": property(lambda self: Identity())})(
        **algorithm.table() | algorithm.exact | {"server_lr": 0.02}
    )
    off = float((plain_loop(exact, 6000) - torch.from_numpy(CENTRES.mean(axis=(0, 1)))).abs().max())
    _require(4, algorithm, off < 1e-4, f"with an exact operator it ends {off:.3g} away from the minimiser")


def estimates_are_means(algorithm: Algorithm) -> None:
    """(5) Without noise and with every client, a server slot `v_hat` is the mean of the clients' `v`.

    Where the cohort alone moves its memories, that holds for half of the clients too.
    """
    slow = algorithm.changed(server_lr=0.05)
    schemes: list[Participation] = [Full()] if algorithm.everyone_computes else [Full(), Fixed(rate=0.5)]
    for slot, scheme in itertools.product(algorithm.client_slots, schemes):
        if f"{slot}_hat" in algorithm.server_slots:
            end = small_run(slow, participation=scheme, privacy=Privacy(trust="none"))
            close = is_close(end[f"server.{slot}_hat"], end[f"memory.{slot}"].mean(0))
            _require(5, algorithm, close, f"{slot}_hat is not the mean of the clients' {slot}")


def seeds_decide(algorithm: Algorithm) -> None:
    """(6) The same seed gives the same run, another seed another one, and the order of the clients changes nothing."""
    first, again, other = small_run(algorithm), small_run(algorithm), small_run(algorithm, seed=2)
    _require(6, algorithm, are_equal(first, again), "the same seed gives another run")
    _require(6, algorithm, not torch.equal(first["x"], other["x"]), "another seed gives the same run")
    _require(6, algorithm, are_equal(first, small_run(algorithm, order=np.arange(CLIENTS)[::-1])), "the order of the clients matters")
    if not _draws(algorithm):
        still = functools.partial(small_run, algorithm, participation=Full(), privacy=Privacy(trust="none"))
        renamed = still(centres=CENTRES[::-1].copy())["x"]
        _require(6, algorithm, is_close(still()["x"], renamed), "the names of the clients matter")


def _draws(algorithm: Algorithm) -> bool:
    """Whether its messages depend on the random numbers it is given."""
    rows, memory, context = some_rows(4, D), some_memory(algorithm, 4, torch.float64), some_context(algorithm, 4, torch.float64)
    other = context._replace(uniform=lambda: some_rows(4, D, seed=3).abs() / 2)
    return not torch.equal(algorithm.client(rows, memory, context).message, algorithm.client(rows, memory, other).message)


def resumes_exactly(algorithm: Algorithm) -> None:
    """(7) A run that is interrupted after any round and resumed is bit-equal to one that was not."""
    whole = small_run(algorithm)
    for stop in range(1, ROUNDS):
        _require(7, algorithm, are_equal(whole, small_run(algorithm, stop=stop)), f"resumed after round {stop}, a run differs")


def keeps_the_dtype(algorithm: Algorithm) -> None:
    """(8) float32 stays float32 and float64 stays float64, in every vector."""
    for dtype in (torch.float32, torch.float64):
        step = client_step(algorithm, some_rows(3, D, dtype=dtype), some_memory(algorithm, 3, dtype), some_context(algorithm, 3, dtype))
        direction, state = algorithm.server(some_server(algorithm, dtype), torch.ones(D, dtype=dtype), 0.5)
        kept = all(part.dtype == dtype for part in (*step, direction, *state) if isinstance(part, Tensor))
        _require(8, algorithm, kept and all(slot.dtype == dtype for slot in step.memory), f"{dtype} becomes another type")
        end = small_run(algorithm, dtype=str(dtype).removeprefix("torch."))
        kept = all(value.dtype == dtype for name, value in end.items() if name != "exposure")
        _require(8, algorithm, kept, f"a run in {dtype} holds another type")
    short, memory, context = 0.01 * some_rows(3, D), some_memory(algorithm, 3, torch.float64), some_context(algorithm, 3, torch.float64)
    message = client_step(algorithm, short, memory, context).message
    rounded = torch.equal(message, message.float().double())
    _require(8, algorithm, _draws(algorithm) or not rounded, "float64 messages are computed in float32")


def leaves_its_inputs(algorithm: Algorithm) -> None:
    """(9) No function changes what it is given."""
    update, memory, context = (
        some_rows(3, D, dtype=torch.float32),
        some_memory(algorithm, 3, torch.float32),
        some_context(algorithm, 3, torch.float32),
    )
    state, mean = some_server(algorithm, torch.float32), some_rows(D, dtype=torch.float32)
    given = [update, *memory, *context.server, *state, mean]
    before = [each.clone() for each in given]
    algorithm.client(update, memory, context)
    algorithm.server(state, mean, 0.5)
    if correct := algorithm.local_rule.correction:
        correct(memory, context.server)
    _require(9, algorithm, all(torch.equal(a, b) for a, b in zip(given, before, strict=True)), "an input was changed")


def noise_is_as_stated(algorithm: Algorithm) -> None:
    """(10) With zero updates the model moves by noise of the stated standard deviation alone, through the server's step."""
    if not is_private(algorithm):
        return
    centres, privacy = np.zeros((CLIENTS, 1, 20_000)), Privacy(trust="central", noise_multiplier=2.0)
    plan = prepare(experiment(algorithm, centres=centres, privacy=privacy, rounds=1))
    kept = Keeps()
    run = execute(plan, observer=kept)
    (released,) = kept.means
    measured, stated = float((released * plan.mechanism.expected).std()), run.summary["noise_std"]
    _require(10, algorithm, abs(measured / stated - 1) < 0.03, f"noise has standard deviation {measured}, {stated} is stated")
    state = tuple(torch.zeros(20_000, dtype=torch.float64) for _ in algorithm.server_slots)
    direction, _ = algorithm.server(state, released, plan.mechanism.rate)
    x = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])
    _require(10, algorithm, is_close(x, -algorithm.server_lr * direction), "the model moves by more than the released mean")


def workers_and_backends_agree(algorithm: Algorithm) -> None:
    """(11) One worker and two give bit-equal runs, in blocks of two clients; the backends loop and vmap agree up to rounding."""
    first = small_run(algorithm, block=2)
    _require(11, algorithm, are_equal(first, small_run(algorithm, workers=2, block=2)), "two workers give another run than one")
    other = small_run(algorithm, backend="vmap")
    _require(11, algorithm, all(is_close(value, other[name]) for name, value in first.items()), "vmap gives another run than loop")


POINTS: tuple[Callable[[Algorithm], None], ...] = (
    sums_stay_within_the_sensitivity,
    zero_updates_send_zero,
    broken_clients_stay_as_they_are,
    equals_its_reference,
    estimates_are_means,
    seeds_decide,
    resumes_exactly,
    keeps_the_dtype,
    leaves_its_inputs,
    noise_is_as_stated,
    workers_and_backends_agree,
)


def _require(number: int, algorithm: Algorithm, kept: bool, problem: str) -> None:
    if not kept:
        raise ContractBroken(f"{algorithm.name} breaks point {number} of the contract: {problem}.")

"""ε of sampled Gaussian releases whose cohorts are secret: Rényi DP and privacy loss distributions.

Every bound may be infinite, where it does not apply, takes too long or fails: the others hold all the same.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from normec.privacy import without_replacement
from normec.privacy.composition import Losses, TooFine
from normec.privacy.gaussian import Spent, quiet, unamplified
from normec.privacy.mechanism import SMALLEST_NOISE, Mechanism

RDP_ROUNDING = 1e-10
"""Of the Rényi divergence of one round; for very large noise it is nothing but rounding."""
NEGLIGIBLE = 1e-6
"""The share of δ that the tails of all rounds' losses may take; smaller tails only make a longer grid."""

FINEST = 2e-5
"""A grid below which rounding of one round's divergences, of which second differences are taken, enlarges ε more than the grid does."""
MOST_POINTS_ONE = 200_000
"""Of the distribution of one round: a finer grid takes seconds and buys little."""
ALMOST_ONE = 1 - 1e-12
"""A rate from which on sampling amplifies nothing that float64 could tell."""
MOST_NODES, FINE_NODES = 400_000, (16, 2)
"""Of a Rényi divergence's quadrature: nodes lie z/16 or z²/2 apart, the lesser, so that the trapezoidal rule is exact to rounding."""
FAILURES = (ValueError, OverflowError, ZeroDivisionError, FloatingPointError, MemoryError)
"""What dp-accounting raises outside the range of its formulas."""


def pld_grid(epsilon: float, rounds: int) -> float:
    """The step of the privacy losses at which PLD resolves this ε over K rounds: ε / (60 √K), and at most 1e-3 or 1e-4 ε."""
    return max(FINEST, min(max(1e-3, 1e-4 * epsilon), max(epsilon, 3e-3) / (60 * math.sqrt(rounds))))


@lru_cache(maxsize=1024)
def rdp(mechanism: Mechanism, delta: float, orders: tuple[float, ...] | None = None) -> Spent:
    """Rényi DP of Poisson cohorts, and of fixed ones, for which zero-out is a special case of replace-one.

    Not for fixed cohorts with memories that move only in the cohort: a client's message then depends on where it was drawn before,
    and that on the others' places, so that rounds do not compose adaptively.

    orders: the Rényi orders to minimise over, dp-accounting's own by default; fewer are faster and give a larger ε.
    """
    unproven = mechanism.sampling == "fixed" and mechanism.cohort_memories
    if mechanism.sampling not in ("poisson", "fixed") or mechanism.rate > ALMOST_ONE or unproven:
        return Spent(math.inf, "RDP")
    try:
        with quiet():
            replaced = mechanism.sampling == "poisson" and mechanism.adjacency == "replace-one"
            bound = _of_mixtures(mechanism, delta, orders) if replaced else _by_library(mechanism, delta, orders)
    except FAILURES:
        return Spent(math.inf, "RDP")
    return Spent(bound + RDP_ROUNDING * mechanism.rounds if bound > 0 else math.inf, "RDP")


def _by_library(mechanism: Mechanism, delta: float, orders: tuple[float, ...] | None) -> float:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    relations = dp_accounting.NeighboringRelation
    if mechanism.sampling == "poisson":
        event: Any = dp_accounting.PoissonSampledDpEvent(mechanism.rate, dp_accounting.GaussianDpEvent(mechanism.noise_multiplier))
    else:
        gaussian = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier / 2.0)
        event = dp_accounting.SampledWithoutReplacementDpEvent(mechanism.clients, int(mechanism.expected), gaussian)
    accountant = RdpAccountant(orders, relations.REPLACE_SPECIAL if mechanism.sampling == "poisson" else relations.REPLACE_ONE)
    accountant.compose(event, mechanism.rounds)
    return float(accountant.get_epsilon(delta))


def _of_mixtures(mechanism: Mechanism, delta: float, orders: tuple[float, ...] | None) -> float:
    """ε of the pair P = (1 − p) N(0, z²) + p N(1, z²), Q = (1 − p) N(0, z²) + p N(−1, z²), which dominates replacing a client."""
    from dp_accounting.rdp import RdpAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    z, found = mechanism.noise_multiplier, {}
    for order in orders or RdpAccountant().orders:
        divergence = _divergence(z, mechanism.rate, order) if order > 1 else math.inf
        if math.isfinite(divergence):
            found[order] = mechanism.rounds * (max(divergence, 0.0) * (1 + 1e-9) + RDP_ROUNDING)
    return float(compute_epsilon(list(found), list(found.values()), delta)[0]) if found else math.inf


def _divergence(z: float, rate: float, order: float) -> float:
    """The Rényi divergence of P from Q, by the trapezoidal rule; infinite where it takes too many nodes."""
    step = min(z / FINE_NODES[0], z**2 / FINE_NODES[1])
    reach = 2 * order + 40 * z
    nodes = 2 * math.ceil(reach / step) + 1
    if nodes > MOST_NODES:
        return math.inf
    x = step * (np.arange(nodes) - nodes // 2)
    absent, present = math.log1p(-rate), math.log(rate)
    to, fro = (np.logaddexp(absent, present + (sign * 2 * x - 1) / (2 * z**2)) for sign in (1, -1))
    density = -(x**2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi))
    return float(np.logaddexp.reduce(order * to + (1 - order) * fro + density) + math.log(step)) / (order - 1)


def pld_applies(mechanism: Mechanism) -> bool:
    """Whether privacy loss distributions give a bound: they are proved of these cohorts and memories, and sampling amplifies at all."""
    proved = mechanism.sampling == "poisson" or (mechanism.sampling == "fixed" and not mechanism.cohort_memories)
    return proved and mechanism.rate <= ALMOST_ONE and mechanism.noise_multiplier >= SMALLEST_NOISE


@lru_cache(maxsize=1024)
def pld(mechanism: Mechanism, delta: float, grid: float | None = None) -> Spent:
    """Privacy loss distributions, of Poisson and fixed cohorts; infinite where they are not proved, or fail.

    grid: the step of the losses, by default refined until it resolves the ε it gives. A larger step gives a larger ε.
    """
    if not pld_applies(mechanism):
        return Spent(math.inf, "PLD")
    tails = math.floor(math.log(NEGLIGIBLE * delta / max(mechanism.rounds, 1)))
    least = _least_grid(mechanism, tails)
    if grid is None:
        grid = pld_grid(min(unamplified(mechanism, delta).epsilon, 1e6), 1)
        while (finer := max(pld_grid(pld(mechanism, delta, grid).epsilon, mechanism.rounds), least)) < 0.9 * grid:
            grid = finer
    try:
        return Spent(_composed(mechanism, delta, max(grid, least), tails), "PLD")
    except FAILURES:
        return Spent(math.inf, "PLD")


def _composed(mechanism: Mechanism, delta: float, grid: float, tails: int) -> float:
    """ε of all rounds at a grid, or at a coarser one where this one takes too many points."""
    z, rate, fixed = mechanism.noise_multiplier, mechanism.rate, mechanism.sampling == "fixed"
    with quiet():
        one = _one_round(z, rate, mechanism.adjacency, grid, tails, fixed)
        try:
            return max(losses.epsilon(mechanism.rounds, delta) for losses in Losses.both(one))
        except TooFine as error:
            return _composed(mechanism, delta, grid * error.times, tails)


def _least_grid(mechanism: Mechanism, tails: int) -> float:
    """The finest grid on which the losses of one round take few enough points."""
    noise, rate = mechanism.noise_multiplier, mechanism.rate
    across = 2.0 if mechanism.sampling == "fixed" or mechanism.adjacency == "replace-one" else 1.0
    furthest = across * (1 + noise * math.sqrt(-2 * tails)) / noise**2
    if mechanism.sampling == "fixed" and mechanism.adjacency == "zero-out":  # another client's message takes the place of ours
        return furthest / MOST_POINTS_ONE
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + furthest)) / MOST_POINTS_ONE


@lru_cache(maxsize=32)
def _one_round(noise_multiplier: float, rate: float, adjacency: str, grid: float, tails: int, fixed: bool) -> Any:
    """The distribution of one round's loss; tails: the logarithm of the mass left to each side of the grid, and counted."""
    if fixed:
        return without_replacement.one_round(noise_multiplier, rate, adjacency == "replace-one", grid, tails)
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    relations = dp_accounting.NeighboringRelation
    relation = relations.REPLACE_ONE if adjacency == "replace-one" else relations.REPLACE_SPECIAL
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        value_discretization_interval=grid,
        log_mass_truncation_bound=tails,
        sampling_prob=rate,
        neighboring_relation=relation,
    )

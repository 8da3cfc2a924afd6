"""ε of sampled Gaussian releases whose cohorts are secret: Rényi DP and privacy loss distributions.

Every bound may be infinite, where it does not apply, takes too long or fails: the others hold all the same.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from normec.privacy import without_replacement
from normec.privacy.gaussian import Spent, quiet
from normec.privacy.mechanism import Mechanism

FINE_PLD_NOISE, SMALLEST_PLD_NOISE = 0.3, 0.01
"""Noise multipliers below which the grid of losses, whose range grows like 1/z², coarsens; and below which PLD is left out."""
SMALLEST_PLD_DELTA, PLD_ROUNDING = 1e-9, 1e-11
"""PLD composes by fast Fourier transforms, whose rounding (measured: up to 3e-12 of mass) must not hide a part of δ."""
RDP_ROUNDING = 1e-10
"""Of the Rényi divergence of one round; for very large noise it is nothing but rounding."""
NEGLIGIBLE = 1e-6
"""The share of δ that the tails of all rounds' losses may take; smaller tails only make a longer grid."""

MOST_PLD_POINTS = 5_000_000
"""Of the composed distribution, by its mean loss over the grid's step: more take over a gigabyte."""
MOST_POINTS_COMPOSED, MOST_POINTS_ONE = 300_000, 200_000
"""Of the distributions of all rounds and of one: where ε is small beside the losses, a finer grid takes seconds and buys little."""
MOST_PLD_ROUNDS = 100_000
"""Beyond, a grid that resolves ε takes too long."""
ALMOST_ONE = 1 - 1e-12
"""A rate from which on sampling amplifies nothing that float64 could tell."""
MOST_NODES, FINE_NODES = 400_000, (16, 2)
"""Of a Rényi divergence's quadrature: nodes lie z/16 or z²/2 apart, the lesser, so that the trapezoidal rule is exact to rounding."""
FAILURES = (ValueError, OverflowError, ZeroDivisionError, FloatingPointError, MemoryError)
"""What dp-accounting raises outside the range of its formulas."""


def pld_grid(epsilon: float, rounds: int) -> float:
    """The step of the privacy losses at which PLD resolves this ε over K rounds: min(1e-3, ε / (20 √K))."""
    return min(1e-3, max(epsilon, 1e-3) / (20 * math.sqrt(rounds)))


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


def pld_applies(mechanism: Mechanism, delta: float) -> bool:
    """Whether privacy loss distributions give a bound: they resolve δ, finish, and are proved of these cohorts and memories."""
    small = delta < SMALLEST_PLD_DELTA or _relative_noise(mechanism) < SMALLEST_PLD_NOISE
    proved = mechanism.sampling == "poisson" or (mechanism.sampling == "fixed" and not mechanism.cohort_memories)
    return proved and not small and mechanism.rounds <= MOST_PLD_ROUNDS and mechanism.rate <= ALMOST_ONE


def _relative_noise(mechanism: Mechanism) -> float:
    """The noise multiplier over how far apart two sums can be, in units of the bound: in a fixed cohort another client takes the place."""
    return mechanism.noise_multiplier / (2.0 if mechanism.sampling == "fixed" else mechanism.distance)


@lru_cache(maxsize=1024)
def pld(mechanism: Mechanism, delta: float, grid: float | None = None) -> Spent:
    """Privacy loss distributions, of Poisson and fixed cohorts; infinite where they do not finish or do not resolve δ.

    grid: the step of the losses, by default refined until it resolves the ε it gives. A larger step gives a larger ε.
    """
    if not pld_applies(mechanism, delta):
        return Spent(math.inf, "PLD")
    noise = _relative_noise(mechanism)
    if mechanism.rounds * mechanism.rate / (2 * noise**2) > MOST_PLD_POINTS * max(1e-3 * (FINE_PLD_NOISE / noise) ** 2, grid or 1e-3):
        return Spent(math.inf, "PLD")
    coarsest = 1e-3 * (FINE_PLD_NOISE / noise) ** 2 if noise < FINE_PLD_NOISE else 0.0
    tails = math.floor(math.log(NEGLIGIBLE * delta / max(mechanism.rounds, 1)))
    least = _least_grid(noise, mechanism.rate, mechanism.rounds, tails)
    if grid is None:
        grid = max(1e-3, coarsest)
        while (finer := max(pld_grid(pld(mechanism, delta, grid).epsilon, mechanism.rounds), least)) < 0.9 * grid and not coarsest:
            grid = finer
    try:
        fixed = mechanism.sampling == "fixed"
        one = _one_round(mechanism.noise_multiplier, mechanism.rate, mechanism.adjacency, max(grid, coarsest, least), tails, fixed)
        with quiet():
            return Spent(float(one.self_compose(mechanism.rounds).get_epsilon_for_delta(delta - PLD_ROUNDING)), "PLD")
    except FAILURES:
        return Spent(math.inf, "PLD")


def _least_grid(noise: float, rate: float, rounds: int, tails: int) -> float:
    """The finest grid on which the losses of one round and of all take few enough points, as far as these can be estimated.

    The mean loss of a round is at most p/(2z²), and log(1 + χ²) with χ² = p² (e^(1/z²) − 1).
    """
    furthest = 1 + noise * math.sqrt(-2 * tails)
    one = float(np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * furthest - 1) / (2 * noise**2)))
    mean = rounds * min(rate / (2 * noise**2), math.log1p(rate**2 * math.expm1(min(noise**-2, 700.0))))
    return max(one / MOST_POINTS_ONE, (one + mean + 8 * math.sqrt(2 * mean)) / MOST_POINTS_COMPOSED)


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

"""ε of a mechanism, by dp-accounting: the smallest of the upper bounds that apply.

| sampling | zero-out | replace-one |
| --- | --- | --- |
| full | Gaussian, closed form | Gaussian, closed form |
| poisson | PLD, RDP | PLD |
| fixed | no accountant: the bound without amplification | RDP |

Under trust secagg and local the adversary knows who takes part: no amplification, but a client spends only in its own
rounds, and the claim is the expectation over how many those are.

The bound without amplification (a client in every round) holds for every sampling and enters each minimum.
`noise_multiplier` is σ/C everywhere; the adjacency doubles the distance exactly once, here. dp-accounting's PLD doubles it
for REPLACE_ONE by itself, its RDP and its closed form do not.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from normec.errors import BadInput
from normec.participation import OWN
from normec.privacy.mechanism import PER_CLIENT, Mechanism

UNAMPLIFIED = "gaussian without amplification"
OVER_PARTICIPATIONS = "gaussian over participations"
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
MOST_PLD_ROUNDS = 100_000
"""Beyond, a grid that resolves ε takes too long."""


@dataclass(frozen=True)
class Spent:
    """An upper bound on ε and the accountant that gave it."""

    epsilon: float
    accountant: str


NOTHING = Spent(math.inf, "none")


def epsilon(mechanism: Mechanism, delta: float) -> Spent:
    """ε of all rounds of a mechanism at δ; infinite without noise, 0 for no rounds. A pure function."""
    return _epsilon(mechanism.in_units_of_the_bound(), delta)


@lru_cache(maxsize=256)
def _epsilon(mechanism: Mechanism, delta: float) -> Spent:
    if not mechanism.private:
        return NOTHING
    if not (0 < delta < 1) or not (0 <= mechanism.rounds < math.inf) or not mechanism.noise_multiplier < math.inf:
        problem = f"={delta!r}, noise_multiplier={mechanism.noise_multiplier!r}, rounds={mechanism.rounds!r}: "
        raise BadInput("delta", problem + "give 0 < delta < 1, a finite noise and rounds >= 0.")
    if mechanism.rounds == 0:
        return Spent(0.0, "none")
    if mechanism.trust in PER_CLIENT:
        return over_participations(mechanism, delta)
    return min(unamplified(mechanism, delta), rdp(mechanism, delta), pld(mechanism, delta), key=lambda s: s.epsilon)


class SpentSoFar:
    """ε after k rounds of a planned run: an upper bound for each k, never above the plan's own ε.

    It works on a coarser grid of privacy losses than the plan, so that a value for every round stays cheap; a coarser
    grid only makes it larger.
    """

    def __init__(self, mechanism: Mechanism, delta: float) -> None:
        self.mechanism, self.delta = mechanism.in_units_of_the_bound(), delta
        self.planned = epsilon(mechanism, delta)
        """The claim: ε of all planned rounds."""
        self._grid = 5 * pld_grid(self.planned.epsilon, mechanism.rounds)

    def after(self, rounds: int) -> float:
        """ε spent by the first `rounds` rounds."""
        if rounds == 0 and self.mechanism.private:
            return 0.0
        if rounds == self.mechanism.rounds or not self.mechanism.private:
            return self.planned.epsilon
        part = replace(self.mechanism, rounds=rounds)
        if part.trust in PER_CLIENT:
            return over_participations(part, self.delta).epsilon
        bounds = [self.planned, unamplified(part, self.delta)]
        if self.planned.accountant == "PLD":
            bounds.append(pld(part, self.delta, self._grid))
        if self.planned.accountant == "RDP":
            bounds.append(rdp(part, self.delta))
        return min(bound.epsilon for bound in bounds)


@lru_cache(maxsize=1024)
def over_participations(mechanism: Mechanism, delta: float) -> Spent:
    """ε before sampling where each participant adds noise: δ(ε) = E_{n ~ Bin(K, p)} δ_Gauss(ε; distance √(n/h) / z).

    A client that stays silent from some exposure on has at most that in place of n/h.
    """
    import scipy.optimize
    from scipy.stats import binom

    participations = binom(mechanism.rounds, mechanism.rate if mechanism.sampling != OWN else 1.0)
    low, high = (int(end) for end in (participations.ppf(1e-9 * delta), participations.isf(1e-9 * delta)))
    rounds = np.arange(max(low, 1), high + 1)
    weights = participations.pmf(rounds)
    beyond = float(participations.cdf(low - 1) + participations.sf(high))  # left out, and counted whole
    exposure = np.minimum(rounds / mechanism.honest, mechanism.most_exposure)
    mu = mechanism.distance * np.sqrt(exposure) / mechanism.noise_multiplier

    def excess(epsilon: float) -> float:
        return float(weights @ gaussian_delta(epsilon, mu)) + beyond - delta

    if excess(0.0) <= 0:
        return Spent(0.0, OVER_PARTICIPATIONS)
    largest = 1.0
    while excess(largest) > 0:
        largest *= 2
    root = float(scipy.optimize.brentq(excess, 0.0, largest, xtol=1e-10, rtol=1e-12))
    return Spent(root * (1 + 1e-9), OVER_PARTICIPATIONS)


def realised(mechanism: Mechanism, delta: float, largest_exposure: float) -> Spent:
    """ε of the client that took part most, given Σ 1/h_k over its rounds, where each participant adds noise."""
    mu = mechanism.distance * math.sqrt(largest_exposure) / mechanism.noise_multiplier if mechanism.private else math.inf
    return Spent(gaussian(mu, delta), "gaussian closed form")


def gaussian(mu: float, delta: float) -> float:
    """ε at δ of one Gaussian release whose mean a client moves by μ standard deviations; releases compose to √(Σ μ²)."""
    import dp_accounting

    if mu == 0 or math.isinf(mu):
        return mu
    with _quiet():
        return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))


def within_limit(mechanism: Mechanism, limit: float, delta: float) -> Mechanism:
    """A mechanism whose clients each stay silent before their own rounds would spend more than `limit`."""
    import dp_accounting

    with _quiet():
        noise = float(dp_accounting.get_sigma_gaussian(limit, delta))
    most = (mechanism.noise_multiplier / (mechanism.distance * noise)) ** 2
    while realised(mechanism, delta, most).epsilon > limit * (1 - 1e-8):
        most *= 1 - 1e-7
    return replace(mechanism, most_exposure=most)


def gaussian_delta(epsilon: float, mu: np.ndarray) -> np.ndarray:
    """δ_Gauss(ε; μ) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), for an array of μ > 0."""
    from scipy.special import log_ndtr, ndtr

    delta: np.ndarray = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
    return delta.clip(0.0)


def pld_grid(epsilon: float, rounds: int) -> float:
    """The step of the privacy losses at which PLD resolves this ε over K rounds: min(1e-3, ε / (20 √K))."""
    return min(1e-3, max(epsilon, 1e-3) / (20 * math.sqrt(rounds)))


def unamplified(mechanism: Mechanism, delta: float) -> Spent:
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) with μ = distance · √K / z: a client in every round."""
    import dp_accounting

    noise = mechanism.noise_multiplier / (mechanism.distance * math.sqrt(mechanism.rounds))
    exact = mechanism.sampling == "full"
    with _quiet():
        bound = float(dp_accounting.get_epsilon_gaussian(noise, delta))
    return Spent(bound, "gaussian closed form" if exact else UNAMPLIFIED)


@lru_cache(maxsize=1024)
def rdp(mechanism: Mechanism, delta: float, orders: tuple[float, ...] | None = None) -> Spent:
    """Rényi DP, where dp-accounting supports the combination: Poisson with zero-out, fixed with replace-one.

    orders: the Rényi orders to minimise over, dp-accounting's own by default; fewer are faster and give a larger ε.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    if mechanism.sampling == "poisson" and mechanism.adjacency == "zero-out":
        relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        gaussian = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
        event: Any = dp_accounting.PoissonSampledDpEvent(mechanism.rate, gaussian)
    elif mechanism.sampling == "fixed" and mechanism.adjacency == "replace-one":
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        gaussian = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier / mechanism.distance)
        event = dp_accounting.SampledWithoutReplacementDpEvent(mechanism.clients, int(mechanism.expected), gaussian)
    else:
        return Spent(math.inf, "RDP")
    accountant = RdpAccountant(orders, relation)
    with _quiet():
        accountant.compose(event, mechanism.rounds)
        bound = float(accountant.get_epsilon(delta))
    return Spent(bound + RDP_ROUNDING * mechanism.rounds if bound > 0 else math.inf, "RDP")


@lru_cache(maxsize=1024)
def pld(mechanism: Mechanism, delta: float, grid: float | None = None) -> Spent:
    """Privacy loss distributions, for Poisson sampling; infinite where they do not finish or do not resolve δ.

    grid: the step of the losses, by default refined until it resolves the ε it gives. A larger step gives a larger ε.
    """
    if mechanism.sampling != "poisson" or delta < SMALLEST_PLD_DELTA or mechanism.rounds > MOST_PLD_ROUNDS:
        return Spent(math.inf, "PLD")
    noise = mechanism.noise_multiplier / mechanism.distance
    if noise < SMALLEST_PLD_NOISE:
        return Spent(math.inf, "PLD")
    if mechanism.rounds * mechanism.rate / (2 * noise**2) > MOST_PLD_POINTS * max(1e-3 * (FINE_PLD_NOISE / noise) ** 2, grid or 1e-3):
        return Spent(math.inf, "PLD")
    coarsest = 1e-3 * (FINE_PLD_NOISE / noise) ** 2 if noise < FINE_PLD_NOISE else 0.0
    if grid is None:
        grid = max(1e-3, coarsest)
        while (finer := pld_grid(pld(mechanism, delta, grid).epsilon, mechanism.rounds)) < 0.9 * grid and not coarsest:
            grid = finer
    tails = math.floor(math.log(NEGLIGIBLE * delta / max(mechanism.rounds, 1)))
    one = _one_round(mechanism.noise_multiplier, mechanism.rate, mechanism.adjacency, max(grid, coarsest), tails)
    with _quiet():
        return Spent(float(one.self_compose(mechanism.rounds).get_epsilon_for_delta(delta - PLD_ROUNDING)), "PLD")


@lru_cache(maxsize=32)
def _one_round(noise_multiplier: float, rate: float, adjacency: str, grid: float, tails: int) -> Any:
    """The distribution of one round's loss; tails: the logarithm of the mass left to each side of the grid, and counted."""
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings about what dp-accounting handles by itself: Rényi orders left out, the logarithm of zero."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with np.errstate(divide="ignore", over="ignore"):
            yield
    finally:
        log.setLevel(level)

"""The privacy loss of one round of a fixed cohort, drawn uniformly without replacement.

Reveal the other m − 1 participants and the client j that takes the place where ours is not drawn. Then, in units of the bound, one round
tells (1 − p) N(o) + p N(u) from (1 − p) N(o) + p N(w): o is the message of j, u ours in one run and w in the other, 0 under zero-out.
For losses above 0 nothing tells more than o = −1, u = 1 and w = 0 (zero-out) or −1 (replace-one), for losses below 0 than o = u = 1
(docs/privacy.md has the proof). N(m): the normal distribution of mean m and standard deviation z.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

Divergence = Callable[[np.ndarray, float, float], np.ndarray]
"""(ε, z, p) → the hockey-stick divergence of a pair at e^ε, for an array of ε ≥ 0."""


def present(epsilon: np.ndarray, z: float, p: float) -> np.ndarray:
    """Of (1 − p) N(−1) + p N(1) from (1 − p) N(−1) + p N(0).

    The loss exceeds ε beyond t, where u = e^(t/z²) solves p (u² − e^ε c u) = (e^ε − 1) (1 − p) with c = e^(1/(2z²)).
    """
    linear = epsilon + 1 / (2 * z * z)  # log e^ε c
    root = np.sqrt(1 + 4 * (1 - p) / p * np.exp(np.log(np.maximum(np.expm1(epsilon), 1e-300)) - 2 * linear))
    t = z * z * (linear + np.log((1 + root) / 2))
    above = (1 - p) * ndtr(-(t + 1) / z) + p * ndtr(-(t - 1) / z)
    below = np.exp(epsilon + math.log1p(-p) + log_ndtr(-(t + 1) / z)) + np.exp(epsilon + math.log(p) + log_ndtr(-t / z))
    return _positive(above - below)


def absent(epsilon: np.ndarray, z: float, p: float) -> np.ndarray:
    """Of (1 − p) N(1) + p N(0) from N(1), whose loss exceeds ε below t = ½ − z² log((e^ε − 1 + p) / p)."""
    t = 0.5 - z * z * _log_odds(epsilon, p)
    above = (1 - p) * ndtr((t - 1) / z) + p * ndtr(t / z)
    return _positive(above - np.exp(epsilon + log_ndtr((t - 1) / z)))


def replaced(epsilon: np.ndarray, z: float, p: float) -> np.ndarray:
    """Of (1 − p) N(−1) + p N(1) from N(−1), whose loss exceeds ε beyond t = z²/2 · log((e^ε − 1 + p) / p)."""
    t = z * z / 2 * _log_odds(epsilon, p)
    above = (1 - p) * ndtr(-(t + 1) / z) + p * ndtr(-(t - 1) / z)
    return _positive(above - np.exp(epsilon + log_ndtr(-(t + 1) / z)))


def one_round(z: float, p: float, replace_one: bool, grid: float, tails: float) -> Any:
    """The distribution of a round's privacy loss, as dp-accounting composes it.

    grid: the step of the losses. tails: the logarithm of the mass left to each side of the grid, and counted.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    reach = 1 + z * math.sqrt(-2 * tails)
    if replace_one:
        points = _steps(_rare(p, 2 * reach / z**2), grid)
        return PrivacyLossDistribution(_dots(replaced, points, replaced, points, grid, z, p))
    furthest = (reach - 0.5) / z**2
    removed, added = _steps(furthest, grid), _steps(_rare(p, furthest), grid)
    remove = _dots(present, removed, absent, added, grid, z, p)
    return PrivacyLossDistribution(remove, _dots(absent, added, present, removed, grid, z, p))


def _log_odds(epsilon: np.ndarray, p: float) -> np.ndarray:
    """log((e^ε − 1 + p) / p), also where e^ε overflows."""
    odds: np.ndarray = epsilon + np.log1p(-np.exp(-epsilon) * (1 - p)) - math.log(p)
    return odds


def _positive(difference: np.ndarray) -> np.ndarray:
    """A divergence, which rounding may have taken below zero."""
    divergence: np.ndarray = np.maximum(difference, 0.0)
    return divergence


def _rare(p: float, loss: float) -> float:
    """log(1 − p + p e^loss): the largest loss where the event has probability p."""
    return float(np.logaddexp(math.log1p(-p), math.log(p) + loss))


def _steps(loss: float, grid: float) -> int:
    """How many steps of the grid reach a loss above which next to nothing lies."""
    return math.ceil(loss / grid) + 1


def _dots(above: Divergence, points: int, below: Divergence, fewer: int, grid: float, z: float, p: float) -> Any:
    """The distribution whose divergences are `above` at ε ≥ 0 and, for ε < 0, 1 − e^ε + e^ε · below(−ε): that of the pair turned round."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots

    positive, negative = grid * np.arange(points + 1), grid * np.arange(fewer, 0, -1)
    deltas = np.concatenate([-np.expm1(-negative) + np.exp(-negative) * below(negative, z, p), above(positive, z, p)])
    return create_pmf_pessimistic_connect_dots(grid, np.arange(-fewer, points + 1), np.minimum.accumulate(deltas))

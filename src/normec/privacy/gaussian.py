"""ε of Gaussian releases whose participants are known: closed form, and the expectation over participations."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from normec.privacy.exposures import exposures
from normec.privacy.mechanism import Mechanism

UNAMPLIFIED = "gaussian without amplification"
OVER_PARTICIPATIONS = "gaussian over participations"


@dataclass(frozen=True)
class Spent:
    """An upper bound on ε and the accountant that gave it.

    every_round: ε of a client that is asked in every round; None where ε does not rest on whom the server asks.
    """

    epsilon: float
    accountant: str
    every_round: float | None = None


def gaussian(mu: float, delta: float) -> float:
    """ε at δ of one Gaussian release whose mean a client moves by μ standard deviations; releases compose to √(Σ μ²)."""
    import dp_accounting

    if mu == 0 or math.isinf(mu):
        return mu
    with quiet():
        return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta))


def gaussian_delta(epsilon: float, mu: np.ndarray) -> np.ndarray:
    """δ_Gauss(ε; μ) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), for an array of μ > 0."""
    from scipy.special import log_ndtr, ndtr

    delta: np.ndarray = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
    return delta.clip(0.0)


def unamplified(mechanism: Mechanism, delta: float) -> Spent:
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) with μ = distance · √K / z: a client in every round."""
    import dp_accounting

    noise = mechanism.noise_multiplier / (mechanism.distance * math.sqrt(mechanism.rounds))
    exact = mechanism.sampling == "full"
    with quiet():
        bound = float(dp_accounting.get_epsilon_gaussian(noise, delta))
    return Spent(bound, "gaussian closed form" if exact else UNAMPLIFIED)


@lru_cache(maxsize=1024)
def over_participations(mechanism: Mechanism, delta: float) -> Spent:
    """ε before sampling where each participant adds noise: δ(ε) = E δ_Gauss(ε; distance √S / z), S = Σ 1/h_k (`exposures`).

    A client that stays silent from some exposure on has at most that in place of S.
    """
    import scipy.optimize

    shown = exposures(replace(mechanism, noise_multiplier=0.0), 1e-9 * delta)
    some = shown.values > 0
    mu = mechanism.distance * np.sqrt(np.minimum(shown.values[some], mechanism.most_exposure)) / mechanism.noise_multiplier

    def excess(epsilon: float) -> float:
        return float(shown.weights[some] @ gaussian_delta(epsilon, mu)) + shown.beyond - delta

    if excess(0.0) <= 0:
        return Spent(0.0, OVER_PARTICIPATIONS)
    largest = 1.0
    while excess(largest) > 0:
        largest *= 2
    root = float(scipy.optimize.brentq(excess, 0.0, largest, xtol=1e-10, rtol=1e-12))
    return Spent(root * (1 + 1e-9), OVER_PARTICIPATIONS)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings about what dp-accounting handles by itself: Rényi orders left out, the logarithm of zero."""
    log, silent = logging.getLogger("absl"), logging.NullHandler()
    level = log.level
    log.setLevel(logging.ERROR)
    logging.root.addHandler(silent)  # without any, absl would configure the logging of the whole process
    try:
        with np.errstate(divide="ignore", over="ignore"):
            yield
    finally:
        log.setLevel(level)
        logging.root.removeHandler(silent)

"""The parameters of the smallest bound: β, γ, D, R and η by a search from many starts, under the conditions of the theorem."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from normec.theory.bounds import Setting, bound, conditions, corollary, largest_eta


def minimise(start: Setting, free_start: bool = True, least: float = 0.0) -> Setting:
    """β, γ, D (and R where it is free) of the smallest sharper bound, with the largest useful η, meeting every condition.

    least: Δ^inf, which D must not fall below.
    """
    from scipy.optimize import minimize

    root = math.sqrt(2 * start.L * start.F)

    @lru_cache(maxsize=16)  # a solver asks for the bound and for the conditions at the same points
    def at(logs: tuple[float, ...]) -> Setting:
        beta, R, gamma, extra, eta = (float(value) for value in np.exp(np.clip(logs, -60, 60)))
        R = R * root if free_start else start.R
        heterogeneity = least + extra * start.F if start.drifts else start.heterogeneity
        return replace(start, beta=beta, gamma=min(gamma, 1.0) / (2 * start.L), eta=eta, R=R, heterogeneity=heterogeneity)

    def setting(logs: np.ndarray) -> Setting:
        return at(tuple(logs.tolist()))

    def objective(logs: np.ndarray) -> float:
        return math.log(bound(setting(logs), "sharper").total)

    def slack(logs: np.ndarray) -> np.ndarray:
        return np.array([math.log(c.limit / c.value) for c in conditions(setting(logs))])

    def penalised(logs: np.ndarray) -> float:
        return objective(logs) + 1e3 * float(np.clip(-slack(logs), 0, None).sum())

    closed = corollary(start).setting
    candidates = [start, closed] if free_start or closed.R == start.R else [start]
    ends = []
    scales = (-3.0, 0.0, 3.0) if start.drifts else (0.0,)
    for beta, R, gamma, extra in itertools.product((-4.0, -1.0, 2.0, None), (-4.0, -1.0, 1.0), (0.0, -3.0), scales):
        first = np.array([0.0 if beta is None else math.log(start.alpha) + beta, R, gamma, extra, 0.0])
        if beta is None:  # of the size of R, where α is small beside it
            first[0] = math.log(setting(first).R)
        first[4] = math.log(largest_eta(setting(first)))
        ends.append(minimize(objective, first, method="SLSQP", constraints={"type": "ineq", "fun": slack}, options={"maxiter": 300}).x)
    ends.sort(key=penalised)
    for index in range(2):  # past the kinks of the conditions, where a smooth method stops
        for _ in range(3):
            options = {"maxiter": 1500, "xatol": 1e-9, "fatol": 1e-12}
            ends[index] = minimize(penalised, ends[index], method="Nelder-Mead", options=options).x
    candidates += [_feasible(setting(logs)) for logs in ends]
    return min((s for s in candidates if all(c.holds for c in conditions(s))), key=lambda s: bound(s, "sharper").total)


def _feasible(s: Setting) -> Setting:
    """The same with η no larger than the conditions allow, and no larger than is useful: then ηL/2 outweighs F/((K + 1) η)."""
    return replace(s, eta=min(s.eta, largest_eta(s), math.sqrt(6 * s.F / ((s.K + 1) * s.L))))

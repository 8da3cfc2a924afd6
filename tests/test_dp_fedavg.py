"""DP-FedAvg against its formula, and its known failure."""

from __future__ import annotations

import numpy as np
import pytest

import normec
from conftest import quadratic, x_of
from normec.streams import Streams

CENTRES = np.random.default_rng(0).normal(size=(5, 3)) * 2


@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("kind", ["clip", "norm"])
def test_three_rounds(kind: str, on: str) -> None:
    eta, gamma, p, steps = 0.5, 0.4, 0.6, 2
    algorithm = (
        normec.DPFedAvgClip(clip_norm=0.7, server_lr=eta, on=on)  # type: ignore[arg-type]
        if kind == "clip"
        else normec.DPFedAvgNorm(alpha=0.3, beta=0.25, server_lr=eta, on=on)  # type: ignore[arg-type]
    )
    x = np.zeros(3)
    for k in range(3):
        y = np.repeat(x[None], 5, axis=0)
        for _ in range(steps):
            y = y - gamma / steps * (y - CENTRES)
        u = (x - y) / gamma if on == "gradient" else x - y
        norms = np.linalg.norm(u, axis=1, keepdims=True)
        message = u * np.minimum(1, 0.7 / norms) if kind == "clip" else 0.25 * u / (0.3 + norms)
        cohort = normec.Poisson(p).cohort(5, k, Streams(3))
        x = x - eta * message[cohort].sum(axis=0) / (p * 5)
    run = quadratic(
        list(CENTRES), algorithm=algorithm, local=normec.GD(steps=steps, lr=gamma), participation=normec.Poisson(p), rounds=3, seed=3
    )
    np.testing.assert_allclose(x_of(run), x, rtol=1e-12, atol=1e-12)


def test_clipping_stalls_away_from_the_minimiser() -> None:
    """Zhang et al. 2022, Claim 2.1: two clients pulling one way and one far on the other side; clipping weighs them alike."""
    centres = [[0.0], [0.0], [9.0]]
    clipped = quadratic(centres, algorithm=normec.DPFedAvgClip(clip_norm=1.0, server_lr=0.1), rounds=2000)
    corrected = quadratic(centres, algorithm=normec.FedNormEC(alpha=1.0, beta=0.2, server_lr=0.1), rounds=3000)
    assert abs(x_of(clipped)[0] - 3.0) > 2.0
    assert abs(x_of(corrected)[0] - 3.0) < 1e-6

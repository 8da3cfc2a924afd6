"""Fed-α-NormEC against answers worked out by hand, and against independent recursions."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import normec
from conftest import checkpoint_of, quadratic, x_of


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """f_1 = ½(x − 3)², f_2 = ½(x + 1)², x⁰ = 0, T = 1, α = 1, β = 1, η = 2.

    k = 0: g = (−3, 1), Δ = (−3/4, 1/2) = v, v̂ = −1/8, x = 1/4.
    k = 1: g = (−11/4, 5/4), g − v = (−2, 3/4), Δ = (−2/3, 3/7), v = (−17/12, 13/14), v̂ = −41/168, x = 31/42.
    """
    run = quadratic([[3.0], [-1.0]], algorithm=normec.FedNormEC(alpha=1, beta=1, server_lr=2), rounds=2, out=tmp_path / "run")
    saved = checkpoint_of(run)
    np.testing.assert_allclose(x_of(run), [float(Fraction(31, 42))], rtol=1e-14)
    np.testing.assert_allclose(saved["memory.v"][:, 0], [float(Fraction(-17, 12)), float(Fraction(13, 14))], rtol=1e-14)
    np.testing.assert_allclose(saved["server.v_hat"], [float(Fraction(-41, 168))], rtol=1e-14)


def test_normalized_server_step_by_hand() -> None:
    """As above with one round: v̂ = −1/8 has direction −1, so that x = η = 2."""
    algorithm = normec.FedNormEC(alpha=1, beta=1, server_lr=2, server_normalize=True)
    run = quadratic([[3.0], [-1.0]], algorithm=algorithm, rounds=1)
    np.testing.assert_allclose(x_of(run), [2.0], rtol=1e-14)


def test_normalized_server_step_of_zero_is_zero() -> None:
    run = quadratic([[0.0, 0.0], [0.0, 0.0]], algorithm=normec.FedNormEC(server_normalize=True), rounds=2)
    np.testing.assert_array_equal(x_of(run), [0.0, 0.0])


@pytest.mark.parametrize("rounds", [1, 2, 5, 12])
@pytest.mark.parametrize("lazy", [False, True])
def test_server_estimate_is_the_mean_of_the_memories(tmp_path: Path, rounds: int, lazy: bool) -> None:
    centres = np.random.default_rng(1).normal(size=(5, 3, 4))
    algorithm = normec.FedNormEC(alpha=0.3, beta=0.4, server_lr=0.5, lazy=lazy)
    run = quadratic(list(centres), algorithm=algorithm, local=normec.IG(steps=2, lr=0.3, batch_size=2), rounds=rounds, out=tmp_path / "r")
    saved = checkpoint_of(run)
    np.testing.assert_allclose(saved["server.v_hat"], saved["memory.v"].mean(axis=0), rtol=1e-12, atol=1e-15)


def test_lazy_keeps_the_mean_under_partial_participation(tmp_path: Path) -> None:
    centres = np.random.default_rng(2).normal(size=(9, 1, 3))
    algorithm = normec.FedNormEC(alpha=0.3, beta=0.4, server_lr=0.5, lazy=True)
    run = quadratic(list(centres), algorithm=algorithm, participation=normec.Poisson(0.4), rounds=20, out=tmp_path / "r")
    saved = checkpoint_of(run)
    np.testing.assert_allclose(saved["server.v_hat"], saved["memory.v"].mean(axis=0), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("alpha", [1e-8, 0.01, 1.0, 50.0])
def test_one_step_full_participation_is_alpha_normec(alpha: float) -> None:
    """α-NormEC (Shulgin et al. 2025): v_i += β Norm_α(∇f_i(x) − v_i), v̂ = mean v_i, x −= η v̂ / ‖v̂‖."""
    centres = np.random.default_rng(3).normal(size=(4, 6)) * 3
    beta, eta = 0.7, 0.2
    x, v = np.zeros(6), np.zeros((4, 6))
    for _ in range(10):
        residual = (x - centres) - v
        v += beta * residual / (alpha + np.linalg.norm(residual, axis=1, keepdims=True))
        estimate = v.mean(axis=0)
        x = x - eta * estimate / np.linalg.norm(estimate)
    algorithm = normec.FedNormEC(alpha=alpha, beta=beta, server_lr=eta, server_normalize=True)
    run = quadratic(list(centres), algorithm=algorithm, rounds=10)
    np.testing.assert_allclose(x_of(run), x, rtol=1e-11, atol=1e-12)


def test_partial_participation_follows_algorithm_1(tmp_path: Path) -> None:
    """Every client moves its memory; the server adds (β / M) Σ_S Δ_i / p; cohorts as the run drew them."""
    from normec.streams import Streams

    centres = np.random.default_rng(4).normal(size=(6, 3))
    alpha, beta, eta, p, gamma, steps = 0.2, 0.5, 0.3, 0.4, 0.6, 3
    x, v, estimate = np.zeros(3), np.zeros((6, 3)), np.zeros(3)
    sent = 0
    for k in range(8):
        y = np.repeat(x[None], 6, axis=0)
        for _ in range(steps):
            y = y - gamma / steps * (y - centres)
        g = (x - y) / gamma
        residual = g - v
        delta = residual / (alpha + np.linalg.norm(residual, axis=1, keepdims=True))
        v += beta * delta
        cohort = normec.Poisson(p).cohort(6, k, Streams(7))
        estimate = estimate + beta / 6 * delta[cohort].sum(axis=0) / p
        x = x - eta * estimate
        sent += cohort.sum()
    algorithm = normec.FedNormEC(alpha=alpha, beta=beta, server_lr=eta)
    local = normec.GD(steps=steps, lr=gamma)
    run = quadratic(list(centres), algorithm=algorithm, local=local, participation=normec.Poisson(p), rounds=8, seed=7, out=tmp_path / "r")
    np.testing.assert_allclose(x_of(run), x, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(checkpoint_of(run)["memory.v"], v, rtol=1e-11, atol=1e-13)
    assert run.metrics[-1]["transmissions"] == sent
    assert run.metrics[-1]["bytes_up"] == 4 * 3 * sent
    assert run.metrics[-1]["bytes_down"] == 4 * 3 * 6 * 8  # every client computes, whoever transmits


def test_lazy_downloads_only_to_its_cohort() -> None:
    centres = np.random.default_rng(5).normal(size=(20, 3))
    run = quadratic(list(centres), algorithm=normec.FedNormEC(lazy=True), participation=normec.Poisson(0.3), rounds=10)
    assert run.metrics[-1]["bytes_down"] == run.metrics[-1]["bytes_up"] == 12 * run.metrics[-1]["transmissions"]


def test_start_from_first_updates(tmp_path: Path) -> None:
    """init = "local": v_i⁰ = g_i(x⁰) + e, so that the first residuals are −e, and v̂⁰ is the mean of the v_i⁰."""
    centres = np.array([[3.0, 1.0], [-1.0, 2.0]])
    algorithm = normec.FedNormEC(alpha=1, beta=0.5, server_lr=1, init="local", init_offset=0.25)
    run = quadratic(list(centres), algorithm=algorithm, rounds=1, out=tmp_path / "r")
    v = -centres + [0.25, 0.0]
    v[:, 0] += 0.5 * -0.25 / 1.25
    np.testing.assert_allclose(checkpoint_of(run)["memory.v"], v, rtol=1e-14)
    np.testing.assert_allclose(checkpoint_of(run)["server.v_hat"], v.mean(axis=0), rtol=1e-14)
    assert run.metrics[0]["transmissions"] == 2


def test_converges_where_clients_disagree() -> None:
    """Without noise, error feedback removes the bias of normalization: the minimiser of f is found."""
    centres = np.array([[10.0, 0.0], [-4.0, 0.0], [0.0, 3.0]])
    run = quadratic(list(centres), algorithm=normec.FedNormEC(alpha=1.0, beta=0.2, server_lr=0.1), rounds=3000)
    np.testing.assert_allclose(x_of(run), centres.mean(axis=0), atol=1e-6)

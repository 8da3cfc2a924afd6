"""What noised local steps spend of a record."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from normec.privacy.composition import Composition, Losses
from normec.privacy.records import RecordSteps, record_epsilon, record_noise


def spent(rate: float, z: float, steps: int, rounds: int, share: float = 1.0, delta: float = 1e-5, **more: Any) -> float:
    held = RecordSteps(rate=rate, noise_multiplier=z, steps=steps, rounds=rounds, share=share, **more)
    return record_epsilon(held, delta).epsilon


@pytest.mark.parametrize(
    ("steps", "rate", "target", "zero_out", "replace_one"),
    [
        (100, 0.01, 1, 0.9020, 0.9531), (100, 0.05, 3, 1.0788, 1.4221), (100, 0.1, 8, 0.9359, 1.2192), (100, 1, 3, 13.906, 27.812),
        (1000, 0.01, 8, 0.5863, 0.6196), (1000, 0.05, 3, 2.3524, 4.3941), (1000, 0.1, 3, 4.4972, 8.7916),
        (3000, 0.01, 3, 1.0333, 1.5427), (3000, 0.05, 8, 1.8017, 3.2828), (3000, 1, 1, 204.34, 408.67),
    ],
)  # fmt: skip
def test_the_noise_that_steps_need(steps: int, rate: float, target: float, zero_out: float, replace_one: float) -> None:
    for adjacency, right in (("zero-out", zero_out), ("replace-one", replace_one)):
        held = RecordSteps(rate=rate, noise_multiplier=1.0, steps=1, rounds=steps, adjacency=adjacency)  # type: ignore[arg-type]
        assert record_noise(held, target, 1e-5) == pytest.approx(right, rel=2e-3)


@pytest.mark.parametrize(("rate", "z", "steps", "rounds", "share", "right"), [(0.05, 1, 5, 40, 0.5, 3.58), (0.1, 2, 4, 50, 0.5, 2.407)])
def test_the_claim_averages_over_the_rounds_of_a_client(rate: float, z: float, steps: int, rounds: int, share: float, right: float) -> None:
    assert spent(rate, z, steps, rounds, share) == pytest.approx(right, abs=0.01)


def test_a_clients_coin_amplifies_nothing_within_its_rounds() -> None:
    """K = 100, p = 0.2, T = 5, q = 0.05, z = 1: 3.63 on average, 3.50 for 20 rounds, 7.52 for all; p q would give 1.33, which is wrong."""
    assert spent(0.05, 1.0, 5, 100, 0.2) == pytest.approx(3.63, abs=0.01)
    assert spent(0.05, 1.0, 5, 20) == pytest.approx(3.50, abs=0.01)
    assert spent(0.05, 1.0, 5, 100) == pytest.approx(7.52, abs=0.01)
    wrong = spent(0.2 * 0.05, 1.0, 5, 100)
    assert wrong == pytest.approx(1.33, abs=0.01) and wrong < spent(0.05, 1.0, 5, 100, 0.2) / 2


def test_one_round_of_every_record_attains_what_is_accounted() -> None:
    """p = 0.1, q = 1, z = 1: δ = p (Φ(½ − 1) − e Φ(−½ − 1)) at ε = 1, where p q would say 2.1e-4."""
    attained = 0.1 * (ndtr(-0.5) - math.e * ndtr(-1.5))
    assert attained == pytest.approx(0.0127, abs=1e-4)
    assert spent(1.0, 1.0, 1, 1, 0.1, delta=attained) == pytest.approx(1.0, abs=1e-6)


def test_rounds_with_a_coin_worked_out_by_hand() -> None:
    """Losses ±1 with e/(1+e), 1/(1+e), twice in a round that is met with probability ½: one round has 2, 0, −2 and 0."""
    up = math.e / (1 + math.e)
    coin = Losses(-1, 1.0, np.array([1 - up, 0.0, up]), 0.0)
    for at in (0.5, 1.5):
        delta = 0.5 * up * up * -math.expm1(at - 2)
        assert Composition(coin, rounds=1, steps=2, share=0.5).epsilon(delta) == pytest.approx(at, abs=1e-6)
    four = Composition(coin, rounds=2, steps=2, share=0.5).epsilon(0.25 * up**4 * -math.expm1(3.0 - 4))
    assert four == pytest.approx(3.0, abs=1e-6)


def test_no_steps_without_noise_are_private() -> None:
    assert spent(0.1, 0.0, 1, 1) == math.inf

"""How much of itself a client shows where it is known who participates, and what cohorts of the drawn sizes spend."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

import normec
from normec.privacy import epsilon
from normec.privacy.calibration import calibrate
from normec.privacy.exposures import Exposures, exposures
from normec.privacy.gaussian import gaussian_delta
from normec.privacy.mechanism import Mechanism
from normec.privacy.table import Query, rows
from normec.privacy.trust import SecAgg


def mechanism(**changes: Any) -> Mechanism:
    given = {"trust": "secagg", "clients": 1000, "rate": 0.1, "rounds": 300, "delta": 1e-5, "min_honest": 50, "dropouts": "none"}
    return Query(**{**given, **changes}).mechanism("secagg")


def test_the_noise_that_drawn_cohorts_need() -> None:
    assert calibrate(mechanism(dropouts="adversarial"), 8.0, 1e-5) == pytest.approx(0.4958, abs=1e-4)
    assert 0.3509 <= calibrate(mechanism(), 8.0, 1e-5) <= 0.3509 * 1.002


def test_the_claim_is_that_of_simulated_cohorts() -> None:
    generator = np.random.default_rng(0)
    participations = generator.binomial(300, 0.1, 100_000)
    shown = np.zeros(len(participations))
    for n in range(participations.max()):
        there = participations > n
        shown[there] += 1 / (1 + generator.binomial(999, 0.1, there.sum()))
    z = 0.6
    simulated = brentq(lambda each: gaussian_delta(each, np.sqrt(shown[shown > 0]) / z).sum() / len(shown) - 1e-3, 0.1, 20)
    spent = epsilon(Query(trust="secagg", noise_multiplier=z, clients=1000, rate=0.1, rounds=300, min_honest=50, dropouts="none").mechanism("secagg"), 1e-3)  # fmt: skip
    assert simulated * 0.99 < spent.epsilon < simulated * 1.01


def test_a_small_federation_worked_out_by_hand() -> None:
    """Three clients at rate 1/2 and two rounds: each of a client's rounds has 1, 2 or 3 participants with probabilities 1/4, 1/2, 1/4."""
    shares = {0.0: 0.5, 1.0: 0.125, 1 / 2: 0.25, 1 / 3: 0.125}
    expected: dict[float, float] = {}
    for (a, p), (b, q) in itertools.product(shares.items(), repeat=2):
        expected[a + b] = expected.get(a + b, 0.0) + p * q
    found = exposures(mechanism(clients=3, rate=0.5, rounds=2, min_honest=1), 1e-12)
    for threshold in (0.01, 0.4, 0.6, 0.7, 0.9, 1.2, 1.4, 1.6):
        mass = float(found.weights[found.values > threshold].sum())
        assert mass == pytest.approx(sum(p for value, p in expected.items() if value > threshold), abs=1e-9)
    assert found.values.max() >= 2.0


@pytest.mark.parametrize("rounds", [1, 7, 300, 10**5])
@pytest.mark.parametrize("rate", [1e-4, 0.02, 0.3, 1.0])
def test_sums_are_rounded_up_and_hardly(rounds: int, rate: float) -> None:
    held = mechanism(rounds=rounds, rate=rate, min_honest=1)
    found = exposures(held, 1e-20)
    others = np.arange(1000)
    mean = rounds * rate * float((binom(999, rate).pmf(others) / (1 + others)).sum())
    total = float(found.values @ found.weights)
    assert mean * (1 - 1e-9) <= total <= mean * 1.02 + 1e-12
    assert found.weights.sum() + found.beyond + float(binom(rounds, rate).pmf(0)) >= 1 - 1e-9
    assert found.beyond < 1e-18


def test_rounds_that_are_given_up_show_nothing() -> None:
    none = replace(mechanism(clients=10, rate=0.5, min_honest=10), trust=SecAgg(11, 0, "none"))
    assert exposures(none, 1e-12).values.tolist() == [0.0]
    most = mechanism(clients=100, rate=0.5, min_honest=60, rounds=50)
    mean = 50 * 0.5 * float((binom(99, 0.5).pmf(np.arange(59, 100)) / np.arange(60, 101)).sum())
    found = exposures(most, 1e-12)
    assert float(found.values @ found.weights) == pytest.approx(mean, rel=0.02)


def test_colluders_do_not_hide_anybody() -> None:
    alone, with_colluders = (exposures(mechanism(colluders=c, min_honest=1), 1e-12) for c in (0, 20))
    assert float(with_colluders.values @ with_colluders.weights) > 1.2 * float(alone.values @ alone.weights)


@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15])
@pytest.mark.parametrize("scheme", ["poisson", "fixed", "full"])
def test_drawn_sizes_never_cost_more_than_the_smallest(scheme: str, delta: float) -> None:
    rate = {} if scheme == "full" else {"rate": 0.2}
    given = {"trust": "secagg", "clients": 200, "scheme": scheme, "rounds": 40, "noise_multiplier": 0.7, "min_honest": 20, **rate}
    drawn, smallest = (epsilon(Query(**{**given, "dropouts": each}).mechanism("secagg"), delta).epsilon for each in ("none", "adversarial"))
    assert drawn < smallest
    if scheme == "full":  # 40 rounds of 200 participants
        spent = Query(trust="central", noise_multiplier=0.7 * math.sqrt(200), clients=200, scheme="full", rounds=40)
        assert drawn == pytest.approx(epsilon(spent.mechanism("central"), delta).epsilon, rel=0.01)


def test_adding_rounds_adds_values_and_multiplies_weights() -> None:
    coin = Exposures(np.array([1.0, 3.0]), np.array([0.25, 0.75]), 1e-9)
    both = coin + coin
    found = {round(float(value), 9): float(weight) for value, weight in zip(both.values, both.weights, strict=True) if weight}
    assert found == {2.0: 0.0625, 4.0: 0.375, 6.0: 0.5625} and both.beyond == 2e-9


def test_the_claim_says_what_it_supposes() -> None:
    said = mechanism().trust.said
    assert said.endswith("besides 0 colluders, and nobody makes clients drop out")
    assert "drop out" not in mechanism(dropouts="adversarial").trust.said


def test_dropouts_act_with_secagg_alone() -> None:
    with pytest.raises(normec.BadInput, match=r"dropouts='none' acts only with trust='secagg'\. Remove it, or change trust."):
        normec.Privacy(trust="central", epsilon=8, dropouts="none")
    assert rows(Query(epsilon=8, dropouts="none"))[0]["trust"] == "central"

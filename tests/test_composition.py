"""Composition of privacy loss distributions: right in its tails, and without cliffs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

import normec
from normec.privacy import epsilon
from normec.privacy.amplified import _one_round
from normec.privacy.calibration import calibrate
from normec.privacy.composition import Losses, TooFine
from normec.privacy.mechanism import Mechanism, default_delta
from normec.privacy.table import Query
from normec.privacy.trust import Trust, trust_model


def mechanism(z: float, rate: float, rounds: int, adjacency: Any = "zero-out", scheme: str = "poisson", trust: Trust = "central", **more: Any) -> Mechanism:  # fmt: skip
    participation = normec.Full() if scheme == "full" else (normec.Fixed if scheme == "fixed" else normec.Poisson)(rate=rate)
    given = {"clients": 10**9, **more}
    return Mechanism(
        trust=trust_model(trust, 5), adjacency=adjacency, noise_multiplier=z, participation=participation, rounds=rounds, **given
    )


def spent(z: float, rate: float, rounds: int, delta: float, *kinds: Any, **more: Any) -> float:
    return epsilon(mechanism(z, rate, rounds, *kinds, **more), delta).epsilon


def present(at: float, z: float, p: float) -> float:
    """The divergence at e^ε of (1 − p) N(0) + p N(1) from N(0), by normal probabilities alone."""
    t = z * z * math.log((math.expm1(at) + p) / p) + 0.5
    return (1 - p) * ndtr(-t / z) + p * ndtr((1 - t) / z) - math.exp(at + log_ndtr(-t / z))


@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15])
@pytest.mark.parametrize(("z", "p"), [(1.0, 0.01), (0.5, 0.1), (3.0, 0.3)])
def test_one_round_is_as_exact_as_its_formula(z: float, p: float, delta: float) -> None:
    exact = brentq(lambda each: math.log(max(present(each, z, p), 1e-300) / delta), 1e-9, 200)
    assert exact <= spent(z, p, 1, delta) <= exact * 1.001 + 1e-4


@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-14])
def test_two_rounds_are_as_exact_as_a_quadrature(delta: float) -> None:
    """The second round's divergence at ε less the first one's loss, averaged over the first, of one client's presence."""
    z, p = 1.0, 0.05

    def loss(x: float) -> float:
        return math.log1p(-p + p * math.exp((2 * x - 1) / (2 * z * z)))

    def two(at: float) -> float:
        def first(x: float) -> float:
            left = at - loss(x)
            held = present(left, z, p) if left > math.log1p(-p) + 1e-12 else 1 - math.exp(left)
            return ((1 - p) * norm.pdf(x, 0, z) + p * norm.pdf(x, 1, z)) * max(held, 0.0)

        return sum(quad(first, low, low + 1, epsabs=0, epsrel=1e-9, limit=200)[0] for low in range(-9, 20))

    found = spent(z, p, 2, delta)
    assert two(found) <= delta * 1.001 and two(found * 0.995 - 1e-3) > delta


@pytest.mark.parametrize(("rounds", "z", "delta"), [(100, 1.0, 1e-15), (10**4, 20.0, 1e-12), (10**6, 1000.0, 1e-15), (10**7, 2000.0, 1e-9)])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_almost_every_round_is_a_gaussian(rounds: int, z: float, delta: float, adjacency: str) -> None:
    """At a rate of 1 − 1e-9 the distribution is composed, and at 1 the closed form answers."""
    composed = spent(z, 1 - 1e-9, rounds, delta, adjacency)
    assert composed == pytest.approx(spent(z, 1.0, rounds, delta, adjacency), rel=2e-3)


@pytest.mark.parametrize("rounds", [2, 300, 3000])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("fixed", [False, True])
def test_it_agrees_with_the_library_where_that_resolves_delta(rounds: int, adjacency: str, fixed: bool) -> None:
    one = _one_round(2.0, 0.05, adjacency, 1e-3, -40, fixed)
    for delta in (1e-3, 1e-7):
        ours = max(losses.epsilon(rounds, delta) for losses in Losses.both(one))
        assert ours == pytest.approx(one.self_compose(rounds).get_epsilon_for_delta(delta), rel=1e-4, abs=1e-5)


def test_a_distribution_of_two_losses_worked_out_by_hand() -> None:
    """Losses ±1 with probabilities e/(1+e), 1/(1+e) (randomised response): after two rounds 2, 0, −2."""
    up = math.e / (1 + math.e)
    coin = Losses(-1, 1.0, np.array([1 - up, 0.0, up]), 0.0)
    for at in (0.25, 1.0, 1.75):
        assert coin.epsilon(2, up * up * -math.expm1(at - 2)) == pytest.approx(at, abs=1e-9)
    infinite = replace(coin, infinite=1e-3)
    assert coin.epsilon(2, 0.9) == 0 and infinite.epsilon(2, 1e-3) == math.inf
    assert infinite.epsilon(2, up * up * -math.expm1(1.0 - 2) + 1 - (1 - 1e-3) ** 2) == pytest.approx(1.0, abs=1e-6)


def test_a_grid_that_is_too_fine_says_how_much() -> None:
    with pytest.raises(TooFine, match=r"make the grid .* times coarser"):
        Losses.both(_one_round(1.0, 0.5, "zero-out", 1e-4, -40, False))[0].epsilon(10**7, 1e-5)


THRESHOLDS = [
    (99_999, 1e-6, 3.0, 0.01),  # rounds at which composition once ended
    (10**7 - 1, 1e-15, 20.0, 0.001),
    (300, 1.0001e-9, 2.0, 0.01),  # a δ at which it once ended
    (300, 1.0001e-15, 2.0, 0.01),
    (20, 1e-5, 0.30001, 0.1),  # noise at which its grid once coarsened
    (3, 1e-5, 0.020001, 0.1),  # noise at which it once ended
    (3, 1e-12, 0.010001, 0.5),
    (50, 1e-5, 1.0, 1 - 2e-12),  # a rate from which on nothing is amplified
    (1000, 1e-7, 1.0, 1e-9),
]


@pytest.mark.parametrize(("rounds", "delta", "z", "rate"), THRESHOLDS)
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("scheme", ["poisson", "fixed"])
def test_neighbours_across_every_threshold_are_within_a_tenth(
    rounds: int, delta: float, z: float, rate: float, adjacency: str, scheme: str
) -> None:
    """More rounds, a smaller δ, less noise and a larger rate cost more, and hardly so where they are hardly so."""
    start = spent(z, rate, rounds, delta, adjacency, scheme)
    closer = {
        "rounds": spent(z, rate, rounds + max(2, rounds // 1000), delta, adjacency, scheme),
        "delta": spent(z, rate, rounds, delta * 0.999, adjacency, scheme),
        "noise": spent(z * 0.999, rate, rounds, delta, adjacency, scheme),
        "rate": spent(z, min(1.0, rate * 1.001), rounds, delta, adjacency, scheme),
    }
    for name, each in closer.items():
        grown = 1 + 2 / rounds if name == "rounds" and rounds < 1000 else 1.0
        assert start * 0.999 - 2e-4 <= each <= start * 1.1 * grown + 2e-4, name


GRID = list(itertools.product((1, 10**3, 10**7), (1e-3, 1e-15), (0.02, 1.0, 50.0), (1e-6, 0.1, 1 - 1e-13)))


@pytest.mark.parametrize(("scheme", "memories"), [("poisson", False), ("fixed", False), ("fixed", True)])
def test_every_number_of_rounds_and_every_delta_has_a_finite_answer_that_grows(scheme: str, memories: bool) -> None:
    for rounds, delta, z, rate in GRID[::2] if scheme == "poisson" else GRID[1::5]:
        least, most = (spent(z, rate, rounds, delta, each, scheme, cohort_memories=memories) for each in ("zero-out", "replace-one"))
        assert 0 <= least < math.inf and least <= most * 1.03 + 1e-9
        assert most <= spent(z, 1.0, rounds, delta, "replace-one", "full") * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("trust", ["secagg", "local"])
@pytest.mark.parametrize("delta", [1e-5, 1e-15])
def test_known_participants_have_no_cliffs_either(trust: Trust, delta: float) -> None:
    for rounds, rate in ((99_999, 0.01), (10**7 - 1, 0.1), (100, 1e-6)):
        start = spent(30.0, rate, rounds, delta, trust=trust)
        for more in (spent(30.0, rate, rounds + 2, delta, trust=trust), spent(30.0, rate, rounds, 0.999 * delta, trust=trust)):
            assert start * (1 - 1e-6) <= more <= 1.1 * start + 1e-9


def test_populations_of_hundreds_of_millions_have_their_default_delta() -> None:
    found = [spent(2.0, 1e-4, 300, default_delta(clients), "replace-one", clients=clients) for clients in (10**8, 2 * 10**8)]
    assert found[0] <= found[1] <= 1.1 * found[0]


@pytest.mark.parametrize(
    ("target", "rate", "rounds", "delta", "adjacency"),
    [(8.0, 0.1, 10**7, 1e-15, "replace-one"), (1e4, 1e-4, 10**4, 1e-12, "replace-one"), (0.1, 0.01, 10**6, 1e-9, "zero-out")],
)
def test_noise_is_found_at_the_ends_too(target: float, rate: float, rounds: int, delta: float, adjacency: str) -> None:
    held = mechanism(0.0, rate, rounds, adjacency)
    z = calibrate(held, target, delta)
    at, below = (epsilon(replace(held, noise_multiplier=each), delta).epsilon for each in (z, 0.99 * z))
    assert target * 0.98 <= at <= target < below


def test_the_table_answers_ten_million_rounds() -> None:
    assert Query(noise_multiplier=5.0, rounds=10**7, rate=0.001, clients=10**6, delta=1e-15).rounds == 10**7

"""What the mechanism does, and the ε that is claimed for it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import normec
from conftest import quadratic
from normec.privacy import Central, Mechanism, SpentSoFar, affordable_rounds, calibrate, epsilon, trust_model, without_replacement
from normec.privacy.account import Account
from normec.privacy.amplified import pld, rdp
from normec.privacy.ledger import read
from normec.privacy.participation import Fixed, Full, Participation, Poisson
from normec.streams import Streams


def mechanism(noise: float, participation: Participation, rounds: int, adjacency: Any = "zero-out", clients: int = 10**6) -> Mechanism:
    return Mechanism(
        trust=Central(), adjacency=adjacency, noise_multiplier=noise, participation=participation, clients=clients, rounds=rounds
    )


@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "right"),
    [(1.84, 0.25, 300, 13.66), (10.0, 0.25, 10**4, 13.26), (0.6, 1e-4, 10**5, 0.609), (7.346, 1.0, 300, 12.27), (3.673, 0.5, 300, 12.58)],
)
def test_right_values_zero_out(noise: float, rate: float, rounds: int, right: float) -> None:
    assert epsilon(mechanism(noise, Poisson(rate), rounds), 1e-5).epsilon == pytest.approx(right, abs=6e-3 if right > 1 else 6e-4)


def test_right_value_replace_one() -> None:
    assert epsilon(mechanism(2.0, Full(), 1, "replace-one"), 1e-5).epsilon == pytest.approx(4.377, abs=5e-4)


@pytest.mark.parametrize(
    ("rate", "adjacency", "right"),
    [
        (1.0, "zero-out", 10.40), (1.0, "replace-one", 20.79), (0.5, "zero-out", 5.27),
        (0.5, "replace-one", 10.38), (0.25, "zero-out", 2.73), (0.25, "replace-one", 5.18),
    ],
)  # fmt: skip
def test_right_noise_for_epsilon_8(rate: float, adjacency: str, right: float) -> None:
    plan = mechanism(0.0, Poisson(rate), 300, adjacency)
    noise = calibrate(plan, 8.0, 1e-5)
    assert noise == pytest.approx(right, abs=6e-3)
    assert 8.0 - 1e-3 <= epsilon(replace(plan, noise_multiplier=noise), 1e-5).epsilon <= 8.0


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@example(target=2.0, rate=0.01, rounds=1, adjacency="replace-one")
@given(
    target=st.floats(0.2, 30),
    rate=st.sampled_from([0.01, 0.3, 1.0]),
    rounds=st.integers(1, 200),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
)
def test_calibration_never_gives_less_privacy_than_asked(target: float, rate: float, rounds: int, adjacency: str) -> None:
    plan = mechanism(0.0, Poisson(rate), rounds, adjacency)
    noise = calibrate(plan, target, 1e-5)
    spent = epsilon(replace(plan, noise_multiplier=noise), 1e-5).epsilon
    assert target - 2e-3 <= spent <= target


SETTINGS: dict[str, Any] = {
    "trust": st.sampled_from(["central", "local", "secagg"]),
    "adjacency": st.sampled_from(["zero-out", "replace-one"]),
    "noise": st.floats(0.4, 20),
    "rate": st.floats(0.01, 1),
    "rounds": st.integers(1, 200),
}
GENERATED = settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True)


def spent(trust: Any, adjacency: Any, noise: float, participation: Participation, rounds: int) -> float:
    return epsilon(
        Mechanism(
            trust=trust_model(trust, min_honest=3),
            adjacency=adjacency,
            noise_multiplier=noise,
            participation=participation,
            clients=1000,
            rounds=rounds,
        ),
        1e-5,
    ).epsilon


@GENERATED
@given(**SETTINGS, fixed=st.booleans(), more=st.floats(1.01, 3))
def test_epsilon_falls_with_the_noise(trust: str, adjacency: str, noise: float, rate: float, rounds: int, fixed: bool, more: float) -> None:
    part = Fixed(rate) if fixed else Poisson(rate)
    assert spent(trust, adjacency, more * noise, part, rounds) < spent(trust, adjacency, noise, part, rounds)


@GENERATED
@given(**SETTINGS, fixed=st.booleans(), more=st.integers(1, 100))
def test_epsilon_grows_with_the_rounds(trust: str, adjacency: str, noise: float, rate: float, rounds: int, fixed: bool, more: int) -> None:
    part = Fixed(rate) if fixed else Poisson(rate)
    assert (
        0
        == spent(trust, adjacency, noise, part, 0)
        < spent(trust, adjacency, noise, part, rounds)
        < spent(trust, adjacency, noise, part, rounds + more)
    )


@GENERATED
@given(**SETTINGS, more=st.floats(1.01, 3))
def test_epsilon_grows_with_the_rate(trust: str, adjacency: str, noise: float, rate: float, rounds: int, more: float) -> None:
    larger = min(1.0, rate * more)
    if larger > rate:
        assert spent(trust, adjacency, noise, Poisson(rate), rounds) < spent(trust, adjacency, noise, Poisson(larger), rounds)


def test_a_fixed_cohort_is_never_accounted_as_poisson() -> None:
    poisson, fixed, full = (epsilon(mechanism(2.0, part, 100, clients=100), 1e-5) for part in (Poisson(0.1), Fixed(0.1), Full()))
    assert full.epsilon > fixed.epsilon > poisson.epsilon
    replaced = epsilon(mechanism(2.0, Fixed(0.1), 100, "replace-one", clients=100), 1e-5)
    assert replaced.epsilon > fixed.epsilon


def test_no_pair_of_messages_tells_more_than_opposite_ones() -> None:
    """Replace-one under Poisson sampling, by brute force in two dimensions: δ(ε) of messages at any lengths and angles."""
    rng = np.random.default_rng(0)
    axis = np.linspace(-7.0, 7.0, 281)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def mixture(rate: float, noise: float, message: np.ndarray) -> np.ndarray:
        def normal(mean: np.ndarray) -> np.ndarray:
            return np.exp(-((x - mean[0]) ** 2 + (y - mean[1]) ** 2) / (2 * noise**2)) / (2 * np.pi * noise**2)

        return (1 - rate) * normal(np.zeros(2)) + rate * normal(message)

    for rate, noise, loss in itertools.product((0.1, 0.5, 0.9), (0.6, 1.2), (-0.5, 0.0, 0.3, 1.0)):
        far = np.array([1.0, 0.0])
        worst = np.maximum(mixture(rate, noise, far) - np.exp(loss) * mixture(rate, noise, -far), 0).sum() * cell
        for _ in range(6):
            angles, lengths = rng.uniform(0, 2 * np.pi, 2), rng.uniform(0, 1, 2) ** 0.5
            one, other = (length * np.array([np.cos(angle), np.sin(angle)]) for length, angle in zip(lengths, angles, strict=True))
            found = np.maximum(mixture(rate, noise, one) - np.exp(loss) * mixture(rate, noise, other), 0).sum() * cell
            assert found <= worst + 1e-6


def test_replace_one_under_sampling_has_one_number() -> None:
    """z = 2.068 for 1,000 clients at p = 0.1, 300 rounds, ε = 8, from an independent implementation."""
    plan = mechanism(2.068, Poisson(0.1), 300, "replace-one", clients=1000)
    assert epsilon(plan, 1e-5).epsilon == pytest.approx(8.0, rel=2e-3)
    run = quadratic(
        [[1.0], [2.0]], algorithm=normec.FedNormEC(), participation=normec.Poisson(0.5),
        privacy=normec.Privacy(trust="central", epsilon=2.0, adjacency="replace-one"),
    )  # fmt: skip
    assert run.summary["claim"].count("ε = ") == 1 and "epsilon_by_group_privacy" not in run.summary


def test_tiny_noise_is_answered() -> None:
    """One round at z = 0.005 loses up to about 1/(2z²) = 20,000."""
    once = epsilon(mechanism(0.005, Poisson(0.01), 1), 1e-5).epsilon
    assert 20_000 < once < epsilon(mechanism(0.005, Poisson(1.0), 1), 1e-5).epsilon
    assert once < epsilon(mechanism(0.005, Poisson(0.01), 10), 1e-5).epsilon < 10 * once


def test_spent_so_far_grows_to_the_claim() -> None:
    plan = mechanism(2.0, Poisson(0.2), 40)
    spent = SpentSoFar(plan, 1e-5)
    values = [spent.after(k) for k in range(41)]
    assert values[0] == 0 and all(np.diff(values) > 0)
    assert values[-1] == epsilon(plan, 1e-5).epsilon
    for k in (1, 7, 20):
        exact = epsilon(replace(plan, rounds=k), 1e-5).epsilon
        assert exact <= values[k] <= exact + 0.02
    assert [spent.after(k) for k in (3, 3, 3)] == [values[3]] * 3  # a pure read


def test_no_noise_is_not_private() -> None:
    assert epsilon(mechanism(0.0, Full(), 10), 1e-5).epsilon == math.inf
    run = quadratic([[1.0], [2.0]], algorithm=normec.FedNormEC(), privacy=normec.Privacy(trust="central", noise_multiplier=0.0))
    assert run.epsilon == math.inf
    assert run.summary["epsilon"] is None and run.summary["private"] is False and run.summary["claim"].startswith("Not private")
    assert run.metrics[-1]["epsilon"] is None


@pytest.mark.parametrize(("participation", "expected"), [(Full(), 40), (Poisson(0.25), 10), (Fixed(0.25), 10)])
@pytest.mark.parametrize("bound", [0.1, 1.0, 10.0])
def test_released_noise_has_the_stated_standard_deviation(participation: Participation, expected: int, bound: float) -> None:
    plan = Mechanism(trust=Central(), bound=bound, noise_multiplier=1.5, participation=participation, clients=40, rounds=10)
    zero = torch.zeros(2000, dtype=torch.float64)
    released = torch.stack([plan.release(zero, 10, (), Streams(0), k)[0] for k in range(20)])
    stated = 1.5 * bound / expected
    assert plan.noise_std / plan.expected == pytest.approx(stated)
    assert released.std().item() == pytest.approx(stated, rel=0.02)  # 40,000 draws: five standard errors
    assert abs(released.mean().item()) < 5 * stated / 200
    lagged = (released[1:] * released[:-1]).mean().item() / stated**2
    assert abs(lagged) < 0.03  # rounds are independent


@pytest.mark.parametrize("algorithm", [normec.FedNormEC(beta=0.5), normec.DPFedAvgClip(clip_norm=2.0), normec.DPFedAvgNorm(beta=0.5)])
def test_noise_of_a_run_with_zero_updates(algorithm: normec.Algorithm) -> None:
    """All updates are zero at x⁰, so that the first model is noise of the stated standard deviation alone."""
    run = quadratic(
        [np.zeros(20_000)] * 4,
        algorithm=algorithm,
        participation=normec.Poisson(0.5),
        privacy=normec.Privacy(trust="central", noise_multiplier=3.0),
        rounds=1,
    )
    x = next(run.model.parameters()).detach()
    lr = algorithm.server_lr * getattr(algorithm, "beta", 1.0)  # type: ignore[attr-defined]
    assert x.std().item() == pytest.approx(lr * 3.0 * algorithm.operator.bound / (0.5 * 4), rel=0.03)


def test_noise_is_drawn_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    from normec.privacy import noise as module

    drawn: list[tuple[int, ...]] = []
    original = module.seeded_gaussian

    def counting(shape: tuple[int, ...], *rest: Any) -> torch.Tensor:
        drawn.append(shape)
        return original(shape, *rest)

    monkeypatch.setattr(module, "seeded_gaussian", counting)
    quadratic(
        [np.zeros(5)] * 4, algorithm=normec.FedNormEC(), privacy=normec.Privacy(trust="central", noise_multiplier=1.0), rounds=6,
        participation=normec.Poisson(0.2),
    )  # fmt: skip
    assert drawn == [(5,)] * 6  # once for every coordinate, also in rounds without participants


def test_default_delta_is_below_one_over_the_clients() -> None:
    assert normec.Privacy(trust="central", epsilon=1.0).delta_for(100) == 1e-5
    assert normec.Privacy(trust="central", epsilon=1.0).delta_for(10**6) == pytest.approx(10**-6.6)
    assert normec.Privacy(trust="central", epsilon=1.0, delta=1e-3).delta_for(10**6) == 1e-3


def test_adjacency_changes_the_claim_and_never_the_noise() -> None:
    zero = torch.zeros(4000, dtype=torch.float64)
    plans = [
        Mechanism(trust=Central(), adjacency=adjacency, bound=2.0, noise_multiplier=1.5, participation=Full(), clients=10, rounds=5)
        for adjacency in ("zero-out", "replace-one")
    ]  # type: ignore[arg-type]
    assert [plan.sensitivity for plan in plans] == [2.0, 4.0]
    assert torch.equal(plans[0].release(zero, 10, (), Streams(0), 0)[0], plans[1].release(zero, 10, (), Streams(0), 0)[0])
    assert plans[0].noise_std == 3.0
    assert epsilon(plans[1], 1e-5).epsilon > 1.9 * epsilon(plans[0], 1e-5).epsilon


def test_noise_depends_on_seed_and_round_and_not_on_the_cohort() -> None:
    plan, zero = (
        Mechanism(trust=Central(), noise_multiplier=1.0, participation=Poisson(0.5), clients=50, rounds=5),
        torch.zeros(50, dtype=torch.float64),
    )
    draws = [plan.release(zero, 25, (), Streams(seed), k)[0] for seed, k in ((0, 0), (0, 1), (1, 0))]
    for i in range(3):
        for j in range(i):
            assert not torch.equal(draws[i], draws[j])
    for purpose in ("participation", "local", "shuffle-once", "partition", "test split", "model"):
        same_key = Streams(0).generator(purpose, 0).standard_normal(50) / plan.expected
        assert not np.allclose(draws[0].numpy(), same_key)


def test_a_fixed_cohort_divides_by_its_own_size() -> None:
    """0.26 of 10 clients is a cohort of 3: sum of messages over 3, and p = 0.3."""
    run = quadratic([[1.0]] * 10, algorithm=normec.DPFedAvgClip(clip_norm=100, server_lr=0.5), participation=normec.Fixed(0.26), rounds=1)
    assert next(run.model.parameters()).item() == pytest.approx(0.5)
    assert run.summary["rate"] == pytest.approx(0.3) and run.metrics[-1]["transmissions"] == 3


def test_fixed_cohorts_under_replacement_by_dp_accounting_itself() -> None:
    """Its RDP takes the noise over the distance by which one client moves the sum, which is 2 C; the tight bound is below."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, 5, dp_accounting.GaussianDpEvent(6.0 / 2)), 50)
    fixed = mechanism(6.0, Fixed(0.05), 50, "replace-one", clients=100)
    assert rdp(fixed, 1e-5).epsilon == pytest.approx(accountant.get_epsilon(1e-5))
    assert epsilon(fixed, 1e-5).epsilon < rdp(fixed, 1e-5).epsilon


@pytest.mark.parametrize(
    ("noise", "rounds", "delta"),
    [
        (75.9, 82402, 2.5e-14),
        (69.5, 79031, 7.6e-13),
        (2.0, 300, 1e-12),
        (30.5, 91724, 5e-11),
        (3.44, 2159, 1.8e-10),
        (30.5, 91724, 1e-9),
        (2.0, 300, 1e-9),
    ],
)
def test_rounding_never_makes_a_claim_too_small(noise: float, rounds: int, delta: float) -> None:
    """At a rate of almost one the closed form is the truth, which PLD's Fourier transforms would undercut at small δ."""
    almost = mechanism(noise, Poisson(1 - 1e-9), rounds, clients=20)
    truth = epsilon(mechanism(noise, Full(), rounds, clients=20), delta).epsilon
    assert pld(almost, delta).epsilon >= truth * (1 - 1e-7)
    assert epsilon(almost, delta).epsilon >= truth * (1 - 1e-7)


@pytest.mark.parametrize(("noise", "rate"), [(1e9, 0.5), (1e6, 1e-4), (5.8e7, 0.24)])
def test_very_large_noise_is_not_claimed_to_be_perfect(noise: float, rate: float) -> None:
    spent = epsilon(mechanism(noise, Poisson(rate), 1), 1e-12)
    assert spent.epsilon > 0 or spent.accountant != "RDP"


@pytest.mark.parametrize(
    ("noise", "rate", "adjacency", "right"),
    [(3.506, 0.1, "zero-out", 8.0), (14.83, 0.5, "replace-one", 8.0)],
)
def test_fixed_cohorts_with_memories_are_accounted_over_participations(noise: float, rate: float, adjacency: str, right: float) -> None:
    spent = epsilon(replace(mechanism(noise, Fixed(rate), 300, adjacency, clients=1000), cohort_memories=True), 1e-5)
    assert spent.epsilon == pytest.approx(right, abs=2e-3) and spent.accountant == "gaussian over participations"


@pytest.mark.parametrize(
    ("rate", "adjacency", "right"), [(0.1, "zero-out", 1.917), (0.1, "replace-one", 2.805), (0.5, "replace-one", 10.79)]
)
def test_fixed_cohorts_without_memories_take_the_tight_loss_without_replacement(rate: float, adjacency: str, right: float) -> None:
    plan = mechanism(0.0, Fixed(rate), 300, adjacency, clients=1000)
    noise = calibrate(plan, 8.0, 1e-5)
    assert noise == pytest.approx(right, rel=5e-4)
    assert epsilon(replace(plan, noise_multiplier=noise), 1e-5).accountant == "PLD"


@pytest.mark.parametrize(("z", "p"), [(1.0, 0.1), (3.0, 0.5), (0.4, 0.9), (0.2, 1e-3)])
def test_divergences_without_replacement_by_integration(z: float, p: float) -> None:
    """∫ max(0, P − e^ε Q), by the rectangle rule."""
    x = np.linspace(-40 * z - 2, 40 * z + 2, 400_001)

    def normal(mean: float) -> np.ndarray:
        density: np.ndarray = np.exp(-((x - mean) ** 2) / (2 * z * z)) / (z * math.sqrt(2 * math.pi))
        return density

    other, ours = (1 - p) * normal(-1), p * normal(1)
    pairs = {
        without_replacement.present: (other + ours, other + p * normal(0)),
        without_replacement.absent: ((1 - p) * normal(1) + p * normal(0), normal(1)),
        without_replacement.replaced: (other + ours, normal(-1)),
    }
    for divergence, (first, second) in pairs.items():
        for loss in (0.0, 0.1, 0.7, 3.0):
            right = float(np.maximum(first - math.exp(loss) * second, 0).sum() * (x[1] - x[0]))
            assert float(divergence(np.array([loss]), z, p)[0]) == pytest.approx(right, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_losses_without_replacement_are_those_of_everyone_at_a_rate_of_one(adjacency: str) -> None:
    almost = mechanism(2.0, Fixed(1 - 1e-6), 10, adjacency, clients=10**7)
    assert pld(almost, 1e-5).epsilon == pytest.approx(epsilon(mechanism(2.0, Full(), 10, adjacency), 1e-5).epsilon, rel=1e-4)


@pytest.mark.parametrize(("noise", "rate", "rounds"), [(4.7439, 0.1, 300), (6.0, 0.01, 1), (2.0, 0.5, 20)])
def test_zero_out_is_a_special_case_of_replacing(noise: float, rate: float, rounds: int) -> None:
    least, most = (epsilon(mechanism(noise, Fixed(rate), rounds, each, clients=1000), 1e-5).epsilon for each in ("zero-out", "replace-one"))
    assert least <= most


@pytest.mark.parametrize(("noise", "rounds", "delta", "near"), [(3.0, 100_001, 1e-6, 11.73), (2.0, 300, 0.9999e-9, 0.959)])
def test_replace_one_is_composed_at_any_number_of_rounds_and_any_delta(noise: float, rounds: int, delta: float, near: float) -> None:
    spent = epsilon(mechanism(noise, Poisson(0.01), rounds, "replace-one"), delta)
    assert spent.accountant == "PLD" and spent.epsilon == pytest.approx(near, rel=2e-3)


def test_renyi_dp_of_replacing_by_adaptive_quadrature() -> None:
    """∫ P^α Q^(1 − α) of the two mixtures, by scipy."""
    from scipy.integrate import quad
    from scipy.stats import norm

    from normec.privacy.amplified import _divergence

    def mixture(x: float, sign: int, z: float, p: float) -> float:
        return float(np.logaddexp(math.log(1 - p) + norm.logpdf(x, 0, z), math.log(p) + norm.logpdf(x, sign, z)))

    for z, p, order in ((1.5, 0.2, 3.0), (0.6, 0.01, 8.0), (4.0, 0.7, 1.5)):

        def integrand(x: float, z: float = z, p: float = p, order: float = order) -> float:
            return math.exp(order * mixture(x, 1, z, p) + (1 - order) * mixture(x, -1, z, p))

        end = 2 * order + 12 * z
        whole = quad(integrand, -end, end, limit=500, epsabs=0, epsrel=1e-10)[0]
        assert _divergence(z, p, order) == pytest.approx(math.log(whole) / (order - 1), rel=1e-6)


@pytest.mark.parametrize(("adjacency", "distance"), [("zero-out", 1), ("replace-one", 2)])
def test_the_noise_of_an_epsilon_near_zero_is_that_of_the_total_variation(adjacency: str, distance: int) -> None:
    """Of one round at rate p: p (2 Φ(1 / 2z) − 1), which is δ at ε = 0; with several rounds the answer comes within seconds."""
    import time

    from scipy.stats import norm

    from normec.privacy.table import Query, rows

    found = rows(Query(epsilon=1e-9, delta=0.2, rate=0.5, rounds=1, adjacency=adjacency))[0]
    right = distance / (2 * norm.ppf((1 + 0.2 / 0.5) / 2))
    assert right * (1 - 1e-6) <= found["noise_multiplier"] <= right * (1 + 5e-3)
    start = time.process_time()
    rows(Query(epsilon=1e-9, delta=0.5, adjacency=adjacency))
    assert time.process_time() - start < 10


EXTREMES: list[tuple[dict[str, Any], float | None]] = [
    ({"rate": 1e-9, "noise_multiplier": 0.3, "adjacency": "replace-one"}, None), ({"epsilon": 1e4, "rate": 1e-9}, 1e-6),
    ({"noise_multiplier": 1e9, "scheme": "fixed", "rate": 0.1, "adjacency": "replace-one"}, None),
    ({"epsilon": 100.0, "rate": 0.9999999999999999, "rounds": 2, "delta": 1e-9}, 0.150227), ({"epsilon": 8.0, "rate": 1e-9, "delta": 0.5}, 1e-6),
    ({"noise_multiplier": 0.0, "client_limit": 8.0}, None), ({"noise_multiplier": 1e-9, "client_limit": 1e-9, "delta": 0.9}, None),
    ({"noise_multiplier": 1e-6, "rate": 0.5, "rounds": 10**6, "adjacency": "replace-one"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("choices", "noise"), EXTREMES)
def test_extreme_settings_are_answered(choices: dict[str, Any], noise: float | None) -> None:
    """Each within seconds: these once took minutes, or failed."""
    import time

    from normec.privacy.table import Query, rows

    start = time.process_time()
    found = rows(Query(**choices))[0]
    assert time.process_time() - start < 10
    assert noise is None or found["noise_multiplier"] == pytest.approx(noise, rel=1e-5)
    if choices.get("noise_multiplier", 1.0) < 1e-6:
        assert found["epsilon"] is None
    else:
        assert found["epsilon"] >= 0


def test_a_limit_without_noise_is_refused() -> None:
    with pytest.raises(normec.BadInput, match=r"client_limit=8 does not allow a client a single round"):
        quadratic(
            [[1.0], [2.0]], algorithm=normec.FedNormEC(), privacy=normec.Privacy(trust="local", noise_multiplier=0.0, client_limit=8.0)
        )


@pytest.mark.parametrize("rounds", [1, 7, 60])
def test_affordable_rounds_are_the_largest_number_that_fits(rounds: int) -> None:
    plan = mechanism(2.0, Poisson(0.2), 100)
    limit = epsilon(replace(plan, rounds=rounds), 1e-5).epsilon * (1 + 1e-9)
    assert affordable_rounds(plan, limit, 1e-5) == rounds
    assert affordable_rounds(plan, 1e-6, 1e-5) == 0 and affordable_rounds(plan, 1e3, 1e-5) == 100


def test_a_printed_noise_multiplier_keeps_its_epsilon() -> None:
    from normec.privacy.promise import rounded_up

    assert [rounded_up(noise) for noise in (1.2860001, 1.286, 0.0, 1e9, 9.99999)] == ["1.2861", "1.286", "0", "1e+09", "10"]


class First(normec.Poisson):
    """Takes part in every round, and says that it was drawn at `rate`."""

    def cohort(self, clients: int, k: int, streams: Streams) -> np.ndarray:
        return np.arange(clients) < self.rate * clients


@pytest.mark.parametrize("trust", ["central", "local"])
def test_cohorts_of_ones_own_are_not_amplified(trust: Any) -> None:
    """A client may be in all 100 rounds: Gaussian composition, √100 / 20 standard deviations."""
    own = Mechanism(trust=trust_model(trust), noise_multiplier=20.0, participation=First(0.1), clients=100, rounds=100)
    assert epsilon(own, 1e-5).epsilon == pytest.approx(epsilon(replace(own, participation=Full()), 1e-5).epsilon, rel=1e-6)


def test_a_subclass_of_privacy_is_refused() -> None:
    class Loose(normec.Privacy):
        """Promises something else."""

    with pytest.raises(normec.BadInput, match="privacy is a Loose"):
        quadratic([[1.0], [2.0]], algorithm=normec.FedNormEC(), privacy=Loose(trust="none"))


@pytest.mark.parametrize(
    ("algorithm", "follows"), [(normec.FedNormEC(), False), (normec.FedNormEC(lazy=True), True), (normec.Clip21(), True)]
)
def test_fixed_cohorts_are_not_amplified_for_memories_that_move_only_in_them(
    algorithm: normec.Algorithm, follows: bool, tmp_path: Path
) -> None:
    """The bounds without replacement suppose messages that depend on no secret cohort; its claim is smaller."""
    privacy = normec.Privacy(trust="central", noise_multiplier=6.0, delta=1e-5)
    run = quadratic(
        [[1.0]] * 50, algorithm=algorithm, participation=normec.Fixed(0.06), privacy=privacy, rounds=5, out=tmp_path,
        evaluation=normec.Evaluation(samples=5),
    )  # fmt: skip
    assert run.summary["accountant"] == ("gaussian over participations" if follows else "PLD")
    plain = Mechanism(trust=Central(), noise_multiplier=6.0, participation=Fixed(0.06), clients=50, rounds=5)
    assert run.epsilon == epsilon(replace(plain, cohort_memories=follows), 1e-5).epsilon
    assert Account.of(read(tmp_path / "ledger.jsonl")).spent.epsilon == run.epsilon
    if follows:
        assert run.epsilon > epsilon(plain, 1e-5).epsilon

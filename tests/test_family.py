"""Every algorithm against a recursion written from its paper: four clients, three rounds, float64, 1e-12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import normec
from conftest import Point, checkpoint_of, half_square, quadratic, x_of
from normec.algorithms import REGISTRY
from normec.streams import Streams

SEED, ROUNDS, GAMMA, M, D = 5, 3, 0.6, 4, 3
SIZES = (1, 2, 3, 5)
DATA = [np.random.default_rng(i).normal(size=(n, D)) * 3 for i, n in enumerate(SIZES)]
"""f_i(x) = mean_j ½‖x − a_ij‖²; with one sample a step, client i takes as many local steps as it has samples."""
Array = np.ndarray
State = dict[str, Any]
Recursion = Callable[[State, list[int], float, int], None]
"""Moves a state {x, …} by one round with a cohort, its rate p, in round k."""


def local_model(x: Array, a: Array, correction: Array | float = 0.0, mu: float = 0.0) -> Array:
    y = x
    for row in a:
        y = y - GAMMA / len(a) * (y - row + correction + mu * (y - x))
    return y


def g(x: Array, i: int) -> Array:
    return (x - local_model(x, DATA[i])) / GAMMA


def gradient(x: Array, i: int) -> Array:
    return x - DATA[i].mean(axis=0)


def clip(u: Array, bound: float) -> Array:
    return u * min(1.0, bound / float(np.linalg.norm(u)))


def smooth(u: Array, alpha: float) -> Array:
    return u / (alpha + np.linalg.norm(u))


def top(u: Array, k: int) -> Array:
    return np.where(np.abs(u) >= np.sort(np.abs(u))[-k], u, 0.0)


def rand_k(u: Array, k: int, round: int, i: int) -> Array:
    draws = Streams(SEED).generator("compressor", round, i).random(D)
    return np.where(draws >= np.sort(draws)[-k], u, 0.0)


def natural(u: Array, round: int, i: int) -> Array:
    draws = Streams(SEED).generator("compressor", round, i).random(D)
    low = 2.0 ** np.floor(np.log2(np.abs(u)))
    return 8 / 9 * np.sign(u) * np.where(draws < np.abs(u) / low - 1, 2 * low, low)


def averaging(message: Callable[[Array, int], Array], eta: float) -> Recursion:
    def step(s: State, cohort: list[int], p: float, k: int) -> None:
        s["x"] = s["x"] - eta * sum((message(s["x"], i) for i in cohort), np.zeros(D)) / (p * M)

    return step


def error_feedback(
    operator: Callable[[Array, int, int], Array], eta: float, step: float = 1.0, mu: float = 1.0, what: Callable[[Array, int], Array] = g
) -> Recursion:
    """EF21: only the cohort moves."""

    def move(s: State, cohort: list[int], p: float, k: int) -> None:
        for i in cohort:
            s["m"][i] = (1 - mu) * s["m"][i] + mu * what(s["x"], i)
            delta = operator(s["m"][i] - s["v"][i], k, i)
            s["v"][i] = s["v"][i] + step * delta
            s["v_hat"] = s["v_hat"] + step * delta / M
        s["x"] = s["x"] - eta * s["v_hat"]

    return move


def normec_step(alpha: float, beta: float, eta: float, what: Callable[[Array, int], Array], normalize: bool) -> Recursion:
    """Algorithm 1: everybody moves, the cohort's messages count 1/p."""

    def move(s: State, cohort: list[int], p: float, k: int) -> None:
        for i in range(M):
            delta = smooth(what(s["x"], i) - s["v"][i], alpha)
            s["v"][i] = s["v"][i] + beta * delta
            s["v_hat"] = s["v_hat"] + (beta / M * delta / p if i in cohort else 0.0)
        s["x"] = s["x"] - eta * (s["v_hat"] / np.linalg.norm(s["v_hat"]) if normalize else s["v_hat"])

    return move


def ef14(s: State, cohort: list[int], p: float, k: int) -> None:
    x = s["x"]
    for i in cohort:
        wanted = 0.3 * g(x, i) + 0.3 * s["v"][i]  # the stepsize inside, as in the paper, whose memory is 0.3 times ours
        sent = top(wanted, 1)
        s["v"][i] = (wanted - sent) / 0.3
        s["x"] = s["x"] - sent / (p * M)


def scaffold(bound: float) -> Recursion:
    """Karimireddy et al. 2020, Algorithm 1 with Option II: η_l = γ / K_i, K_i local steps, η_g = 0.5."""

    def move(s: State, cohort: list[int], p: float, k: int) -> None:
        x, c, models, changes = s["x"], s["v_hat"], [], []
        for i in cohort:
            own_steps = len(DATA[i])
            y = local_model(x, DATA[i], correction=c - s["v"][i])
            c_plus = s["v"][i] - c + (x - y) / (own_steps * GAMMA / own_steps)
            change = clip(c_plus - s["v"][i], bound)
            models.append(-GAMMA * (change + c))  # y − x, where nothing is clipped
            changes.append(change)
            s["v"][i] = s["v"][i] + change
        s["x"] = x + 0.5 * np.mean(models, axis=0)
        s["v_hat"] = c + np.sum(changes, axis=0) / M

    return move


HALF, FIXED = normec.Poisson(0.5), normec.Fixed(0.5)
ONE_GRADIENT = normec.GD(steps=1, lr=GAMMA)
CASES: dict[str, tuple[normec.Algorithm, Recursion, Any]] = {
    "fedavg": (normec.FedAvg(server_lr=0.7), averaging(lambda x, i: x - local_model(x, DATA[i]), 0.7), HALF),
    "fedprox": (normec.FedProx(server_lr=0.7, prox=0.4), averaging(lambda x, i: x - local_model(x, DATA[i], mu=0.4), 0.7), HALF),
    "dp-fedavg-clip": (normec.DPFedAvgClip(clip_norm=0.7, server_lr=0.5), averaging(lambda x, i: clip(g(x, i), 0.7), 0.5), HALF),
    "dp-fedavg-norm": (
        normec.DPFedAvgNorm(alpha=0.3, beta=0.25, server_lr=0.5, on="update"),
        averaging(lambda x, i: 0.25 * smooth(x - local_model(x, DATA[i]), 0.3), 0.5),
        HALF,
    ),
    "dp-normfedavg": (normec.DPNormFedAvg(server_lr=0.5), averaging(lambda x, i: smooth(g(x, i), 0.0), 0.5), HALF),
    "dp-sgd": (normec.DPSGD(clip_norm=0.7, server_lr=0.5), averaging(lambda x, i: clip(gradient(x, i), 0.7), 0.5), HALF),
    "clip21": (normec.Clip21(clip_norm=0.7, server_lr=0.5), error_feedback(lambda u, k, i: clip(u, 0.7), 0.5), HALF),
    "clip21-sgd2m": (
        normec.Clip21SGD2M(clip_norm=0.7, momentum=0.3, server_momentum=0.6, server_lr=0.5),
        error_feedback(lambda u, k, i: clip(u, 0.7), 0.5, step=0.6, mu=0.3),
        HALF,
    ),
    "ef21": (normec.EF21(k=1, server_lr=0.5), error_feedback(lambda u, k, i: top(u, 1), 0.5), HALF),
    "ef21-sgdm": (
        normec.EF21SGDM(compressor="rand-k", k=2, momentum=0.3, server_lr=0.5),
        error_feedback(lambda u, k, i: rand_k(u, 2, k, i), 0.5, mu=0.3),
        HALF,
    ),
    "ef14": (normec.EF14(k=1, server_lr=0.3), ef14, HALF),
    "fed-normec": (normec.FedNormEC(alpha=0.2, beta=0.5, server_lr=0.3), normec_step(0.2, 0.5, 0.3, g, normalize=False), HALF),
    "alpha-normec": (
        normec.AlphaNormEC(alpha=0.2, beta=0.5, server_lr=0.3), normec_step(0.2, 0.5, 0.3, gradient, normalize=True), normec.Full(),
    ),
    "scaffold": (normec.Scaffold(server_lr=0.5 * GAMMA), scaffold(np.inf), FIXED),
    "dp-scaffold": (normec.DPScaffold(clip_norm=0.9, server_lr=0.5 * GAMMA), scaffold(0.9), FIXED),
}  # fmt: skip
MORE: dict[str, tuple[normec.Algorithm, Recursion, Any]] = {
    "fed-normec lazy": (
        normec.FedNormEC(alpha=0.2, beta=0.5, server_lr=0.3, lazy=True), error_feedback(lambda u, k, i: smooth(u, 0.2), 0.3, step=0.5), HALF,
    ),
    "ef21 natural": (normec.EF21(compressor="natural", server_lr=0.5), error_feedback(natural, 0.5), HALF),
    "dp-fedavg-clip on updates": (
        normec.DPFedAvgClip(clip_norm=0.7, server_lr=0.5, on="update"), averaging(lambda x, i: clip(x - local_model(x, DATA[i]), 0.7), 0.5), HALF,
    ),
}  # fmt: skip


def cohort_of(participation: Any, k: int) -> list[int]:
    return np.flatnonzero(participation.cohort(M, k, Streams(SEED))).tolist()


def run_of(algorithm: normec.Algorithm, participation: Any, **choices: Any) -> normec.Run:
    local = ONE_GRADIENT if algorithm.one_gradient else normec.IG(steps=1, lr=GAMMA, batch_size=1)
    return quadratic(DATA, algorithm=algorithm, participation=participation, local=local, rounds=ROUNDS, seed=SEED, **choices)


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_three_rounds(name: str, tmp_path: Any) -> None:
    algorithm, recursion, participation = (CASES | MORE)[name]
    state: State = {"x": np.zeros(D), "v": np.zeros((M, D)), "m": np.zeros((M, D)), "v_hat": np.zeros(D)}
    for k in range(ROUNDS):
        recursion(state, cohort_of(participation, k), 1.0 if isinstance(participation, normec.Full) else 0.5, k)
    run = run_of(algorithm, participation, out=tmp_path / "run")
    np.testing.assert_allclose(x_of(run), state["x"], rtol=1e-12, atol=1e-12)
    saved = checkpoint_of(run)
    for slot in algorithm.client_slots:
        np.testing.assert_allclose(saved[f"memory.{slot}"], state["m" if slot == "m" else "v"], rtol=1e-12, atol=1e-12)
    for slot in algorithm.server_slots:
        np.testing.assert_allclose(saved[f"server.{slot}"], state["v_hat"], rtol=1e-12, atol=1e-12)


def test_every_algorithm_has_a_right_answer() -> None:
    shipped = {name for name, kind in REGISTRY.items() if kind.__module__.startswith("normec.")}
    assert shipped == set(CASES)


def test_cohorts_of_these_tests_are_partial() -> None:
    for participation in (HALF, FIXED):
        sizes = [len(cohort_of(participation, k)) for k in range(ROUNDS)]
        assert 0 < max(sizes) < M


@pytest.mark.parametrize("algorithm", [normec.Scaffold(server_lr=0.3), normec.DPScaffold(clip_norm=0.5, server_lr=0.3)])
@pytest.mark.parametrize("participation", [normec.Full(), FIXED, HALF])
def test_scaffold_keeps_the_mean_of_the_variates(algorithm: normec.Algorithm, participation: Any, tmp_path: Any) -> None:
    saved = checkpoint_of(run_of(algorithm, participation, out=tmp_path / "run"))
    np.testing.assert_allclose(saved["server.c_hat"], saved["memory.c"].mean(axis=0), rtol=1e-12, atol=1e-14)
    assert np.abs(saved["memory.c"]).max() > 0.1


@pytest.mark.parametrize(
    "algorithm",
    [
        normec.Clip21(clip_norm=1e20, server_lr=0.4), normec.Clip21SGD2M(clip_norm=1e20, momentum=1.0, server_momentum=1.0, server_lr=0.4),
        normec.EF21(k=D, server_lr=0.4), normec.EF21SGDM(k=D, momentum=1.0, server_lr=0.4), normec.EF14(k=D, server_lr=0.4),
        normec.DPSGD(clip_norm=1e20, server_lr=0.4), normec.DPFedAvgClip(clip_norm=1e20, server_lr=0.4), normec.Scaffold(server_lr=0.4),
        normec.DPScaffold(clip_norm=1e20, server_lr=0.4), normec.FedAvg(on="gradient", server_lr=0.4),
        normec.FedNormEC(alpha=1e15, beta=1e15, server_lr=0.4),
    ],
    ids=lambda algorithm: algorithm.name,
)  # fmt: skip
def test_exact_operators_give_gradient_descent(algorithm: normec.Algorithm) -> None:
    """Clip21 with C → ∞ and its relatives, for 20 rounds of one local step: x ← x − η ∇f(x)."""
    mean = np.mean([a.mean(axis=0) for a in DATA], axis=0)
    run = quadratic(DATA, algorithm=algorithm, local=ONE_GRADIENT, rounds=20)
    np.testing.assert_allclose(x_of(run), mean - mean * 0.6**20, rtol=1e-11)


def test_scaffold_finds_the_minimiser_where_fedavg_drifts() -> None:
    """Quadratics of different curvature: samples at ±a widen nothing, so that curvature comes from the features' scale."""
    clients = [(np.array([[1.0]]), np.array([4.0])), (np.array([[3.0]]), np.array([-2.0]))]
    choices: dict[str, Any] = {
        "model": lambda: __import__("torch").nn.Linear(1, 1, bias=False), "loss": lambda out, y: 0.5 * (out[:, 0] - y).square().mean(),
        "data": normec.Federation.from_clients(clients), "participation": normec.Full(), "privacy": normec.Privacy(trust="none"),
        "local": normec.GD(steps=5, lr=0.4), "rounds": 600, "engine": normec.Engine(dtype="float64", eval_every=600),
    }  # fmt: skip
    best = (1.0 * 4.0 + 3.0 * -2.0) / (1.0 + 9.0)
    drifted = x_of(normec.train(algorithm=normec.FedAvg(), **choices))
    corrected = x_of(normec.train(algorithm=normec.Scaffold(server_lr=0.1), **choices))
    assert abs(drifted[0] - best) > 0.1
    np.testing.assert_allclose(corrected, [best], atol=1e-9)


@pytest.mark.parametrize(
    "algorithm",
    [normec.FedNormEC(alpha=1.0, beta=0.2, server_lr=0.1), normec.Clip21(clip_norm=1.0, server_lr=0.1)],
    ids=lambda algorithm: algorithm.name,
)
def test_clipping_stalls_where_error_feedback_converges(algorithm: normec.Algorithm) -> None:
    """Zhang et al. 2022, Claim 2.1: two clients pulling one way and one far on the other side; clipping weighs them alike."""
    centres = [[0.0], [0.0], [9.0]]
    clipped = quadratic(centres, algorithm=normec.DPFedAvgClip(clip_norm=1.0, server_lr=0.1), rounds=3000)
    corrected = quadratic(centres, algorithm=algorithm, rounds=3000)
    assert abs(x_of(clipped)[0] - 3.0) > 2.0
    assert abs(x_of(corrected)[0] - 3.0) < 1e-6


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        (normec.EF21(k=2), 2 * 8, 4 * D), (normec.EF14(compressor="rand-k", k=1), 8, 4 * D), (normec.EF21(compressor="natural"), 4, 4 * D),
        (normec.Scaffold(), 4 * D, 8 * D), (normec.FedAvg(), 4 * D, 4 * D),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)  # fmt: skip
def test_bytes_of_messages(algorithm: normec.Algorithm, up: int, down: int) -> None:
    """A kept coordinate is a value and an index of 4 bytes each; natural compression takes 9 bits a coordinate, here 27."""
    row = run_of(algorithm, normec.Full()).metrics[-1]
    assert row["transmissions"] == 12
    assert (row["bytes_up"], row["bytes_down"]) == (12 * up, 12 * down)


def test_unbounded_messages_are_refused_with_privacy() -> None:
    for algorithm in (normec.FedAvg(), normec.FedProx(), normec.Scaffold(), normec.EF21(k=1), normec.EF21SGDM(k=1), normec.EF14(k=1)):
        with pytest.raises(normec.BadInput, match=f"algorithm.name='{algorithm.name}' bounds no message"):
            run_of(algorithm, HALF, privacy=normec.Privacy(trust="central", epsilon=1.0))


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(normec.BadInput, match=r"algorithm\.k=4 is more than the model's 3 parameters"):
        run_of(normec.EF21(k=4), HALF)
    for local in (normec.GD(steps=2), normec.IG(steps=1)):
        with pytest.raises(normec.BadInput, match=r"local\.steps=\d .* dp-sgd takes one gradient per round"):
            quadratic(DATA, algorithm=normec.DPSGD(), local=local)


def test_server_momentum_and_adam() -> None:
    """Reddi et al. 2020, Algorithm 2, and FedAvgM, on the mean of the gradients."""
    mean = np.mean([a.mean(axis=0) for a in DATA], axis=0)
    algorithm = normec.FedAvg(on="gradient", server_lr=0.3)
    x, m = np.zeros(D), np.zeros(D)
    for _ in range(4):
        m = 0.8 * m + (x - mean)
        x = x - 0.3 * m
    run = quadratic(DATA, algorithm=algorithm, local=ONE_GRADIENT, rounds=4, server=normec.ServerMomentum(momentum=0.8))
    np.testing.assert_allclose(x_of(run), x, rtol=1e-12)
    x, m, v = np.zeros(D), np.zeros(D), np.full(D, 0.1**2)
    for _ in range(4):
        m = 0.7 * m + 0.3 * (x - mean)
        v = 0.9 * v + 0.1 * (x - mean) ** 2
        x = x - 0.3 * m / (np.sqrt(v) + 0.1)
    run = quadratic(DATA, algorithm=algorithm, local=ONE_GRADIENT, rounds=4, server=normec.ServerAdam(beta1=0.7, beta2=0.9, tau=0.1))
    np.testing.assert_allclose(x_of(run), x, rtol=1e-12)
    assert "the server optimizer adam" in run.summary["convergence"]


def test_server_steps_resume_exactly(tmp_path: Any) -> None:
    from conftest import FailsAt

    choices: dict[str, Any] = {
        "algorithm": normec.Scaffold(server_lr=0.1), "server": normec.ServerAdam(), "participation": HALF, "rounds": 8,
        "local": normec.IG(steps=1, lr=GAMMA, batch_size=1), "seed": SEED,
    }  # fmt: skip
    with pytest.raises(OSError, match="stopped"):
        quadratic(DATA, **choices, out=tmp_path / "a", observer=FailsAt(5))
    resumed = quadratic(DATA, **choices, out=tmp_path / "a", resume=True)
    np.testing.assert_array_equal(x_of(resumed), x_of(quadratic(DATA, **choices)))


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("participation", [normec.Full(), normec.Fixed(0.5)])
@pytest.mark.parametrize(
    "algorithm", [normec.Scaffold(server_lr=0.3), normec.DPScaffold(clip_norm=50, server_lr=0.3)], ids=lambda a: a.name
)
def test_scaffold_with_a_client_that_holds_nothing(algorithm: normec.Algorithm, participation: Any, backend: Any) -> None:
    """f_i = 0 for it, so that f has its minimiser at the mean of the others' centres, and its variate stays zero."""
    clients = [([[4.0]], [0]), ([[-1.0]], [0]), ([[3.0]], [0]), (np.zeros((0, 1)), np.zeros(0))]
    run = normec.train(
        model=Point, data=normec.Federation.from_clients(clients, classes=["a"]), algorithm=algorithm, local=normec.GD(steps=2, lr=0.5),
        participation=participation, privacy=normec.Privacy(trust="none"), rounds=400, loss=half_square,
        engine=normec.Engine(dtype="float64", backend=backend, eval_every=400),
    )  # fmt: skip
    np.testing.assert_allclose(x_of(run), [2.0], atol=1e-9)


def test_bytes_of_natural_compression_are_nine_bits_a_coordinate() -> None:
    from normec.operators import Natural

    assert Natural().message_bytes(800) == 900 and Natural().message_bytes(1) == 2


def test_statistics_of_a_round() -> None:
    """memory_error is the largest ‖g_i − v_i‖, bounded_share the share of clients whose message the bound shortened."""
    centres = [[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [6.0, 8.0]]
    row = quadratic(centres, algorithm=normec.Clip21(clip_norm=1.0), rounds=1).metrics[1]["simulation_only"]
    assert row["memory_error"] == pytest.approx(10.0) and row["bounded_share"] == 0.5
    assert row["update_norm_max"] == pytest.approx(10.0) and row["update_norm_mean"] == pytest.approx((5 + 0.5 + 0 + 10) / 4)


def test_the_plain_step_is_the_default() -> None:
    from normec.config import resolve

    assert resolve(None, []).server.optimizer == "sgd"
    run = quadratic([[2.0]], algorithm=normec.FedAvg(on="gradient", server_lr=0.25), rounds=2)
    np.testing.assert_allclose(x_of(run), [2 * (1 - 0.75**2)])


def test_a_name_is_taken_by_one_class() -> None:
    with pytest.raises(normec.BadInput, match="'clip21' is already registered"):

        @normec.register("clip21")
        class Clip21(normec.Algorithm):
            pass

    assert REGISTRY["clip21"] is normec.Clip21

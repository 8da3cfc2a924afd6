"""The audit: seven faults of a mechanism are flagged, a healthy one is not, whatever the algorithm and the trust model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normec
import normec.engine.clients
import normec.privacy.noise
import normec.runs.loop
from normec.algorithms import REGISTRY, Descent
from normec.algorithms.base import ClientStep, client_step
from normec.audit.canaries import Canaries
from normec.audit.judge import judge
from normec.audit.run import Audit, prepare_audit
from normec.audit.verdict import Verdict
from normec.contract.small_runs import StopsAfter
from normec.errors import BadInput, NormecError
from normec.operators import Clipping, Operator
from normec.privacy import Mechanism, SecAgg
from normec.privacy.noise import seeded_gaussian
from normec.report.page import Shown, write
from normec.runs.experiment import Experiment, Schedule
from normec.runs.folder import RunFolder
from normec.runs.record import Record
from normec.runs.recorder import Recorder
from normec.streams import Streams

D, CLIENTS, ROUNDS = 600, 40, 300
LAZY = normec.FedNormEC(beta=0.01, server_lr=0.1, lazy=True)


CENTRAL = normec.Privacy(trust="central", noise_multiplier=1.0)
LOCAL = normec.Privacy(trust="local", noise_multiplier=0.5)
SECAGG = normec.Privacy(trust="secagg", noise_multiplier=0.5, min_honest=5)


class Point(nn.Module):
    """A model that is its own parameters, in four tensors of equal size."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(input_shape[0] // 4)) for _ in range(4))

    def forward(self, a: Tensor) -> Tensor:
        return torch.cat(list(self.parts)) - a


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * outputs.square().sum(1).mean()


def experiment(algorithm: normec.Algorithm = LAZY, seed: int = 1, **changes: Any) -> Experiment:
    centres = np.random.default_rng(7).uniform(-2, 2, (CLIENTS, D)).astype(np.float32)
    settings: dict[str, Any] = {
        "model": Point,
        "data": normec.Federation.from_arrays(centres, np.zeros(CLIENTS), np.arange(CLIENTS)),
        "algorithm": algorithm,
        "local": normec.GD(steps=1, lr=0.5),
        "participation": normec.Poisson(rate=0.25),
        "privacy": normec.Privacy(trust="central", noise_multiplier=1.0),
        "schedule": Schedule(rounds=ROUNDS, seed=seed),
        "loss": half_square,
        "engine": normec.Engine(eval_every=ROUNDS, checkpoint_every=ROUNDS),
    }
    return Experiment(**settings | changes)


def verdict(chosen: Experiment) -> Verdict:
    audit = prepare_audit(chosen, Audit())
    audit.execute()
    found, _ = audit.verdict()
    return found


def scaled_noise(factor: float) -> Callable[[pytest.MonkeyPatch], None]:
    def break_it(patch: pytest.MonkeyPatch) -> None:
        gaussian = normec.privacy.noise.seeded_gaussian
        patch.setattr(normec.privacy.noise, "seeded_gaussian", lambda shape, std, *rest: gaussian(shape, factor * std, *rest))

    return break_it


def rate_on_the_message_alone(patch: pytest.MonkeyPatch) -> None:
    noised = Mechanism.noised
    patch.setattr(Mechanism, "noised", lambda self, total, *rest: noised(self, total / self.rate, *rest))


def bounded_by(bound: Callable[[Tensor], Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """In the engine alone, so that the audit still recomputes messages by what was declared."""

    def break_it(patch: pytest.MonkeyPatch) -> None:
        def step(algorithm: Any, update: Tensor, memory: Any, context: Any, norms: Any = None) -> ClientStep:
            right = client_step(algorithm, update, memory, context, norms)
            message = bound(right.residual)
            return right._replace(message=message, memory=(memory[0] + algorithm.memory_step * message,))

        patch.setattr(normec.engine.clients, "client_step", step)

    return break_it


def resync_after(due: Callable[[int], bool]) -> Callable[[pytest.MonkeyPatch], None]:
    """The server's estimate becomes the mean of the memories after the rounds that are due."""
    whole = Recorder.round

    def wrong(self: Recorder, state: Any, *rest: Any) -> None:
        whole(self, state, *rest)
        if due(state.rounds_done):
            (v,) = state.memory.read(np.arange(CLIENTS + 20))
            state.server = state.server._replace(slots=(v.mean(0),))

    return lambda patch: patch.setattr(Recorder, "round", wrong)


def the_same_stream(patch: pytest.MonkeyPatch) -> None:
    gaussian = normec.privacy.noise.seeded_gaussian
    patch.setattr(normec.privacy.noise, "seeded_gaussian", lambda shape, std, streams, k, device: gaussian(shape, std, streams, 0, device))


def a_model_without_noise(patch: pytest.MonkeyPatch) -> None:
    """The server keeps a noisy estimate, and steps along a clean one."""
    clean: list[Tensor] = []
    noised, server = Mechanism.noised, type(LAZY).server

    def remember(self: Mechanism, total: Tensor, *rest: Any) -> Any:
        clean.append(total / self.expected)
        return noised(self, total, *rest)

    def step(self: Any, state: Any, mean: Tensor, rate: float) -> Any:
        direction, after = server(self, state, mean, rate)
        if not clean:  # the audit's own call
            return direction, after
        return server(self, state, clean.pop().to(mean.dtype), rate)[0], after

    patch.setattr(Mechanism, "noised", remember)
    patch.setattr(type(LAZY), "server", step)


def in_the_sum(wrong: Callable[[np.ndarray], np.ndarray]) -> Callable[[pytest.MonkeyPatch], None]:
    """Other clients transmit than those that were drawn. wrong: of the mask of the cohort."""
    block = normec.engine.clients.Clients._block

    def break_it(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            normec.engine.clients.Clients,
            "_block",
            lambda self, model, x, server, clients, cohort, k: block(self, model, x, server, clients, wrong(cohort), k),
        )

    return break_it


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "noise x 0.9": scaled_noise(0.9),
    "noise x 0.5": scaled_noise(0.5),
    "1/p on the message alone": rate_on_the_message_alone,
    "no bound": bounded_by(lambda residual: residual),
    "bound per tensor": bounded_by(lambda residual: torch.cat([LAZY.operator(part) for part in residual.split(D // 4, 1)], 1)),
    "resync every 25 rounds": resync_after(lambda rounds: rounds % 25 == 0),
    "the same noise in each round": the_same_stream,
    "no noise": scaled_noise(0.0),
    "a model without noise": a_model_without_noise,
}
FLAGGED_BY = {
    "noise x 0.9": "noise multiplier",
    "noise x 0.5": "noise multiplier",
    "1/p on the message alone": "noise multiplier",
    "no bound": "lengths of messages",
    "bound per tensor": "noise multiplier",
    "resync every 25 rounds": "sum of all rounds",
    "the same noise in each round": "noise from round to round",
    "no noise": "noise multiplier",
    "a model without noise": "states",
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_flagged_by_the_test_that_is_for_it(fault: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    found = verdict(experiment(seed=seed))
    assert FLAGGED_BY[fault] in {test.name for test in found.tests if test.flagged}


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_mechanism_is_not_flagged_and_its_lower_bound_is_below_the_claim(seed: int) -> None:
    found = verdict(experiment(seed=seed))
    assert not found.flagged
    assert 0.5 * found.claimed < found.lower_bound < found.claimed
    assert found.final_lower_bound < found.claimed
    assert found.signal[0] == pytest.approx(1, abs=0.1)
    assert found.noise[0] == pytest.approx(1, abs=0.03)


def other_noise(change: Callable[[Tensor, int, float], Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """change: of a round's noise (d,), the round, and the standard deviation."""
    gaussian = normec.privacy.noise.seeded_gaussian

    def break_it(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            normec.privacy.noise,
            "seeded_gaussian",
            lambda shape, std, streams, k, device: change(gaussian(shape, std, streams, k, device), k, std),
        )

    return break_it


def another_std(wrong: Callable[[Mechanism], float]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(Mechanism, "std_of_sum", lambda self, participants: wrong(self))


def on_parts(*factors: float) -> Callable[[Tensor, int, float], Tensor]:
    return lambda noise, k, std: torch.cat([factor * part for factor, part in zip(factors, noise.chunk(len(factors)), strict=True)])


def laplace(noise: Tensor, k: int, std: float) -> Tensor:
    return torch.from_numpy(np.random.default_rng(k).laplace(0, std / np.sqrt(2), len(noise)))


def honest_messages_longer(patch: pytest.MonkeyPatch) -> None:
    """And not those of canaries, which are a million times as long before they are bounded."""
    bounded_by(lambda residual: LAZY.operator(residual) * torch.where(residual.norm(dim=1) < 1e4, 1.2, 1.0)[:, None])(patch)


def one_client_five_times(patch: pytest.MonkeyPatch) -> None:
    block = normec.engine.clients.Clients._block

    def wrong(self: Any, model: Any, x: Tensor, server: Any, clients: np.ndarray, cohort: np.ndarray, k: int) -> Any:
        if 3 not in clients or not cohort[3]:
            return block(self, model, x, server, clients, cohort, k)
        held = self.memory.read(np.array([3]))[0].clone()
        found = block(self, model, x, server, clients, cohort, k)
        sent = (self.memory.read(np.array([3]))[0] - held)[0].double() / LAZY.memory_step
        found.total.add_(4 * sent)
        return found

    patch.setattr(normec.engine.clients.Clients, "_block", wrong)


def twice_the_rate(patch: pytest.MonkeyPatch) -> None:
    cohort = normec.Poisson.cohort
    patch.setattr(normec.Poisson, "cohort", lambda self, clients, k, streams: cohort(normec.Poisson(2 * self.rate), clients, k, streams))


def always_the_same(patch: pytest.MonkeyPatch) -> None:
    cohort = normec.Fixed.cohort
    patch.setattr(normec.Fixed, "cohort", lambda self, clients, k, streams: cohort(self, clients, 0, streams))


def unbounded_where_short(patch: pytest.MonkeyPatch) -> None:
    clip = Clipping.__call__
    patch.setattr(
        Clipping, "__call__", lambda self, rows, *rest: torch.where(rows.norm(dim=1)[:, None] < 100, rows, clip(self, rows, *rest))
    )


def fixed_as_poisson(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(normec.Poisson, "cohort", lambda self, clients, k, streams: normec.Fixed(self.rate).cohort(clients, k, streams))


def by_turns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(normec.Poisson, "cohort", lambda self, clients, k, streams: (np.arange(clients) + k) % 4 == 0)


def each_cohort_twice(patch: pytest.MonkeyPatch) -> None:
    cohort = normec.Poisson.cohort
    patch.setattr(normec.Poisson, "cohort", lambda self, clients, k, streams: cohort(self, clients, k // 2, streams))


def no_noise_along_the_sum(patch: pytest.MonkeyPatch) -> None:
    noised = Mechanism.noised

    def wrong(self: Mechanism, total: Tensor, *rest: Any) -> Any:
        (released, state), unit = noised(self, total, *rest), total / total.norm()
        noise = released - total
        return total + noise - (noise @ unit) * unit, state

    patch.setattr(Mechanism, "noised", wrong)


def honest_messages_doubled_or_lost(patch: pytest.MonkeyPatch) -> None:
    coins = torch.Generator().manual_seed(1)

    def bound(residual: Tensor) -> Tensor:
        factor = 2.0 * (torch.rand(len(residual), generator=coins) < 0.5)
        return LAZY.operator(residual) * torch.where(residual.norm(dim=1) < 1e4, factor, 1.0)[:, None]

    bounded_by(bound)(patch)


def a_hint_of_the_clean_sum(patch: pytest.MonkeyPatch) -> None:
    noised, step, clean = Mechanism.noised, Descent.step, list[Tensor]()

    def remember(self: Mechanism, total: Tensor, *rest: Any) -> Any:
        clean.append(total / total.norm())
        return noised(self, total, *rest)

    def hint(self: Descent, x: Tensor, direction: Tensor, lr: float, slots: Any) -> Any:
        more = 3e-4 * direction.norm() * clean.pop().to(x) if clean else 0.0
        return step(self, x, direction + more, lr, slots)

    patch.setattr(Mechanism, "noised", remember)
    patch.setattr(Descent, "step", hint)


def a_start_from_data(patch: pytest.MonkeyPatch) -> None:
    start = normec.runs.loop._start

    def wrong(plan: Any, ranks: Any) -> Any:
        state = start(plan, ranks)
        state.server.x.add_(0.01 * plan.federation.x[3])
        return state

    patch.setattr(normec.runs.loop, "_start", wrong)


def another_model_in_the_end(patch: pytest.MonkeyPatch) -> None:
    finish = Recorder.finish

    def wrong(self: Recorder, state: Any) -> Any:
        state.server = state.server._replace(x=state.server.x - 0.01 * self.plan.federation.x[3])
        return finish(self, state)

    patch.setattr(Recorder, "finish", wrong)


SUBTLE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, dict[str, Any]]] = {
    "a tenth of the noise, by the mechanism's own word": (another_std(lambda it: it.noise_std / 10), "noise multiplier", {}),
    "each participant's noise too small, local": (another_std(lambda it: it.noise_std), "noise multiplier", {"privacy": LOCAL}),
    "each participant's noise too small, secagg": (another_std(lambda it: it.noise_std), "noise multiplier", {"privacy": SECAGG}),
    "one round without noise": (other_noise(lambda noise, k, std: noise * (k != 50)), "noise of each round", {}),
    "noise in every second round": (other_noise(lambda noise, k, std: noise * (k % 2) * 2**0.5), "noise of each round", {}),
    "noise on a quarter": (other_noise(on_parts(2.0, 0.0, 0.0, 0.0)), "noise of each coordinate", {}),
    "half of the noise twice": (other_noise(lambda noise, k, std: noise[: D // 2].repeat(2)), "noise within a round", {}),
    "a quarter of the noise four times": (other_noise(lambda noise, k, std: noise[: D // 4].repeat(4)), "noise within a round", {}),
    "signs": (other_noise(lambda noise, k, std: noise.sign() * std), "shape of the noise", {}),
    "laplace": (other_noise(laplace), "shape of the noise", {}),
    "rounds that undo each other": (
        other_noise(lambda noise, k, std: (1 - 2 * (k >= 50)) * seeded_gaussian((D,), std, Streams(5), k % 50, noise.device)),
        "noise of any two rounds",
        {},
    ),
    "one resync": (resync_after(lambda rounds: rounds == 10), "noise of each round", {}),
    "honest messages 1.2 times as long": (honest_messages_longer, "messages together", {}),
    "one client's messages five times as long": (one_client_five_times, "messages of each client", {}),
    "honest clients in the sum that sat out": (
        in_the_sum(lambda cohort: np.where(np.arange(len(cohort)) < CLIENTS, True, cohort)),
        "absent clients",
        {"algorithm": normec.FedNormEC(beta=0.01, server_lr=0.1)},
    ),
    "twice the rate": (twice_the_rate, "participation", {}),
    "the same cohort": (always_the_same, "participation of each client", {"participation": normec.Fixed(rate=0.25)}),
    "a fixed number of clients": (fixed_as_poisson, "sizes of cohorts", {}),
    "clients by turns": (by_turns, "cohorts from round to round", {}),
    "each cohort twice": (each_cohort_twice, "cohorts from round to round", {}),
    "no noise along the sum": (no_noise_along_the_sum, "messages together", {}),
    "honest messages doubled or lost": (honest_messages_doubled_or_lost, "messages of each client", {}),
    "a hint of the clean sum in the model": (a_hint_of_the_clean_sum, "states", {}),
    "a start from data": (a_start_from_data, "states", {}),
    "a resync after the last round": (resync_after(lambda rounds: rounds == 100), "states", {}),
    "another model in the end": (another_model_in_the_end, "states", {}),
    "no bound on short updates": (unbounded_where_short, "lengths of messages", {"algorithm": normec.Clip21(clip_norm=0.01)}),
}


@pytest.mark.parametrize("fault", SUBTLE)
def test_a_subtle_fault_is_flagged_by_the_test_that_is_for_it(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, name, changes = SUBTLE[fault]
    break_it(monkeypatch)
    found = verdict(experiment(**{"schedule": Schedule(rounds=100, seed=1)} | changes))
    assert name in {test.name for test in found.tests if test.flagged}


def test_clients_that_sat_out_are_found_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_sum(np.ones_like)(monkeypatch)
    whole = normec.FedNormEC(beta=0.01, server_lr=0.1)
    found = verdict(experiment(whole, privacy=normec.Privacy(trust="central", noise_multiplier=4.0), schedule=Schedule(rounds=100, seed=1)))
    assert "absent canaries" in {test.name for test in found.tests if test.flagged}


def test_a_sum_that_should_have_been_given_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecAgg, "gives_up", lambda self, participants: False)
    found = verdict(experiment(privacy=SECAGG.model_copy(update={"min_honest": 18}), schedule=Schedule(rounds=40, seed=1)))
    assert "states" in {test.name for test in found.tests if test.flagged}


def test_messages_a_little_too_long_are_found_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded_by(lambda residual: 1.06 * LAZY.operator(residual))(monkeypatch)
    found = verdict(experiment(privacy=normec.Privacy(trust="central", noise_multiplier=0.05), schedule=Schedule(rounds=20, seed=1)))
    assert "noise multiplier" in {test.name for test in found.tests if test.flagged}


@pytest.mark.parametrize("rate", [0.02, 0.05])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_healthy_run_with_few_participants_is_not_flagged(rate: float, adjacency: Any) -> None:
    privacy = normec.Privacy(trust="central", noise_multiplier=1.0, adjacency=adjacency)
    found = verdict(experiment(participation=normec.Poisson(rate), privacy=privacy, schedule=Schedule(rounds=60, seed=1)))
    assert not found.flagged, [test for test in found.tests if test.flagged]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_power_of_the_audit() -> None:
    """Each fault in at least 19 of 20 runs, the healthy mechanism in at most 2 of 100."""
    counts = {}
    for fault, break_it in FAULTS.items():
        with pytest.MonkeyPatch.context() as patch:
            break_it(patch)
            counts[fault] = sum(verdict(experiment(seed=100 + seed)).flagged for seed in range(20))
    counts["none"] = sum(verdict(experiment(seed=200 + seed)).flagged for seed in range(100))
    print(json.dumps(counts, indent=1))
    assert all(flagged >= 19 for fault, flagged in counts.items() if fault != "none")
    assert counts["none"] <= 2


PRIVATE = [
    name for name in sorted(REGISTRY) if REGISTRY[name].__module__.startswith("normec.") and REGISTRY[name]().operator.bound < np.inf
]
COMBINATIONS: list[dict[str, Any]] = [
    {"privacy": CENTRAL, "engine": normec.Engine(eval_every=ROUNDS, backend="vmap")},
    {"privacy": LOCAL, "engine": normec.Engine(eval_every=ROUNDS, backend="loop", workers=2)},
    {"privacy": SECAGG, "participation": normec.Fixed(rate=0.25)},
    {"privacy": CENTRAL, "participation": normec.Full(), "server": normec.ServerMomentum(momentum=0.5)},
    {"privacy": LOCAL.model_copy(update={"noise": "secure"}), "server": normec.ServerAdam()},
]


@pytest.mark.parametrize("name", PRIVATE)
def test_each_private_algorithm_passes_as_shipped(name: str) -> None:
    combination = COMBINATIONS[PRIVATE.index(name) % len(COMBINATIONS)]
    found = verdict(experiment(REGISTRY[name](), schedule=Schedule(rounds=120, seed=4), **combination))
    assert not found.flagged, [test for test in found.tests if test.flagged]


@pytest.mark.parametrize("combination", range(len(COMBINATIONS)))
def test_full_participation_of_memories_passes_under_every_trust_model(combination: int) -> None:
    whole = normec.FedNormEC(beta=0.01, server_lr=0.1, server_normalize=True)
    found = verdict(experiment(whole, schedule=Schedule(rounds=120, seed=4), **COMBINATIONS[combination]))
    assert not found.flagged, [test for test in found.tests if test.flagged]


def test_an_interrupted_and_resumed_run_gives_the_same_verdict(tmp_path: Path) -> None:
    short = Schedule(rounds=40, seed=3)
    engine = normec.Engine(eval_every=40, checkpoint_every=7)
    whole, halves = (prepare_audit(experiment(schedule=short, engine=engine), Audit(resumable=True)) for _ in range(2))
    whole.execute()
    with pytest.raises(InterruptedError):
        halves.execute(RunFolder(tmp_path / "run").open(resume=False), StopsAfter(16))
    halves.execute(RunFolder(tmp_path / "run").open(resume=True))
    assert halves.verdict()[0] == whole.verdict()[0]


def test_directions_are_orthonormal_and_a_function_of_the_seed() -> None:
    first, again, other = (Canaries.draw(5, 40, seed) for seed in (1, 1, 2))
    both = torch.cat([first.directions, first.held_out])
    torch.testing.assert_close(both @ both.T, torch.eye(10, dtype=torch.float64))
    assert torch.equal(first.directions, again.directions) and not torch.equal(first.directions, other.directions)


@pytest.mark.parametrize(
    ("changes", "canaries", "said"),
    [
        ({"privacy": normec.Privacy(trust="none")}, 20, "privacy.trust='none' promises nothing that could be audited"),
        ({"privacy": CENTRAL.model_copy(update={"noise_multiplier": 0.0})}, 20, "privacy.noise_multiplier=0 promises nothing"),
        ({}, 1, "canaries=1 must be a whole number from 2 to 1000000"),
        ({"schedule": Schedule(rounds=1)}, 20, "rounds=1: an audit compares rounds"),
        ({"algorithm": normec.FedNormEC(alpha=1e30)}, 20, "algorithm.name='fed-normec': the longest canary that float32 holds sends 1e-05"),
        ({"privacy": SECAGG.model_copy(update={"min_honest": 40})}, 20, "privacy.min_honest=40 gives up most rounds"),
        (
            {"privacy": CENTRAL.model_copy(update={"stop_at": 3.0}), "schedule": Schedule(rounds=9)},
            20,
            "privacy.stop_at=3 leaves one round",
        ),
        ({}, 400, "canaries=400 need 800 directions, and the model has 600 parameters. Use at most 300."),
    ],
)
def test_what_cannot_be_audited_is_refused_before_training(changes: dict[str, Any], canaries: int, said: str) -> None:
    with pytest.raises(BadInput) as error:
        prepare_audit(experiment(**changes), Audit(canaries=canaries))
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("size", [3, 3000])
def test_clients_may_be_called_canaries_and_hold_any_number_of_samples(size: int) -> None:
    rng = np.random.default_rng(1)
    ids = [f"canary-{i % 12:02d}" for i in range(12)] + ["canary-00"] * (size - 1)
    data = normec.Federation.from_arrays(rng.uniform(-1, 1, (len(ids), D)).astype(np.float32), np.zeros(len(ids)), ids)
    prepared = prepare_audit(experiment(data=data, schedule=Schedule(rounds=30, seed=1)), Audit())
    prepared.execute()
    assert len(set(prepared.plan.federation.ids)) == 12 + 20
    assert not prepared.verdict()[0].flagged


class Sign(normec.FedNormEC):
    """The server's vector tells only the signs of what was released."""

    def server(self, state: Any, mean: Tensor, rate: float) -> Any:
        return mean.sign(), (state[0] + mean.sign(),)


class Counter(normec.FedNormEC):
    """The first vector of the server counts rounds, the second is as ever."""

    server_slots = ("rounds", "v_hat")

    def server(self, state: Any, mean: Tensor, rate: float) -> Any:
        direction, after = super().server(state[1:], mean, rate)
        return direction, (state[0] + 1, *after)


class Drawn(normec.DPFedAvgClip):
    """Draws its messages at random."""

    def client(self, update: Tensor, memory: Any, context: Any) -> ClientStep:
        step = super().client(update, memory, context)
        return step._replace(message=step.message * context.uniform())


@pytest.mark.parametrize("kind", [Sign, Drawn])
def test_an_algorithm_whose_releases_or_messages_cannot_be_known_is_refused_before_training(kind: Any) -> None:
    with pytest.raises(BadInput, match=r"algorithm\.name='(fed-normec|dp-fedavg-clip)'.* Audit another algorithm"):
        prepare_audit(experiment(kind()), Audit())


class Slow(Operator):
    """g ↦ g / (1e5 + ‖g‖): half of its bound at 1e5."""

    bound = 1.0

    def __call__(self, rows: Tensor, uniform: Any = None) -> Tensor:
        return rows / (1e5 + rows.norm(dim=1, keepdim=True))


class Stated(Slow):
    threshold = 1e5


@pytest.mark.parametrize(("shape", "reach"), [(Slow(), "0.909"), (Stated(), None)])
def test_the_operator_states_how_long_a_canary_is(shape: Operator, reach: str | None) -> None:
    """1e6 / (1e5 + 1e6) = 0.909 of the bound, where it does not; whatever `alpha` an algorithm has, which may mean anything."""

    class Own(normec.FedAvg):
        alpha: float = 1e5

        @property
        def operator(self) -> Any:
            return shape

    chosen = experiment(Own(on="gradient"))
    if reach is None:
        prepare_audit(chosen, Audit())
        return
    with pytest.raises(BadInput, match=rf"sends {reach} of the bound 1, and would show nothing\. .* state its `threshold`"):
        prepare_audit(chosen, Audit())


def test_releases_are_recovered_from_whichever_vector_shows_them() -> None:
    found = verdict(experiment(Counter(beta=0.01, server_lr=0.1, lazy=True), schedule=Schedule(rounds=60, seed=1)))
    assert not found.flagged and found.signal[0] == pytest.approx(1, abs=0.2)


def test_what_is_not_a_number_is_flagged() -> None:
    prepared = prepare_audit(experiment(schedule=Schedule(rounds=5, seed=1)), Audit())
    prepared.execute()
    _, evidence = prepared.verdict()
    odd = evidence.rounds[2]._replace(
        **{name: np.full_like(getattr(evidence.rounds[2], name), np.nan) for name in ("canaries", "held_out")}
    )
    odd = odd._replace(noise=np.full_like(odd.noise, np.nan), energy=float("nan"), projection=np.full_like(odd.projection, np.nan))
    spoiled = replace(evidence, rounds=(*evidence.rounds[:2], odd), departure=float("nan"), longest=float("nan"))
    flagged = {test.name for test in judge(spoiled, prepared.audited.mechanism, 1e-5).tests if test.flagged}
    names = {"noise multiplier", "noise off the canaries", "sum of all rounds", "lengths of messages", "states", "messages of each client"}
    assert names | {"noise of each round", "noise of each coordinate", "noise of any two rounds", "shape of the noise"} <= flagged


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": normec.DPFedAvgClip(clip_norm=1.0), "participation": normec.Full(), "clients": 2000, "noise_multiplier": 0.05},
        {"algorithm": normec.Clip21(clip_norm=1e18, server_lr=1e-18)},
        {"algorithm": normec.Clip21(clip_norm=1e-20)},
        {"algorithm": normec.FedNormEC(alpha=1e-30, beta=1e-6, server_lr=1e-8)},
    ],
)
def test_rounding_is_not_taken_for_a_fault(changes: dict[str, Any]) -> None:
    """2,000 messages in one direction, each a hundred-thousandth short of its bound; and numbers of any size."""
    clients, noise = changes.pop("clients", CLIENTS), changes.pop("noise_multiplier", 1.0)
    centres = np.tile(np.random.default_rng(3).uniform(1, 2, (1, 48)), (clients, 1)).astype(np.float32)
    data = normec.Federation.from_arrays(centres, np.zeros(clients), np.arange(clients))
    privacy = normec.Privacy(trust="central", noise_multiplier=noise)
    chosen = experiment(data=data, privacy=privacy, schedule=Schedule(rounds=60, seed=1), **changes)
    found = verdict(chosen)
    assert not found.flagged, [test for test in found.tests if test.flagged]


def test_noise_that_rounding_hides_is_no_verdict() -> None:
    tiny = normec.Privacy(trust="central", noise_multiplier=2e-6)
    prepared = prepare_audit(experiment(privacy=tiny, schedule=Schedule(rounds=20, seed=1)), Audit())
    prepared.execute()
    with pytest.raises(NormecError, match=r"rounding is about .* Use engine\.dtype=float64"):
        prepared.verdict()


def audited(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "normec", "audit", *arguments], capture_output=True, text=True, timeout=200)


def test_the_command_says_what_it_found_and_the_report_shows_it(tmp_path: Path) -> None:
    done = audited("rounds=20", "--canaries", "8", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "8 canary clients, as many held-out directions, 20 rounds with a release" in done.stdout
    assert "claimed: ε = 8.000" in done.stdout and "no test is flagged" in done.stdout
    found = json.loads((tmp_path / "run" / "audit.json").read_text())
    assert not found["flagged"] and found["lower_bound"] < found["claimed"]
    counts = found["histograms"]["counts"]
    assert sum(counts["held-out directions"]) == 8 * 20 == sum(counts["canaries that took part"]) + sum(counts["canaries that did not"])
    page = write(Shown.read([tmp_path / "run"]))
    assert "no test is flagged" in page and "sum of all rounds" in page
    assert 'id="h-audits"' not in write(Shown({"plain": replace(Record.read(tmp_path / "run"), audit=None)}))


def test_a_flagged_audit_ends_with_exit_code_3(tmp_path: Path) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(
        "import sys, normec.privacy.noise as m\n"
        "right = m.seeded_gaussian\n"
        "m.seeded_gaussian = lambda shape, std, *rest: right(shape, 0.5 * std, *rest)\n"
        "from normec.cli import main\n"
        f"sys.argv = ['normec', 'audit', 'rounds=20', '--json', '--out', {str(tmp_path / 'run')!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert found["flagged"] and found["noise"][0] == pytest.approx(0.5, abs=0.05)
    page = write(Shown.read([tmp_path / "run"]))
    assert "the mechanism that ran is not the one that was accounted" in page
    assert "this claim does not hold" in page and "It holds against whoever sees the models" not in page
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["claim"].startswith("Its audit is FLAGGED")


def test_an_interrupted_audit_says_that_it_starts_again_and_is_shown_without_a_verdict(tmp_path: Path, command: Any) -> None:
    arguments = [sys.executable, "-m", "normec", "audit", "rounds=100000", "privacy.noise_multiplier=1", "--out", str(tmp_path / "run")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as going:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while going.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 3):
            time.sleep(0.05)
        going.send_signal(signal.SIGINT)
        _, said = going.communicate(timeout=100)
    assert going.returncode == 130 and said.endswith("interrupted; an audit cannot be resumed: start it again, in another folder\n")
    page = write(Shown.read([tmp_path / "run"]))
    assert "there is no verdict" in page and 'id="h-audits"' not in page
    for arguments in (["train", "--resume"], ["audit"]):
        outcome = command(*arguments, "--out", str(tmp_path / "run"))
        assert outcome.code == 2 and "holds a" in outcome.err and "another folder" in outcome.err


def test_an_audit_under_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch, command: Any) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = command("audit")
    assert outcome.code == 2 and outcome.err.startswith("normec: torchrun starts several processes, and an audit follows one.")


def test_a_configuration_without_a_promise_is_refused_by_the_command() -> None:
    done = audited("privacy.trust=none")
    assert done.returncode == 2
    assert done.stderr.startswith("normec: privacy.trust='none' promises nothing that could be audited")

"""Local steps on noised sums: a recursion written out step by step, empty mini-batches, and clients that share blocks or do not."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import normec
from normec.engine.loop import Task
from normec.engine.record_steps import RecordSteps
from normec.engine.records import BoundedSum, choose_way
from normec.local import LocalMethod
from normec.models import FlatModel, LocalSteps
from normec.operators import Clipping, Radial, SmoothedNormalization
from normec.runs.experiment import Experiment, Schedule, prepare
from normec.runs.loop import execute
from normec.streams import Streams

CPU = torch.device("cpu")
SIZES = (9, 0, 1, 4, 30, 9, 17)


class Pulled(nn.Module):
    """A model with a penalty, which no noise or bound reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)))

    def penalty(self) -> Tensor:
        return 0.7 * self.inner.weight.square().sum()


class Window(nn.Module):
    """A convolution over the five features."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv1d(1, 2, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.convolution(x[:, None])).flatten(1))


class States(nn.Module):
    """A recurrent network over the five features."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x[..., None])[0][:, -1])


def stack() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def noise(client: int, k: int, step: int, d: int) -> Tensor:
    """What the tests add to a sum."""
    return 0.1 * torch.from_numpy(np.random.default_rng([client, k, step]).normal(size=d))


def noised(total: Tensor, client: int, k: int, step: int) -> Tensor:
    return total + noise(client, k, step, len(total))


def flat(module: nn.Module, dtype: torch.dtype = torch.float64, loss: Any = functional.cross_entropy) -> FlatModel:
    return FlatModel(module, loss, CPU, dtype)


def tasks_of(local: LocalMethod, model: FlatModel, corrected: bool = False, k: int = 3) -> list[Task]:
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for client, size in enumerate(SIZES):
        features = torch.randn(size, 5, dtype=torch.float64, generator=generator).to(model.vector.dtype)
        samples = features, torch.randint(3, (size,), generator=generator)
        correction = torch.randn(model.d, dtype=torch.float64, generator=generator).to(model.vector.dtype) if corrected else None
        steps = LocalSteps(0.6, correction, 0.4 if corrected else 0.0, local.divisor(size))
        tasks.append(
            Task(f"client {client}", client, samples, local.schedule(size, k, client, Streams(2)), steps, lambda client=client: client)
        )
    return tasks


def updated(model: FlatModel, x: Tensor, tasks: list[Task], operator: Radial, add: Callable[..., Tensor] = noised) -> Tensor:
    """The updates (G, d) of the backend."""
    held = next(task.samples for task in tasks if len(task.samples[1]) > 3)
    backend = RecordSteps(choose_way(model, (held[0][:4], held[1][:4]), operator), operator, add)
    out = torch.full((len(tasks), model.d), torch.nan, dtype=model.vector.dtype)
    assert not backend.updates(model, x, tasks, 3, out, torch.empty(len(tasks), 0))
    return out


def expected(
    model: FlatModel, x: Tensor, tasks: list[Task], operator: Radial, weight: Callable[[int], float] = lambda target: 1.0
) -> Tensor:
    """y ← y − (γ/T) ((Σ_r κ(∇ℓ_r(y)) + noise) / (q n_i or |B|) + ∇penalty(y) + correction + μ (y − x)), and g = (x − y) / γ."""
    module = copy.deepcopy(model.module)
    parameters = list(module.parameters())

    def gradient(value: Tensor) -> Tensor:
        return torch.cat([each.reshape(-1) for each in torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)])

    updates = []
    for task in tasks:
        y, (features, targets) = x.clone(), task.samples
        for step, batch in enumerate(task.schedule):
            nn.utils.vector_to_parameters(y, parameters)
            total = noise(task.position, 3, step, len(x))
            records = np.arange(len(targets))[batch]
            for record in records:
                own = gradient(functional.cross_entropy(module(features[record][None]), targets[record][None]))
                norm = float(own.norm())
                factor = min(1.0, operator.bound / norm) if isinstance(operator, Clipping) else 1 / (operator.alpha + norm)  # type: ignore[attr-defined]
                total += weight(int(targets[record])) * factor * own
            direction = total / (task.steps.divisor or len(records)) + task.steps.proximal * (y - x)
            if hasattr(module, "penalty"):
                direction += gradient(module.penalty())  # type: ignore[operator]
            if task.steps.correction is not None:
                direction += task.steps.correction
            y -= task.steps.lr / len(task.schedule) * direction
        nothing = torch.zeros_like(x) if task.steps.correction is None else task.steps.correction
        updates.append((x - y) / task.steps.lr if len(task.schedule) else nothing)
    return torch.stack(updates)


METHODS = [
    normec.PoissonBatches(steps=5, rate=0.15), normec.PoissonBatches(steps=2, rate=1.0), normec.GD(steps=3), normec.RR(steps=2, batch_size=4),
    normec.SGD(steps=3, batch_size=5),
]  # fmt: skip


@pytest.mark.parametrize("module", [stack, normalized, Window, States, Pulled])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("local", METHODS, ids=lambda local: local.method)
def test_the_steps_are_those_of_the_recursion(module: Callable[[], nn.Module], corrected: bool, local: LocalMethod) -> None:
    torch.manual_seed(1)
    model = flat(module())
    x, tasks = model.vector.clone(), tasks_of(local, model, corrected)
    if local.method == "poisson" and local.rate < 1:  # type: ignore[attr-defined]
        assert {0, 1, 2} <= {len(batch) for task in tasks for batch in task.schedule}
    for operator in (Clipping(0.8), SmoothedNormalization(0.05)):
        torch.testing.assert_close(updated(model, x, tasks, operator), expected(model, x, tasks, operator), rtol=1e-9, atol=1e-12)


def test_class_weights_act_on_the_bounded_gradients() -> None:
    """In a batch of one a weighted mean is the plain one; so each record's bounded gradient counts by its class's weight."""
    torch.manual_seed(1)
    weights = torch.tensor([1.0, 4.0, 2.0])
    model = flat(normalized(), loss=nn.CrossEntropyLoss(weight=weights))
    x, tasks = model.vector.clone(), tasks_of(METHODS[0], model)
    found = updated(model, x, tasks, SmoothedNormalization(0.05))
    reference = expected(model, x, tasks, SmoothedNormalization(0.05), weight=lambda target: float(weights[target]) / 4)
    torch.testing.assert_close(found, reference, rtol=1e-7, atol=1e-9)  # the weights are float32
    features, targets = (part.clone() for part in tasks[4].samples)
    targets[:] = -100  # which the loss leaves out: its own mean of nothing is NaN
    assert not updated(model, x, [tasks[4]._replace(samples=(features, targets))], Clipping(0.8), lambda total, *where: total).any()


def test_every_step_is_noised_once_with_its_whole_sum() -> None:
    """Also empty ones; nothing is cut off from large mini-batches."""
    torch.manual_seed(1)
    model = flat(stack())
    x, tasks = model.vector.clone(), tasks_of(normec.PoissonBatches(steps=4, rate=0.3), model)
    seen: dict[tuple[int, int, int], Tensor] = {}

    def watch(total: Tensor, client: int, k: int, step: int) -> Tensor:
        assert (client, k, step) not in seen and total.dtype == torch.float64
        seen[client, k, step] = total.clone()
        return torch.zeros_like(total)  # so that y stays at x

    updated(model, x, tasks, Clipping(0.8), watch)
    assert set(seen) == {(task.position, 3, step) for task in tasks if len(task.samples[1]) for step in range(4)}
    sums = BoundedSum(model, Clipping(0.8), choose_way(model, (tasks[0].samples[0][:4], tasks[0].samples[1][:4]), Clipping(0.8)))
    most = 0
    for (client, _, step), total in seen.items():
        batch, (features, targets) = tasks[client].schedule[step], tasks[client].samples
        each = [sums(x[None], features[r][None, None], targets[r][None, None], torch.ones(1, 1))[0] for r in batch]
        torch.testing.assert_close(total, torch.stack(each).sum(0) if each else torch.zeros_like(x), rtol=1e-9, atol=1e-12)
        most = max(most, len(each))
    assert most > 12 and not all(bool(total.any()) for total in seen.values())


@pytest.mark.parametrize("module", [stack, normalized, Window, Pulled, dropping])
@pytest.mark.parametrize("local", METHODS[:4], ids=lambda local: local.method)
def test_an_update_is_the_same_to_rounding_beside_any_other_clients(module: Callable[[], nn.Module], local: LocalMethod) -> None:
    """So that it does not depend on how many workers and processes share the clients."""
    torch.manual_seed(1)
    model = flat(module(), torch.float32)
    model.stochastic = module is dropping
    x, tasks = model.vector.clone(), tasks_of(local, model, corrected=True)
    together = updated(model, x, tasks, Clipping(0.8))
    assert bool(together.isfinite().all())
    for rows in ([0, 2, 4, 6], [1, 3, 5], [6, 4], [4], [5]):
        choice = choose_way(model, (tasks[0].samples[0][:4], tasks[0].samples[1][:4]), Clipping(0.8))
        out = torch.empty(len(rows), model.d)
        RecordSteps(choice, Clipping(0.8), noised).updates(model, x, [tasks[row] for row in rows], 3, out, torch.empty(len(rows), 0))
        torch.testing.assert_close(out, together[rows], rtol=1e-5, atol=1e-5)  # torch's batched products round by where rows lie


def test_dropout_draws_anew_in_each_step_and_is_keyed_by_the_client() -> None:
    torch.manual_seed(1)
    model = flat(dropping())
    model.stochastic = True
    x, tasks = model.vector.clone(), tasks_of(normec.GD(steps=2), model)

    def first(task: Task) -> list[Tensor]:
        totals: list[Tensor] = []
        updated(model, x, [task], Clipping(0.8), lambda total, *where: totals.append(total.clone()) or 0 * total)
        return totals

    one, again = first(tasks[4]), first(tasks[4])
    assert torch.equal(one[0], again[0]) and torch.equal(one[1], again[1])
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], first(tasks[4]._replace(seed=lambda: 99))[0])


def test_a_failing_record_leaves_its_client_and_the_others() -> None:
    """With NaN among its features, or a target beyond the classes: as if it were not in any mini-batch, for the same divisor."""
    torch.manual_seed(1)
    model = flat(stack())
    x, tasks = model.vector.clone(), tasks_of(normec.GD(steps=3), model)
    tasks[4] = tasks[4]._replace(steps=tasks[4].steps._replace(divisor=30.0))
    without = [task._replace(schedule=[np.delete(np.arange(30), 6)] * 3) if task.position == 4 else task for task in tasks]
    reference = updated(model, x, without, Clipping(0.8))
    for spoil in (lambda x, y: x[6].fill_(torch.nan), lambda x, y: y[6].fill_(8)):
        features, targets = (part.clone() for part in tasks[4].samples)
        spoil(features, targets)
        found = updated(model, x, [*tasks[:4], tasks[4]._replace(samples=(features, targets)), *tasks[5:]], Clipping(0.8))
        torch.testing.assert_close(found, reference, rtol=1e-10, atol=1e-13)


def test_a_penalty_that_fails_at_one_client_is_told_of_that_client() -> None:
    class Strict(Pulled):
        def penalty(self) -> Tensor:
            if float(self.inner.weight.detach().abs().max()) > 1e3:
                raise ArithmeticError("too far")
            return super().penalty()

    torch.manual_seed(1)
    model = flat(Strict())
    tasks = tasks_of(normec.GD(steps=2), model)
    choice = choose_way(model, (tasks[0].samples[0][:4], tasks[0].samples[1][:4]), Clipping(0.8))
    far = RecordSteps(choice, Clipping(0.8), lambda total, client, k, step: total + (1e5 if client == 4 else 0.0))
    out = torch.empty(len(tasks), model.d, dtype=torch.float64)
    failures = far.updates(model, model.vector.clone(), tasks, 3, out, torch.empty(len(tasks), 0))
    assert list(failures) == [4] and isinstance(failures[4], ArithmeticError)
    assert bool(out[4].isnan().all()) and bool(out[[0, 1, 2, 3, 5, 6]].isfinite().all())


@pytest.mark.parametrize("module", [stack, normalized, Window, States, Pulled, dropping])
def test_every_tensor_takes_the_models_device(module: Callable[[], nn.Module]) -> None:
    """A tensor made without a device would fall on torch's default one: with `meta` for that, it could not be computed with."""
    torch.manual_seed(1)
    model = flat(module())
    model.stochastic = module is dropping
    x, tasks = model.vector.clone(), tasks_of(METHODS[0], model, corrected=True)
    here = updated(model, x, tasks, Clipping(0.8))
    choice = choose_way(model, (tasks[0].samples[0][:4], tasks[0].samples[1][:4]), Clipping(0.8))
    there = torch.empty_like(here)
    with torch.device("meta"):
        RecordSteps(choice, Clipping(0.8), noised).updates(model, x, tasks, 3, there, torch.empty(len(tasks), 0))
    assert torch.equal(here, there)


@pytest.mark.parametrize("module", [stack, Window])
def test_a_run_is_bit_equal_for_any_number_of_workers(module: Callable[[], nn.Module]) -> None:
    generator = np.random.default_rng(0)
    clients = [(generator.normal(size=(n, 5)), generator.integers(0, 3, n)) for n in SIZES * 7]
    runs = []
    for workers in (1, 3):
        plan = prepare(
            Experiment(
                model=module,
                data=normec.Federation.from_clients(clients, classes=["a", "b", "c"]),
                algorithm=normec.FedNormEC(beta=0.2),
                local=normec.PoissonBatches(steps=3, rate=0.2),
                participation=normec.Poisson(0.7),
                privacy=normec.Privacy(trust="none"),
                schedule=Schedule(rounds=3),
                engine=normec.Engine(eval_every=100, workers=workers),
            )
        )
        samples = plan.federation.x[:8], plan.federation.y[:8]
        backend = RecordSteps(choose_way(plan.model, samples, Clipping(0.8)), Clipping(0.8), noised)
        backend.most_rows = 4  # several blocks, in each round of their own clients
        runs.append(execute(dataclasses.replace(plan, backend=backend)))
    one, several = (torch.cat([p.detach().reshape(-1) for p in run.model.parameters()]) for run in runs)
    assert torch.equal(one, several)

"""Local methods: schedules, and the updates they give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import normec
from conftest import Point, half_square, quadratic, x_of
from normec.config import resolve
from normec.local import METHODS, LocalMethod
from normec.streams import Streams

PLAIN = normec.DPFedAvgClip(clip_norm=1e6, server_lr=1.0)  # never clips: x − mean of g_i


def visited(method: LocalMethod, samples: int, k: int = 0, client: int = 0) -> list[list[int]]:
    return [np.arange(samples)[batch].tolist() for batch in method.schedule(samples, k, client, Streams(1))]


def test_incremental_gradient_by_hand() -> None:
    """One client, a = 0, 1, …, 4 in batches of 2 (means 0.5, 2.5, 4), γ = 0.3: y ← y − (γ/3)(y − mean), in order."""
    y = 0.0
    for mean in (0.5, 2.5, 4.0):
        y -= 0.1 * (y - mean)
    run = quadratic([np.arange(5.0)[:, None]], algorithm=PLAIN, local=normec.IG(steps=1, lr=0.3, batch_size=2), rounds=1)
    np.testing.assert_allclose(x_of(run), [y / 0.3], rtol=1e-13)


def test_two_passes_of_incremental_gradient() -> None:
    y = 0.0
    for mean in (0.5, 2.5, 4.0) * 2:
        y -= 0.05 * (y - mean)
    run = quadratic([np.arange(5.0)[:, None]], algorithm=PLAIN, local=normec.IG(steps=2, lr=0.3, batch_size=2), rounds=1)
    np.testing.assert_allclose(x_of(run), [y / 0.3], rtol=1e-13)


def test_gradient_descent_by_hand() -> None:
    """T = 2, γ = 0.5 on ½(x − 4)²: gradients −4, −3, mean −3.5."""
    run = quadratic([[4.0]], algorithm=PLAIN, local=normec.GD(steps=2, lr=0.5), rounds=1)
    np.testing.assert_allclose(x_of(run), [3.5], rtol=1e-13)


def test_a_tiny_stepsize_does_not_cancel() -> None:
    run = quadratic([[4.0]], algorithm=PLAIN, local=normec.GD(steps=2, lr=1e-12), rounds=1)
    np.testing.assert_allclose(x_of(run), [4.0], rtol=1e-10)


@pytest.mark.parametrize("method", [normec.IG(steps=2, batch_size=4), normec.RR(steps=2, batch_size=4), normec.SO(steps=2, batch_size=4)])
@pytest.mark.parametrize("samples", [1, 3, 4, 5, 11])
def test_each_pass_visits_every_sample_once_and_keeps_the_last_short_batch(method: LocalMethod, samples: int) -> None:
    batches = visited(method, samples)
    per_pass = -(-samples // 4)
    assert len(batches) == 2 * per_pass
    for part in (batches[:per_pass], batches[per_pass:]):
        assert sorted(sum(part, [])) == list(range(samples))
        assert [len(batch) for batch in part] == [min(4, samples - start) for start in range(0, samples, 4)]


def test_orders() -> None:
    ig, rr, so = normec.IG(steps=1, batch_size=4), normec.RR(steps=1, batch_size=4), normec.SO(steps=1, batch_size=4)
    assert sum(visited(ig, 20, k=5), []) == list(range(20))
    assert visited(rr, 20, k=0) != visited(rr, 20, k=1)
    assert visited(rr, 20, client=0) != visited(rr, 20, client=1)
    assert visited(so, 20, k=0) == visited(so, 20, k=9) != visited(ig, 20)
    assert visited(so, 20, client=0) != visited(so, 20, client=1)


def test_stochastic_gradient_draws_from_all_samples() -> None:
    batches = visited(normec.SGD(steps=200, batch_size=3), 10)
    assert len(batches) == 200
    assert all(len(set(batch)) == 3 for batch in batches)
    assert {index for batch in batches for index in batch} == set(range(10))
    assert [len(batch) for batch in visited(normec.SGD(steps=2, batch_size=32), 5)] == [5, 5]


@pytest.mark.parametrize("name", METHODS)
def test_client_without_samples_takes_no_step(name: str) -> None:
    assert list(METHODS[name]().schedule(0, 0, 0, Streams(0))) == []


def test_stochastic_batches_are_keyed_by_round_and_client() -> None:
    sgd = normec.SGD(steps=4, batch_size=8)
    assert visited(sgd, 50, k=1, client=2) == visited(sgd, 50, k=1, client=2)
    assert visited(sgd, 50, k=1, client=2) != visited(sgd, 50, k=2, client=2)
    assert visited(sgd, 50, k=1, client=2) != visited(sgd, 50, k=1, client=3)


def test_poisson_batches_hold_each_sample_independently() -> None:
    """Of 4,000 batches of 12 samples: shares, the sizes' standard deviation and the samples' covariances, within 4.5 standard errors."""
    steps, samples, q = 4000, 12, 0.2
    batches = visited(normec.PoissonBatches(steps=steps, rate=q), samples)
    held = np.zeros((steps, samples))
    for step, batch in enumerate(batches):
        assert batch == sorted(set(batch))
        held[step, batch] = 1.0
    assert np.abs(held.mean(0) - q).max() < 4.5 * np.sqrt(q * (1 - q) / steps)
    covariance = np.cov(held.T) / (q * (1 - q))
    assert np.abs(covariance - np.eye(samples)).max() < 4.5 / np.sqrt(steps) * np.sqrt(1 / (q * (1 - q)) - 3)
    empty, most = (held.sum(1) == 0).mean(), held.sum(1).max()
    assert abs(empty - (1 - q) ** samples) < 4.5 * np.sqrt((1 - q) ** samples / steps)
    assert most >= 7  # of a size that is drawn once in 250 batches: nothing is cut off
    after_one = held[1:][held[:-1, 0] == 1, 0].mean()
    assert abs(after_one - q) < 4.5 * np.sqrt(q * (1 - q) / (q * steps))


def test_poisson_batches_at_rate_one_are_all_samples_and_are_keyed() -> None:
    assert visited(normec.PoissonBatches(steps=3, rate=1.0), 7) == [list(range(7))] * 3
    half = normec.PoissonBatches(steps=2, rate=0.5)
    assert visited(half, 50, k=1, client=2) == visited(half, 50, k=1, client=2)
    assert visited(half, 50, k=1, client=2) != visited(half, 50, k=2, client=2)
    assert visited(half, 50, k=1, client=2) != visited(half, 50, k=1, client=3)
    assert half.smallest_batch(np.array([40, 9])) == 1 and normec.PoissonBatches(rate=1.0).smallest_batch(np.array([40, 9])) == 9


class Pulled(Point):
    """With a penalty ½ ‖x‖²."""

    def penalty(self) -> Tensor:
        return 0.5 * self.x.square().sum()


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_poisson_step_divides_by_the_expected_size(backend: str, penalty: float) -> None:
    """y ← y − (γ/T) (Σ_{r ∈ B} (y − a_r) / (q n) + y where there is a penalty), by hand over the batches of the schedule."""
    if penalty and backend == "vmap":
        pytest.skip("models with a penalty take the loop")
    local = normec.PoissonBatches(steps=6, rate=0.2, lr=0.9)
    clients = [np.arange(4.0), np.array([7.0, -1.0, 2.0])]
    batches = [visited(local, len(a), 0, client) for client, a in enumerate(clients)]
    assert {0, 1, 2} <= {len(batch) for own in batches for batch in own}
    updates = []
    for a, own in zip(clients, batches, strict=True):
        y = 0.0
        for batch in own:
            y -= 0.15 * (sum(y - a[r] for r in batch) / (0.2 * len(a)) + penalty * y)
        updates.append(-y / 0.9)
    run = normec.train(
        model=Pulled if penalty else Point, loss=half_square, local=local, algorithm=PLAIN, rounds=1, seed=1, participation=normec.Full(),
        data=normec.Federation.from_clients([(a[:, None], np.zeros(len(a))) for a in clients]), privacy=normec.Privacy(trust="none"),
        engine=normec.Engine(dtype="float64", backend=backend),
    )  # fmt: skip
    np.testing.assert_allclose(x_of(run), [-np.mean(updates)], rtol=1e-12)


def test_a_sample_outside_of_every_batch_does_not_matter_even_where_it_is_broken() -> None:
    """A client's first sample stands where its mini-batch is empty, with weight zero."""
    from normec.engine.loop import Loop, Task
    from normec.engine.vmap import Vmap
    from normec.models import FlatModel, LocalSteps

    torch.manual_seed(0)
    model = FlatModel(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, torch.device("cpu"), torch.float64)
    x = torch.randn(model.d, dtype=torch.float64)
    tasks = []
    for first in range(6):  # more groups than vmap takes by exact sizes
        features = torch.randn(8, 3, dtype=torch.float64)
        features[0] = torch.nan
        schedule = [np.arange(1, 1 + first), np.array([], dtype=np.int64), np.array([1])]
        tasks.append(Task(first, first, (features, torch.tensor([0, 1] * 4)), schedule, LocalSteps(0.5, divisor=4.0), lambda: 0))
    found, expected = torch.empty(6, model.d, dtype=torch.float64), torch.empty(6, model.d, dtype=torch.float64)
    assert not Vmap().updates(model, x, tasks, 0, found, torch.empty(6, 0)) and not Loop().updates(
        model, x, tasks, 0, expected, torch.empty(6, 0)
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert bool(found.isfinite().all())


def test_the_rate_is_of_poisson_batches_alone() -> None:
    assert isinstance(resolve(None, ["local.method=poisson", "local.rate=0.25"]).local, normec.PoissonBatches)
    with pytest.raises(normec.BadInput, match=r"local\.rate is not a setting here"):
        resolve(None, ["local.rate=0.25"])
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(normec.BadInput, match="rate"):
            normec.PoissonBatches(rate=wrong)

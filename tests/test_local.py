"""Local methods: schedules, and the updates they give."""

from __future__ import annotations

import numpy as np
import pytest

import normec
from conftest import quadratic, x_of
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

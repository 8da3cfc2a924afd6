"""Bounds that privacy rests on: no input, however long, small or broken, may break them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normec.operators import Clipping, Identity, Natural, Operator, RandK, SmoothedNormalization, TopK, row_norms

OPERATORS = [
    SmoothedNormalization(1e-300),
    SmoothedNormalization(0.0),
    SmoothedNormalization(0.01),
    SmoothedNormalization(3.0),
    Clipping(1e-20),
    Clipping(1e20),
    Clipping(0.1),
    Clipping(7.0),
]


@settings(max_examples=150, deadline=None)
@given(
    operator=st.sampled_from(OPERATORS),
    exponent=st.floats(-44, 38),
    d=st.integers(1, 3000),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_norm_stays_within_the_bound(operator: Operator, exponent: float, d: int, seed: int, dtype: torch.dtype) -> None:
    rows = torch.from_numpy(np.random.default_rng(seed).normal(size=(3, d))).mul(10.0**exponent).to(dtype)
    message = operator(rows)
    assert message.dtype == dtype
    assert (np.linalg.norm(message.double().numpy(), axis=1) <= operator.bound).all()


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e38])
def test_a_broken_row_gives_zero_and_leaves_the_others(operator: Operator, bad: float) -> None:
    rows = torch.ones(3, 4)
    rows[1, 2] = bad
    message = operator(rows)
    assert message[1].tolist() == [0.0] * 4
    assert torch.equal(message[[0, 2]], operator(torch.ones(2, 4)))


@pytest.mark.parametrize("operator", OPERATORS)
def test_zero_maps_to_zero(operator: Operator) -> None:
    assert operator(torch.zeros(2, 5)).abs().max() == 0


def test_values() -> None:
    row = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    np.testing.assert_allclose(SmoothedNormalization(5.0)(row), [[0.3, 0.4]], rtol=1e-15)
    np.testing.assert_allclose(SmoothedNormalization(0.0)(row), [[0.6, 0.8]], rtol=1e-12)
    np.testing.assert_allclose(Clipping(2.5)(row), [[1.5, 2.0]], rtol=1e-12)
    np.testing.assert_array_equal(Clipping(6.0)(row), row)  # inside the ball: exactly unchanged


def test_clipping_bounds_the_joint_norm_of_all_tensors() -> None:
    """Three tensors of norm 1 in one vector: the message has norm C, not √3 C."""
    row = torch.zeros(1, 30)
    row[0, [0, 10, 20]] = 1.0
    assert float(row_norms(Clipping(1.0)(row))) == pytest.approx(1.0, abs=2e-5)


def test_norms_do_not_overflow_in_float32() -> None:
    assert float(row_norms(torch.full((1, 4), 1e25))) == pytest.approx(2e25)


def test_inputs_stay_as_they_are() -> None:
    rows = torch.tensor([[3.0, math.nan], [3.0, 4.0]])
    before = rows.clone()
    for operator in OPERATORS:
        operator(rows)
    assert torch.equal(rows.nan_to_num(), before.nan_to_num())


def test_a_unit_direction_has_length_one_whatever_it_was() -> None:
    from normec.algorithms.fed_normec import unit

    for length in (1e-44, 1e-40, 1e-20, 1.0, 1e20):
        assert float(unit(torch.full((3,), length)).norm()) == pytest.approx(1.0, rel=1e-6)
    assert unit(torch.zeros(3)).tolist() == [0.0] * 3


def test_compressors_are_contractions() -> None:
    """Top-k, rand-k: 1 − k/d; natural: unbiased up to the factor 8/9, powers of two, 1/9."""
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(20_000, 8)))
    squares = rows.square().sum(1)
    draws = torch.from_numpy(np.random.default_rng(1).random((20_000, 8)))
    assert ((TopK(3)(rows) - rows).square().sum(1) <= (1 - 3 / 8) * squares).all()
    assert (TopK(3)(rows) != 0).sum(1).tolist() == [3] * 20_000
    kept = RandK(3)(rows, lambda: draws)
    assert ((kept - rows).square().sum() / squares.sum()).item() == pytest.approx(1 - 3 / 8, rel=0.01)
    assert torch.equal(kept[kept != 0], rows[kept != 0]) and (kept != 0).double().mean(0).tolist() == pytest.approx([3 / 8] * 8, rel=0.05)
    powers = Natural()(rows, lambda: draws) * 9 / 8
    assert (torch.frexp(powers)[0].abs() - 0.5).abs().max() < 1e-12 and (powers.sign() == rows.sign()).all()
    assert ((powers / rows) - 1).mean().item() == pytest.approx(0, abs=2e-3)
    assert ((powers * 8 / 9 - rows).square().sum() / squares.sum()).item() <= 1 / 9
    for operator in (RandK(2), Natural()):
        with pytest.raises(TypeError, match="give it uniform"):
            operator(rows)


@pytest.mark.parametrize("operator", [TopK(2), RandK(2), Natural(), Identity()])
def test_unbounded_operators_also_give_zero_for_a_broken_row(operator: Operator) -> None:
    rows = torch.ones(3, 4)
    rows[1, 2] = math.nan
    message = operator(rows, lambda: torch.full((3, 4), 0.5))
    assert math.isinf(operator.bound) and message[1].tolist() == [0.0] * 4 and message[[0, 2]].abs().sum() > 0
    assert operator(torch.zeros(2, 4), lambda: torch.full((2, 4), 0.5)).abs().max() == 0


def test_saturation() -> None:
    norms = torch.tensor([0.005, 0.02, 5.0])
    assert SmoothedNormalization(0.01).saturates(norms).tolist() == [False, True, True]
    assert Clipping(1.0).saturates(norms).tolist() == [False, False, True]

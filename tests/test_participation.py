"""Cohorts: sizes, independence, reproducibility."""

from __future__ import annotations

import numpy as np
import pytest

import normec
from normec.privacy.participation import Fixed, Full, Poisson
from normec.streams import Streams


def cohorts(scheme: normec.Poisson | normec.Fixed, clients: int, rounds: int, seed: int = 0) -> np.ndarray:
    return np.stack([scheme.cohort(clients, k, Streams(seed)) for k in range(rounds)])


def test_poisson_inclusions_are_independent() -> None:
    """20,000 cohorts: each client with probability p, each pair with p², each client in consecutive rounds with p²."""
    p, rounds = 0.3, 20_000
    drawn = cohorts(Poisson(p), 8, rounds).astype(float)
    error = 4.5 * np.sqrt(p**2 * (1 - p**2) / rounds)
    pairs = drawn.T @ drawn / rounds
    off_diagonal = ~np.eye(8, dtype=bool)
    np.testing.assert_allclose(pairs[off_diagonal], p**2, atol=error)
    np.testing.assert_allclose(np.diag(pairs), p, atol=4.5 * np.sqrt(p * (1 - p) / rounds))
    np.testing.assert_allclose((drawn[1:] * drawn[:-1]).mean(axis=0), p**2, atol=error)
    sizes = drawn.sum(axis=1)
    assert sizes.var() == pytest.approx(8 * p * (1 - p), rel=0.05)


def test_fixed_cohorts_have_one_size_and_less_than_independent_pairs() -> None:
    drawn = cohorts(Fixed(0.3), 10, 20_000).astype(float)
    assert set(drawn.sum(axis=1)) == {3.0}
    pairs = drawn.T @ drawn / len(drawn)
    np.testing.assert_allclose(pairs[~np.eye(10, dtype=bool)], 0.3 * 2 / 9, atol=0.01)


def test_full_takes_everyone() -> None:
    assert Full().cohort(5, 3, Streams(0)).tolist() == [True] * 5


def test_cohorts_depend_on_seed_and_round_only() -> None:
    scheme = Poisson(0.5)
    assert np.array_equal(scheme.cohort(50, 3, Streams(1)), scheme.cohort(50, 3, Streams(1)))
    assert not np.array_equal(scheme.cohort(50, 3, Streams(1)), scheme.cohort(50, 4, Streams(1)))
    assert not np.array_equal(scheme.cohort(50, 3, Streams(1)), scheme.cohort(50, 3, Streams(2)))


def test_a_fixed_cohort_of_nobody_is_refused() -> None:
    with pytest.raises(normec.BadInput, match=r"participation\.rate=0\.01 of 20 clients is nobody"):
        Fixed(0.01).expected(20)

"""Secure noise: the discrete Gaussian, drawn exactly, and how near it is to the Gaussian that is accounted."""

from __future__ import annotations

import re
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

import normec
from normec.privacy import Central, Mechanism, SpentSoFar, epsilon
from normec.privacy import discrete_gaussian as module
from normec.privacy.aggregation import lattice_for
from normec.privacy.discrete_gaussian import discrete_gaussian
from normec.privacy.noise import Secure, lattice_gap, with_secure_gaussian
from normec.privacy.participation import Poisson
from normec.privacy.promise import mechanism_for

SUSPICIOUS = 1e-6
"""A p-value below this fails: once in a million runs of one test by chance."""


def weights(low: int, high: int, scale: float) -> np.ndarray:
    """Unnormalised masses of the whole numbers from low to high."""
    return np.exp(-(np.arange(low, high + 1) ** 2) / (2 * scale**2))


@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0, 3.7, 20.0, 50.0, 123.4])
def test_each_whole_number_has_its_mass(scale: float) -> None:
    """Blocks of one, two and four numbers: all cells of at least ten expected draws, and one for the rest."""
    n, reach = 400_000, int(12 * scale) + 2
    drawn = discrete_gaussian(n, scale)
    expected = weights(-reach, reach, scale)
    expected *= n / expected.sum()
    seen = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=2 * reach + 1)
    large = expected >= 10
    cells = [*expected[large], expected[~large].sum() + 1e-9], [*seen[large], seen[~large].sum()]
    assert chisquare(cells[1], np.array(cells[0]) * n / np.sum(cells[0])).pvalue > SUSPICIOUS


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 1e2, 1e4, 1e6, 1e9])
def test_lattice_cells_are_even(noise_multiplier: float) -> None:
    """At z standard deviations per bound: cells of equal probability, and within them the low bits, evenly filled."""
    from scipy.special import ndtri

    n, lattice = 400_000, lattice_for(1.0).step
    steps = (with_secure_gaussian(torch.zeros(n, dtype=torch.float64), noise_multiplier, lattice) / lattice).long().numpy()
    edges = ndtri(np.arange(1, 200) / 200) * noise_multiplier / lattice
    assert chisquare(np.bincount(np.searchsorted(edges, steps), minlength=200)).pvalue > SUSPICIOUS
    if np.abs(steps).max() < 2**53:  # beyond, the float64 that is returned has no low bits
        for modulus in (2, 3, 256, 1000):
            assert chisquare(np.bincount(steps % modulus, minlength=modulus)).pvalue > SUSPICIOUS
    assert kstest(steps * lattice / noise_multiplier, "norm").pvalue > SUSPICIOUS
    assert np.corrcoef(steps[1:], steps[:-1])[0, 1] == pytest.approx(0, abs=0.01)


def test_every_outcome_is_that_of_exact_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random words, with floating point deciding and with decimals deciding each acceptance."""
    for scale in (1.3, 300.0, 2.0**40 + 0.5):
        words = np.random.default_rng(3).bytes(8 * 3 * 500)
        monkeypatch.setattr(module.os, "urandom", lambda size, words=words: words[:size])
        blocks = module._cut(scale)
        quick = module._draw(blocks, 500)
        monkeypatch.setattr(module, "UNCERTAIN", 2.0)
        exact = module._draw(blocks, 500)
        monkeypatch.undo()
        assert np.array_equal(quick, exact) and len(quick) > 350


def test_thresholds_are_those_of_a_theta_function() -> None:
    """A block's cumulative share, from an independent implementation at 80 digits; the tail is one minus it."""
    with mpmath.workdps(80):
        scale, width = mpmath.mpf(1000.5), 32
        blocks = module._cut(1000.5)
        assert blocks.width == width
        heights = [mpmath.exp(-((b * width / scale) ** 2) / 2) for b in range(700)]
        total = mpmath.fsum(heights)
        for b in (0, 1, 17, 100, 200):
            share = mpmath.fsum(heights[: b + 1]) / total
            assert int(blocks.thresholds[b]) == int(mpmath.floor(share * 2**64))


def test_a_word_on_a_threshold_gets_further_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A uniform number whose first 64 bits are those of a threshold: its next bits choose the block on either side."""
    blocks = module._cut(1000.5)
    word = blocks.thresholds[5]
    with mpmath.workdps(80):
        heights = [mpmath.exp(-((b * 32 / mpmath.mpf(1000.5)) ** 2) / 2) for b in range(700)]
        following = int(mpmath.frac(mpmath.fsum(heights[:6]) / mpmath.fsum(heights) * 2**64) * 2**64)
    for bits, block in ((following - 1000, 5), (following + 1000, 6)):
        monkeypatch.setattr(module.secrets, "randbits", lambda count, bits=bits: bits)
        assert module._choose(blocks, np.array([word], dtype=np.uint64)).tolist() == [block]
    # Words without a tie need no further bits.
    monkeypatch.setattr(module.secrets, "randbits", lambda count: pytest.fail("no tie"))
    assert module._choose(blocks, np.array([word - np.uint64(1), word + np.uint64(1)], dtype=np.uint64)).tolist() == [5, 6]


def test_an_acceptance_on_the_edge_gets_further_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = module._cut(1000.5)
    block, offset = 3, 20
    with mpmath.workdps(80):
        y = mpmath.mpf(offset) / 32
        probability = mpmath.exp(-y * (2 * block + y) * 32**2 / (2 * mpmath.mpf(1000.5) ** 2))
        known = int(probability * 2**53)
        rest = int((probability * 2**53 - known) * 2**64)
    for bits, accepted in ((rest - 10**6, True), (rest + 10**6, False)):
        monkeypatch.setattr(module.secrets, "randbits", lambda count, bits=bits: bits)
        found = module._accept(blocks, np.array([block]), np.array([offset]), np.array([known], dtype=np.uint64))
        assert found.tolist() == [accepted]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**59])
def test_scales_out_of_range_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        discrete_gaussian(3, scale)


def test_the_sum_is_one_of_whole_numbers() -> None:
    """Noise beyond 2^53 steps: the result is the float nearest to the exact sum, a function of that sum alone."""
    lattice = lattice_for(1.0).step
    message = torch.arange(1000, dtype=torch.float64) * lattice
    released = with_secure_gaussian(message, 1e9, lattice)
    assert torch.equal(released, (released / lattice).round() * lattice) and float(released.std()) == pytest.approx(1e9, rel=0.2)


@pytest.mark.parametrize(("scale", "deviations"), [(20.0, 0), (20.0, 3), (1000.0, 1), (1000.0, 5), (1000.0, 13), (1e5, 13)])
def test_the_gap_covers_what_stands_between_the_lattice_and_the_gaussian(scale: float, deviations: int) -> None:
    """|log(D / R)| of the discrete Gaussian D and the rounded normal R, at 80 digits, beside κ of one number."""
    with mpmath.workdps(80):
        s = mpmath.mpf(scale)
        n, squared = mpmath.floor(deviations * s), s**2 + mpmath.mpf(1) / 12
        discrete = mpmath.exp(-(n**2) / (2 * squared)) / mpmath.sqrt(2 * mpmath.pi * squared)
        ends = [mpmath.erfc((n + half) / (s * mpmath.sqrt(2))) for half in (-mpmath.mpf(1) / 2, mpmath.mpf(1) / 2)]
        apart = abs(mpmath.log(discrete / ((ends[0] - ends[1]) / 2)))
    most = (deviations**4 + 3) / (2880 * scale**4)
    assert most / 100 < apart <= 1.001 * most
    assert lattice_gap(scale, 0.0, 1) >= apart and lattice_gap(scale, 0.0, 6e5) == pytest.approx(6e5 * lattice_gap(scale, 0.0, 1))


def test_secure_noise_is_accounted_with_its_gap() -> None:
    """(ε + 2κ) at δ, where Gaussian noise has ε at δ e^−κ, κ = 1e-8."""
    plain = Mechanism(trust=Central(), noise_multiplier=1.3, participation=Poisson(0.1), clients=1000, rounds=300)
    secure = replace(plain, noise=Secure(), aggregation=lattice_for(1.0))
    assert epsilon(secure, 1e-5).epsilon == pytest.approx(epsilon(plain, 1e-5 * (1 - 1e-8)).epsilon + 2e-8, abs=1e-12)
    assert epsilon(secure, 1e-5).epsilon > epsilon(plain, 1e-5).epsilon
    so_far = SpentSoFar(secure, 1e-5)
    assert all(SpentSoFar(plain, 1e-5).after(k) < so_far.after(k) <= so_far.planned.epsilon for k in (1, 100))


def test_secure_noise_too_small_for_its_lattice_is_refused_with_what_is_enough() -> None:
    def planned(noise_multiplier: float) -> Mechanism:
        privacy = normec.Privacy(trust="central", noise_multiplier=noise_multiplier, noise="secure")
        return mechanism_for(privacy, normec.FedNormEC(), normec.Full(), clients=10, rounds=1, d=10**6)[0]

    with pytest.raises(normec.BadInput, match=r"privacy.noise_multiplier=0.02 is too small for secure noise on 1,000,000 numbers") as error:
        planned(0.02)
    least = float(re.findall(r"at least ([0-9.e-]+),", str(error.value))[0])
    assert 0.02 < least < 0.1 and planned(least).private
    assert epsilon(planned(1e-3), 1e-5).epsilon > 1e4  # which promises nothing, and may be had

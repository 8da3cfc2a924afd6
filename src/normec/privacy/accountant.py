"""ε of a mechanism, by dp-accounting: the smallest of the upper bounds that apply.

| sampling | zero-out | replace-one |
| --- | --- | --- |
| full | Gaussian, closed form | Gaussian, closed form |
| poisson | PLD | PLD |
| fixed | PLD, also as a special case of replace-one | PLD |
| poisson, fixed | Gaussian over participations | the same at twice the distance |

Under trust secagg and local the adversary knows who takes part: no amplification, but a client spends only in its own
rounds, and the claim is the expectation over how many those are. It holds against the server where each client draws its own coin.
Where the server draws the cohorts, ε of a client that is asked in every round stands beside it.

The bound without amplification (a client in every round) holds for every sampling and enters each minimum; cohorts of one's own
making have no other. The one over participations holds where the cohorts are known, and so where they are secret.
`noise_multiplier` is σ/C everywhere; the adjacency doubles the distance exactly once, here. dp-accounting's PLD doubles it
for REPLACE_ONE by itself, its RDP and its closed form do not. Rényi DP answers where PLD fails.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from normec.errors import BadInput
from normec.privacy.aggregation import Aggregation
from normec.privacy.amplified import pld, pld_grid, rdp
from normec.privacy.events import Event
from normec.privacy.gaussian import OVER_PARTICIPATIONS, Spent, gaussian, over_participations, quiet, unamplified
from normec.privacy.mechanism import Mechanism
from normec.privacy.noise import is_independent

NOTHING = Spent(math.inf, "none")


def epsilon(mechanism: Mechanism, delta: float) -> Spent:
    """ε of all rounds of a mechanism at δ; infinite without noise, 0 for no rounds. A pure function."""
    return _epsilon(mechanism.in_units_of_the_bound(), delta)


@lru_cache(maxsize=256)
def _epsilon(mechanism: Mechanism, delta: float) -> Spent:
    if not mechanism.private:
        return NOTHING
    if not (0 < delta < 1) or not (0 <= mechanism.rounds < math.inf) or not mechanism.noise_multiplier < math.inf:
        others = f", noise_multiplier={mechanism.noise_multiplier!r}, rounds={mechanism.rounds!r}"
        raise BadInput("delta", f"{others}: give 0 < delta < 1, a finite noise and rounds >= 0", value=delta)
    if mechanism.rounds == 0:
        return Spent(0.0, "none")
    if not is_independent(mechanism.noise):
        return Spent(*epsilon_of(mechanism.noise.dp_event(mechanism), delta))
    if mechanism.lattice:
        return _on_the_lattice(mechanism, delta)
    if mechanism.trust.per_client:
        spent = over_participations(mechanism, delta)
        return replace(spent, every_round=_in_every_round(mechanism, delta)) if mechanism.trusts_the_draw else spent
    known = [unamplified(mechanism, delta)]
    if mechanism.sampling in ("poisson", "fixed"):
        known.append(over_participations(mechanism, delta))
    if min(bound.epsilon for bound in known) > 0:
        known.append(_of_secret_cohorts(mechanism, delta))
    return min(known, key=lambda bound: bound.epsilon)


def _of_secret_cohorts(mechanism: Mechanism, delta: float) -> Spent:
    """By privacy loss distributions, and by Rényi DP where these fail."""
    found = pld(mechanism, delta)
    if mechanism.sampling == "fixed" and mechanism.adjacency == "zero-out":  # a special case of replacing, with another grid
        found = min(found, pld(replace(mechanism, adjacency="replace-one"), delta), key=lambda bound: bound.epsilon)
    return found if found.epsilon < math.inf else rdp(mechanism, delta)


def _on_the_lattice(mechanism: Mechanism, delta: float) -> Spent:
    """What Gaussian noise spends, enlarged by what stands between it and noise on the lattice."""
    plain = _epsilon(replace(mechanism, aggregation=Aggregation()), delta * math.exp(-mechanism.gap))
    every = None if plain.every_round is None else plain.every_round + 2 * mechanism.gap
    return replace(plain, epsilon=plain.epsilon + 2 * mechanism.gap, every_round=every)


def _in_every_round(mechanism: Mechanism, delta: float) -> float:
    """ε of a client that takes part in each of the rounds, with the fewest honest ones, up to where it falls silent."""
    return realised(mechanism, delta, min(mechanism.rounds / mechanism.honest, mechanism.most_exposure)).epsilon


def epsilon_of(event: Event, delta: float) -> tuple[float, str]:
    """ε at δ of an event, and the accountant that gave it; infinite where none supports it.

    A Gaussian, also composed with itself, has a closed form; anything else takes the smaller of PLD and RDP.
    """
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    whole = event if isinstance(event, dp_accounting.SelfComposedDpEvent) else dp_accounting.SelfComposedDpEvent(event, 1)
    if isinstance(whole.event, dp_accounting.GaussianDpEvent):
        return gaussian(math.sqrt(whole.count) / whole.event.noise_multiplier, delta), "gaussian closed form"
    found = [(math.inf, "none")]
    for name, kind in (("PLD", PLDAccountant), ("RDP", RdpAccountant)):
        accountant = kind()
        if accountant.supports(event):
            with quiet():
                found.append((float(accountant.compose(event).get_epsilon(delta)), name))
    return min(found)


class SpentSoFar:
    """ε after k rounds of a planned run: an upper bound for each k, never above the plan's own ε.

    With noise that is not independent from round to round, the whole event counts from the first round on.

    It works on a coarser grid of privacy losses than the plan, so that a value for every round stays cheap; a coarser
    grid only makes it larger.
    """

    def __init__(self, mechanism: Mechanism, delta: float) -> None:
        self.mechanism, self.delta = mechanism.in_units_of_the_bound(), delta * math.exp(-mechanism.gap)
        self.planned = epsilon(mechanism, delta)
        """The claim: ε of all planned rounds."""
        self._grid = 5 * pld_grid(self.planned.epsilon, mechanism.rounds)

    def after(self, rounds: int) -> float:
        """ε spent by the first `rounds` rounds."""
        if rounds == 0 and self.mechanism.private:
            return 0.0
        if rounds == self.mechanism.rounds or not self.mechanism.private or not is_independent(self.mechanism.noise):
            return self.planned.epsilon
        part = replace(self.mechanism, rounds=rounds)
        if part.trust.per_client:
            return over_participations(part, self.delta).epsilon + 2 * part.gap
        bounds = [self.planned, unamplified(part, self.delta)]
        if self.planned.accountant == "PLD":
            bounds.append(pld(part, self.delta, self._grid))
        if self.planned.accountant == OVER_PARTICIPATIONS:
            bounds.append(over_participations(part, self.delta))
        if self.planned.accountant == "RDP":
            bounds.append(rdp(part, self.delta))
        return min(self.planned.epsilon, min(bound.epsilon for bound in bounds[1:]) + 2 * part.gap)


def realised(mechanism: Mechanism, delta: float, largest_exposure: float) -> Spent:
    """ε of the client that took part most, given Σ 1/h_k over its rounds, where each participant adds noise."""
    mu = mechanism.distance * math.sqrt(largest_exposure) / mechanism.noise_multiplier if mechanism.private else math.inf
    spent = gaussian(mu, delta * math.exp(-mechanism.gap))
    return Spent(spent + 2 * mechanism.gap if spent else 0.0, "gaussian closed form")


def within_limit(mechanism: Mechanism, limit: float, delta: float) -> Mechanism:
    """A mechanism whose clients each stay silent before their own rounds would spend more than `limit`.

    Without noise no round is within any limit, and every client is silent.
    """
    import dp_accounting

    if not mechanism.private:
        return replace(mechanism, most_exposure=0.0)
    with quiet():
        noise = float(dp_accounting.get_sigma_gaussian(limit, delta))
    most, step = (mechanism.noise_multiplier / (mechanism.distance * max(noise, 1e-150))) ** 2, 1e-7
    while realised(mechanism, delta, most).epsilon > limit * (1 - 1e-8):
        most, step = most * (1 - step), min(2 * step, 0.5)
    return replace(mechanism, most_exposure=most)

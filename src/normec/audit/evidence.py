"""The measurements of an audit: released sums less the clients' messages, along each direction and by coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypedDict

import numpy as np
from torch import Tensor

from normec.audit.canaries import Canaries
from normec.audit.releases import Seen
from normec.operators import row_norms

NUMBERS_KEPT = 2**23
"""The most numbers that are kept, of the noise of all rounds together."""
LONGER = 1 + 1e-6
"""The length that rounding explains, over the one that the bound allows."""
BINS = 60
"""The number of bins of the histograms."""


class Histograms(TypedDict):
    """How often each measured value occurred, in bins of equal width: edges (b + 1,), and counts (b,) by what was measured."""

    edges: list[float]
    counts: dict[str, list[int]]


class Messages(NamedTuple):
    """The messages that the clients that computed in a round would send.

    places: (c,) of the clients in the federation. rows: (c, d). honest, canaries, absent: sums (d,), in float64, of those that honest
    clients and canaries sent, and of those that nobody sent.
    """

    places: np.ndarray
    rows: Tensor
    honest: Tensor
    canaries: Tensor
    absent: Tensor


class Measured(NamedTuple):
    """The measurements of one round; everything is divided by the standard deviation of the noise that was accounted.

    canaries, held_out: (k,) the released sum less the honest messages, along each direction. present: (k,) which canaries took part.
    strength: (k,) what each canary's message adds to its own direction: the bound, zero where it is not present; with noise that
    depends on earlier rounds also what it leaves there of those.
    noise: (s,) what is left when all messages are taken away, at evenly spaced coordinates. energy: its mean square over all
    coordinates. clients: (c,) the places of clients whose message is known and not zero; took_part: (c,) which of them sent it;
    projection: (c,) the projection of the remaining noise on each of these messages. together, absent: the same for the sum of the messages
    that
    were sent, and of those that were not; NaN where there are none.
    """

    canaries: np.ndarray
    held_out: np.ndarray
    present: np.ndarray
    strength: np.ndarray
    noise: np.ndarray
    energy: float
    clients: np.ndarray
    took_part: np.ndarray
    projection: np.ndarray
    together: float
    absent: float

    @classmethod
    def of(
        cls, total: Tensor, std: float, *, canaries: Canaries, strength: np.ndarray, messages: Messages, cohort: np.ndarray, rounds: int
    ) -> Measured:
        """The measurements of a released sum (d,), with noise that is independent from round to round. std: that of the noise on each
        coordinate, as it was accounted. strength: (k,) what the canaries' messages add along their directions, over std. cohort: the mask
        of all clients, the canaries last. rounds: the total number, over which the numbers that are kept are divided.
        """
        left = (total - messages.honest) / std
        along, aside = canaries.project(left)
        present = cohort[len(cohort) - len(canaries.ids) :]
        noise = left - messages.canaries / std
        norms = row_norms(messages.rows)
        sent = norms > 0
        projection = ((messages.rows @ noise.to(messages.rows)).double() / norms)[sent].cpu().numpy()
        clients = messages.places[sent.cpu().numpy()]
        step = -(-len(noise) // max(1, NUMBERS_KEPT // rounds))
        return cls(
            canaries=along,
            held_out=aside,
            present=present,
            strength=strength,
            noise=noise[::step].float().cpu().numpy(),
            energy=float(noise.square().mean()),
            clients=clients,
            took_part=cohort[clients],
            projection=projection,
            together=_along(noise, messages.honest + messages.canaries),
            absent=_along(noise, messages.absent),
        )


def _along(noise: Tensor, direction: Tensor) -> float:
    return float(noise @ direction / direction.norm())


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that an audit has measured.

    rounds: those with a release. parameters: d. cohorts: (K, M) the honest participants of each round, released or not. departure: the
    largest distance of a state from the one that its release explains, over what rounding explains. longest: the longest
    message, or released sum, over what the bound allows. way_along, way_aside: (k,) cosines of the model's whole way x⁰ − x^K with
    the canaries' directions and the held-out ones, zero where it has not moved.
    """

    rounds: tuple[Measured, ...]
    parameters: int
    cohorts: np.ndarray
    departure: float
    longest: float
    way_along: np.ndarray
    way_aside: np.ndarray

    @classmethod
    def of(
        cls, rounds: list[Measured], cohorts: np.ndarray, *, departure: float, longest: float, canaries: Canaries, ends: tuple[Seen, Seen]
    ) -> Evidence:
        """The evidence of these rounds. ends: the states before the first round and after the last."""
        way = ends[0].server.x - ends[1].server.x
        along, aside = canaries.project(way / way.norm() if bool(way.any()) else way)
        return cls(
            rounds=tuple(rounds),
            parameters=len(way),
            cohorts=cohorts,
            departure=departure,
            longest=longest,
            way_along=along,
            way_aside=aside,
        )

    @cached_property
    def canaries(self) -> np.ndarray:
        """The values of all rounds, (n, k), as for the next three."""
        return np.stack([one.canaries for one in self.rounds])

    @cached_property
    def held_out(self) -> np.ndarray:
        return np.stack([one.held_out for one in self.rounds])

    @cached_property
    def present(self) -> np.ndarray:
        return np.stack([one.present for one in self.rounds])

    @cached_property
    def strength(self) -> np.ndarray:
        return np.stack([one.strength for one in self.rounds])

    @cached_property
    def noise(self) -> np.ndarray:
        """The noise of all rounds, (n, s), in float64."""
        return np.stack([one.noise for one in self.rounds]).astype(np.float64)

    def projections(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sum of the projections, the sum of their squares, and their number, by client, separately for the rounds in which its message
        was sent and those in which it was not, where there are such rounds.
        """
        clients, took_part, projection = (
            np.concatenate([getattr(one, name) for one in self.rounds]) for name in ("clients", "took_part", "projection")
        )
        group = 2 * clients + took_part
        times = np.bincount(group)
        sums, squares = (np.bincount(group, projection**power)[times > 0] for power in (1, 2))
        return sums, squares, times[times > 0]

    def histograms(self) -> Histograms:
        """How often each measured value occurred."""
        groups = {
            "canaries that took part": self.canaries[self.present],
            "canaries that did not": self.canaries[~self.present],
            "held-out directions": self.held_out.ravel(),
        }
        finite = {name: group[np.isfinite(group)] for name, group in groups.items()}
        edges = np.histogram_bin_edges(np.concatenate(list(finite.values())), BINS)
        return {"edges": edges.tolist(), "counts": {name: np.histogram(group, edges)[0].tolist() for name, group in finite.items()}}

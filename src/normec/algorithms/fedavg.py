"""FedAvg (McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data)."""

from __future__ import annotations

from typing import ClassVar, Literal

from normec.algorithms.about import About, Coverage
from normec.algorithms.averaging import Averaging
from normec.algorithms.base import register
from normec.operators import Identity


@register("fedavg")
class FedAvg(Averaging):
    """The mean of the local models, Algorithm 1: x ← x − η (1 / pM) Σ_{i ∈ S} (x − T_i(x)); with η = 1 and p = 1 it is their average.

    Clients count alike: f is the mean of the f_i. Not private: a message has no bound.

    Guarantees: O(1/√K) of the squared gradient norm with stochastic gradients, for smooth losses with bounded gradient
    dissimilarity (Karimireddy et al. 2020, Theorem I); none without.
    """

    about: ClassVar[About] = About(
        paper="McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data",
        year=2017,
        guarantee="smooth losses, bounded gradient dissimilarity: O(1/√K) of the squared gradient norm with stochastic gradients",
        coverage=Coverage({"gd": None, "sgd": None}, ("full", "fixed")),
    )

    on: Literal["gradient", "update"] = "update"

    @property
    def operator(self) -> Identity:
        return Identity()

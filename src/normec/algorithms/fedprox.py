"""FedProx (Li et al.: Federated Optimization in Heterogeneous Networks)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About, Coverage
from normec.algorithms.base import LocalRule, register
from normec.algorithms.fedavg import FedAvg
from normec.settings import NonNegative


@register("fedprox")
class FedProx(FedAvg):
    """FedAvg whose clients minimise h_i(y) = f_i(y) + (μ/2) ‖y − x‖² by their local steps, (2) in the paper.

    prox: μ. Not private: a message has no bound.

    Guarantees: O(1/K) of the squared gradient norm (Theorem 4) for losses of bounded negative curvature and B-bounded local
    dissimilarity, local problems that are solved well enough (γ-inexactly) and a μ that is large enough.
    """

    about: ClassVar[About] = About(
        paper="Li et al.: Federated Optimization in Heterogeneous Networks",
        year=2020,
        guarantee=(
            "losses of bounded negative curvature and bounded local dissimilarity, local problems solved well enough, μ large enough: "
            "O(1/K) of the squared gradient norm"
        ),
        coverage=Coverage(dict.fromkeys(("gd", "ig", "rr", "so", "sgd")), ("full", "fixed")),
    )
    tuned: ClassVar[dict[str, tuple[float, float]]] = {"prox": (0.001, 1.0), "server_lr": (0.3, 3.0)}

    prox: NonNegative = 0.1

    @property
    def uncovered(self) -> tuple[str, ...]:
        reasons = [] if self.on == "update" and self.server_lr == 1 else ["a server step that is not the mean of the local models"]
        return (*reasons, *([] if self.prox > 0 else ["no proximal term (prox = 0)"]))

    @property
    def local_rule(self) -> LocalRule:
        return LocalRule(unit=self.on, proximal=self.prox)

"""DP-SCAFFOLD (Noble, Bellet, Dieuleveut: Differentially Private Federated Learning on Heterogeneous Data), at client level."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About
from normec.algorithms.base import register
from normec.algorithms.scaffold import Scaffold
from normec.operators import ClipNorm, Clipping
from normec.settings import Positive


@register("dp-scaffold")
class DPScaffold(Scaffold):
    """SCAFFOLD whose message is clipped: m_i = Clip_C((x − y) / γ − c), c_i ← c_i + m_i, and noise on the sum of the m_i.

    The control variate and the model step use the same released sum, which is one release a round. Noble et al. protect
    one record by noise on each local gradient; here the unit is the client. clip_norm: C. server_lr: η.

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being at most C. No convergence guarantee is
    known for this form; theirs, per record, needs bounded gradients.
    """

    about: ClassVar[About] = About(
        paper="Noble, Bellet, Dieuleveut: Differentially Private Federated Learning on Heterogeneous Data",
        year=2022,
        guarantee="none at client level",
    )
    tuned: ClassVar[dict[str, tuple[float, float]]] = {"clip_norm": (0.003, 0.3), "server_lr": (0.1, 10.0)}

    server_lr: Positive = 3.0
    clip_norm: ClipNorm = 0.03

    @property
    def operator(self) -> Clipping:
        return Clipping(self.clip_norm)

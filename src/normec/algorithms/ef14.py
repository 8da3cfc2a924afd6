"""EF14, the first error feedback (Seide et al.: 1-Bit Stochastic Gradient Descent, for data-parallel training)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from normec.algorithms.about import About, Coverage
from normec.algorithms.base import Algorithm, ClientStep, Context, Slots, register
from normec.operators import Compressed


@register("ef14")
class EF14(Compressed, Algorithm):
    """Each client adds to its gradient what compression left out before: Δ_i = C(g_i + e_i), e_i ← g_i + e_i − Δ_i.

    The server steps along the mean of the Δ_i. The stepsize multiplies after compression, which for a constant η is the
    method of Seide et al. 2014. compressor, k: C, a contraction. server_lr: η. Not private: a message has no bound.

    Guarantees: for T = 1, p = 1 and smooth losses O(K^−2/3) of the squared gradient norm under bounded gradients
    (Koloskova et al. 2020); none without.
    """

    about: ClassVar[About] = About(
        paper="Seide et al.: 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs",
        year=2014,
        guarantee="smooth losses, bounded gradients, T = 1, p = 1: O(K^−2/3) of the squared gradient norm",
        coverage=Coverage({"gd": 1}),
    )
    client_slots: ClassVar[tuple[str, ...]] = ("e",)

    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        (e,) = memory
        wanted = update + e
        message = self.operator(wanted, context.uniform)
        return ClientStep(message, (wanted - message,), wanted)

    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        return mean, ()

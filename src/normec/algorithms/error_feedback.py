"""The wiring of EF21 (Richtárik et al. 2021) and its relatives, which differ in the operator and in the step of the memories."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from normec.algorithms.base import Algorithm, ClientStep, Context, Slots
from normec.settings import Probability


class ErrorFeedback(Algorithm):
    """Each client remembers what the server knows of its update, and sends the rest through the operator C.

        Δ_i = C(g_i − v_i),   v_i ← v_i + s Δ_i          (each client that computes)
        v̂ ← v̂ + (s / M) Σ_{i ∈ S} (Δ_i + z_i)            (the server), direction v̂

    By default only the cohort S computes and moves its memory (EF21-PP, Fatkhullin et al. 2021), so that v̂ stays the
    mean of the memories, plus noise. With `everyone_computes` every client moves, and the server's sum has a factor 1/p.
    """

    client_slots: ClassVar[tuple[str, ...]] = ("v",)
    server_slots: ClassVar[tuple[str, ...]] = ("v_hat",)

    @property
    def memory_step(self) -> float:
        """s: the step of the memories."""
        return 1.0

    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        (v,) = memory
        residual = update - v
        message = self.operator(residual, context.uniform)
        return ClientStep(message, (torch.add(v, message, alpha=self.memory_step),), residual)

    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        (v_hat,) = state
        v_hat = v_hat + self.memory_step * (1.0 if self.everyone_computes else rate) * mean
        return v_hat, (v_hat,)


class MomentumErrorFeedback(ErrorFeedback):
    """Error feedback on a momentum estimate m_i of the gradient: m_i ← (1 − μ) m_i + μ g_i, then as above with m_i for g_i.

    momentum: μ in (0, 1], the weight of the new gradient; 1 is no momentum.
    """

    client_slots: ClassVar[tuple[str, ...]] = ("m", "v")

    momentum: Probability = 0.5

    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        m, v = memory
        m = torch.lerp(m, update, self.momentum)
        step = super().client(m, (v,), context)
        return step._replace(memory=(m, *step.memory))

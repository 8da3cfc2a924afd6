"""SCAFFOLD (Karimireddy et al.: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from normec.algorithms.about import About, Coverage
from normec.algorithms.base import Algorithm, ClientStep, Context, LocalRule, Slots, register
from normec.operators import Identity, Operator


@register("scaffold")
class Scaffold(Algorithm):
    """Control variates c_i correct the drift of the local steps, Algorithm 1 with Option II.

        y ← y − (γ / T_i) (∇f_i(y) + c − c_i)      (3): T_i times from x, each client counting its own steps
        m_i = (x − y) / γ − c,   c_i ← c_i + m_i   (4): the paper's c_i⁺ = c_i − c + (x − y) / (T_i η_l)
        x ← x − η (c + mean of the m_i),   c ← c + (1 / M) Σ_{i ∈ S} m_i      (5)

    One message m_i serves both steps of the server, since the paper's y_i − x is −γ (m_i + c); c goes down with the model.
    The mean divides by pM, where the paper has the realised number of participants: equal where that is fixed, and
    outside the guarantee under Poisson sampling.
    server_lr: η, the paper's η_g times γ. Not private: a message has no bound.

    Guarantees: for smooth losses of any heterogeneity, O(1/√(T S K)) of the squared gradient norm with stochastic
    gradients and S participants, and O((M/S)^2/3 / K) without noise (Theorem III).
    """

    about: ClassVar[About] = About(
        paper="Karimireddy et al.: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        year=2020,
        guarantee=(
            "smooth losses of any heterogeneity: O(1/√(T S K)) of the squared gradient norm with stochastic gradients, O((M/S)^2/3 / K) "
            "without noise"
        ),
        coverage=Coverage({"gd": None, "sgd": None}, ("full", "fixed")),
    )
    client_slots: ClassVar[tuple[str, ...]] = ("c",)
    server_slots: ClassVar[tuple[str, ...]] = ("c_hat",)
    vectors_down: ClassVar[int] = 2

    @property
    def operator(self) -> Operator:
        return Identity()

    @property
    def local_rule(self) -> LocalRule:
        return LocalRule(correction=lambda memory, server: server[0] - memory[0])

    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        (c,) = memory
        residual = update - context.server[0]
        message = self.operator(residual, context.uniform)
        return ClientStep(message, (c + message,), residual)

    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        (c,) = state
        return c + mean, (c + rate * mean,)

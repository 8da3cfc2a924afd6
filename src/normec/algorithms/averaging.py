"""The wiring of FedAvg and its relatives: no memory, the server steps along the mean of the messages."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from normec.algorithms.base import Algorithm, ClientStep, Context, LocalRule, Slots


class Averaging(Algorithm):
    """x ← x − η s (1 / pM) [ Σ_{i ∈ S} (Ψ(u_i) + z_i) ], with Ψ the operator of the method.

    on: the quantity u_i is "gradient", the scaled local update g_i = (x − T_i(x)) / γ, or "update", x − T_i(x) as in the
    paper's equation 3. Clients count alike, whatever their sizes. The denominator pM is public and fixed, never the
    realised count, so that a round with more participants than expected takes a longer step.
    """

    on: Literal["gradient", "update"] = "gradient"

    @property
    def local_rule(self) -> LocalRule:
        return LocalRule(unit=self.on)

    @property
    def message_scale(self) -> float:
        """s: the factor that multiplies a message after its release."""
        return 1.0

    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        return ClientStep(self.operator(update, context.uniform), (), update)

    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        return self.message_scale * mean, ()

"""A new algorithm in one file: sign descent with error feedback, registered, held to the contract, and run privately.

python examples/new_algorithm.py
"""

from typing import ClassVar

import torch
from torch import Tensor

import normec
from normec.config import resolve
from normec.contract import check
from normec.operators import Operator, Uniform, row_norms, usable
from normec.runs.experiment import prepare
from normec.runs.loop import execute


class Sign(Operator):
    """g ↦ sign(g) ‖g‖ / √d, shortened to norm 1: the norm bound of a message is 1."""

    bound = 1.0

    def __call__(self, rows: Tensor, uniform: Uniform | None = None) -> Tensor:
        norms = row_norms(rows)
        length = torch.where(usable(norms), norms, 0.0).clamp(max=1 - 1e-6)
        return torch.where(length[:, None] > 0, rows.sign() * (length / rows.shape[1] ** 0.5)[:, None], 0.0).to(rows.dtype)


@normec.register("sign-ef21")
class SignEF21(normec.Algorithm):
    """Δ_i = Sign(g_i − v_i), v_i ← v_i + β Δ_i, v̂ ← v̂ + (β / M) Σ_{i ∈ S} (Δ_i + z_i), x ← x − η v̂.

    Guarantees: client-level DP by the Gaussian mechanism; of convergence none is known.
    """

    client_slots: ClassVar[tuple[str, ...]] = ("v",)
    server_slots: ClassVar[tuple[str, ...]] = ("v_hat",)

    beta: float = 0.05

    @property
    def operator(self) -> Sign:
        return Sign()

    def client(self, update: Tensor, memory: tuple[Tensor, ...], context: normec.Context) -> normec.ClientStep:
        (v,) = memory
        message = self.operator(update - v)
        return normec.ClientStep(message, (v + self.beta * message,), update - v)

    def server(self, state: tuple[Tensor, ...], mean: Tensor, rate: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        v_hat = state[0] + self.beta * rate * mean
        return v_hat, (v_hat,)


if __name__ == "__main__":
    check("sign-ef21")  # raises ContractBroken, naming the point, if it does not keep the contract
    run = execute(prepare(resolve(None, ["algorithm.name=sign-ef21", "algorithm.server_lr=3"]).experiment()))
    print(f"{run.metrics[-1]['test_accuracy']:.1%}  {run.summary['claim']}")

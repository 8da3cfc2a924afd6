"""Problems whose constants are known, as data and model of a run, on which the theorems can be tested.

normec train data.source=normec.theory.problems:quadratics model.name=normec.theory.problems:linear
model.loss=normec.theory.problems:half_squares theory.check=true …
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from normec.data import Federation
from normec.errors import BadInput


def quadratics(
    clients: int = 10, d: int = 5, smoothness: float = 1.0, heterogeneity: float = 0.5, samples: int = 10, noise: float = 0.0, seed: int = 0
) -> Federation:
    """Least squares f_i(x) = (1/2n) Σ_j (a_ijᵀx − b_ij)² whose largest L_i and whose Δ^inf are chosen.

    Each client has its own curvature, the largest eigenvalue of each being `smoothness`, and its own minimiser; these are
    spread so that Δ^inf = f^inf − mean f_i^inf is `heterogeneity`. noise: the standard deviation of the residuals at a client's
    minimiser, before that scaling; with it the samples of a client disagree, and Δ_i^inf > 0.
    """
    if samples < d:
        raise BadInput("samples", value=samples, must=f"be at least d={d}, so that every curvature has full rank")
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (clients, samples, d))
    largest = [np.linalg.eigvalsh(a.T @ a / samples)[-1] for a in features]
    features *= np.sqrt(smoothness / np.array(largest))[:, None, None]
    residuals = rng.uniform(-1, 1, (clients, samples)) * noise * np.sqrt(3)
    residuals -= np.stack([a @ np.linalg.lstsq(a, r, rcond=None)[0] for a, r in zip(features, residuals, strict=True)])
    minimisers = rng.uniform(-1, 1, (clients, d))
    spread = _spread(features, minimisers)
    scale = np.sqrt(heterogeneity / spread) if spread > 0 else 0.0
    targets = np.einsum("mnd,md->mn", features, scale * minimisers) + residuals
    ids = np.repeat(np.arange(clients), samples)
    return Federation.from_arrays(features.reshape(-1, d), targets.reshape(-1), ids)


def _spread(features: np.ndarray, minimisers: np.ndarray) -> float:
    """min_x (1/M) Σ_i ½ (x − c_i)ᵀ H_i (x − c_i)."""
    curvature = np.einsum("mnd,mne->mde", features, features) / features.shape[1]
    pulls = np.einsum("mde,me->md", curvature, minimisers)
    x = np.linalg.solve(curvature.mean(0), pulls.mean(0))
    return float(np.mean([0.5 * (x - c) @ h @ (x - c) for h, c in zip(curvature, minimisers, strict=True)]))


def linear(input_shape: tuple[int, ...]) -> nn.Module:
    """X ↦ aᵀx, starting at zero, without a bias."""
    layer = nn.Linear(int(torch.Size(input_shape).numel()), 1, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(nn.Flatten(), layer, nn.Flatten(0))


def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """(1/2n) Σ_j (output_j − target_j)²."""
    return 0.5 * (outputs - targets).square().mean()


class RegularisedLogistic(nn.Module):
    """Softmax regression from zero, with the non-convex penalty λ Σ_j x_j² / (1 + x_j²) over all weights.

    strength: λ. The penalty lies in [0, λd), and its second derivative in [−λ/2, 2λ].
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, strength: float = 0.01) -> None:
        super().__init__()
        self.layer = nn.Linear(int(torch.Size(input_shape).numel()), classes)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.strength = strength

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x.flatten(1))
        return outputs

    def penalty(self) -> Tensor:
        squares = [parameter.square() for parameter in self.parameters()]
        return self.strength * torch.stack([(each / (1 + each)).sum() for each in squares]).sum()

    @property
    def penalty_smoothness(self) -> float:
        """The largest second derivative of the penalty, at zero."""
        return 2 * self.strength


def regularised_logistic(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """`RegularisedLogistic` with λ = 0.01."""
    return RegularisedLogistic(input_shape, classes)

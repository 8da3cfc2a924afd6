"""The constants of a problem that the theorems ask for: L, lower bounds, heterogeneity.

Certified for linear models, with least squares exact and softmax regression bounded from above; an estimate otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from normec.data import Federation
from normec.local import LocalMethod
from normec.models import FlatModel

LARGEST_EXACT = 2000
"""Order of the largest matrix whose eigenvalues are computed; beyond, power iteration and a margin."""
POWER_ITERATIONS, MARGIN = 200, 1.05
WEIGHTS = {"half_squares": 1.0, "mse_loss": 2.0}
"""Of squared losses, by name: what multiplies (1/2n) ‖Ax − b‖²."""


@dataclass(frozen=True)
class Constants:
    """L: smoothness, of every f_i, and with incremental steps of every f_ij. infimum: f^inf or a lower bound of it.
    heterogeneity: Δ^inf. order_heterogeneity: the mean of the Δ_i^inf. how: in words. certified: whether they are proven.
    """

    L: float
    infimum: float
    heterogeneity: float
    order_heterogeneity: float
    how: str
    certified: bool


UNKNOWN = Constants(float("nan"), 0.0, 0.0, 0.0, "estimated along the run, with zero as the lower bound of every loss", False)


def constants(model: FlatModel, federation: Federation, local: LocalMethod) -> Constants:
    """The constants of a run's problem, or `UNKNOWN` where nothing is proven about its model.

    A linear model with the cross-entropy loss: L_i = ½ λ_max(AᵀA/n), A the client's features with a one for the bias, since
    diag(p) − ppᵀ <= ½ I; zero bounds every loss from below, so that Δ^inf = 0. With squared losses everything is exact. A
    module's `penalty` adds its `penalty_smoothness`.
    """
    layer = _linear_layer(model.module)
    penalty = getattr(model.module, "penalty", None)
    curvature = getattr(model.module, "penalty_smoothness", None) if penalty else 0.0
    if layer is None or curvature is None:
        return UNKNOWN
    batches = [_batches(federation, client, layer.bias is not None, local) for client in range(len(federation))]
    blocks = [block for client in batches for block in client]
    if model.loss is functional.cross_entropy:
        largest = max(0.5 * largest_eigenvalue(a) for a, _ in blocks)
        return Constants(largest + curvature, 0.0, 0.0, 0.0, "bounded from above for softmax regression", True)
    weight = 2.0 if isinstance(model.loss, nn.MSELoss) else WEIGHTS.get(getattr(model.loss, "__name__", ""), 0.0)
    if not weight or penalty or layer.out_features != 1:
        return UNKNOWN
    return _least_squares(batches, weight)


def _least_squares(batches: list[list[tuple[np.ndarray, np.ndarray]]], weight: float) -> Constants:
    """Exact constants of f_ij(x) = (weight/2n) ‖Ax − b‖²."""
    filled = [client for client in batches if client]
    largest = weight * max(largest_eigenvalue(a) for client in filled for a, _ in client)
    together = [_stacked(client) for client in filled]
    infimum = weight * _infimum(_stacked(together, count=len(batches)))
    own = [weight * _infimum(client) for client in together]
    within = [weight * float(np.mean([_infimum(_stacked([batch])) for batch in client])) for client in filled]
    order = float(np.sum(np.subtract(own, within))) / len(batches)
    return Constants(largest, infimum, max(infimum - sum(own) / len(batches), 0.0), max(order, 0.0), "exact for least squares", True)


def _stacked(parts: list[tuple[np.ndarray, np.ndarray]], count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows scaled so that ½‖Ax − b‖² is the mean of the parts' means (over `count` parts, the others being empty)."""
    scales = [1 / np.sqrt((count or len(parts)) * (len(b) if count is None else 1)) for _, b in parts]
    return np.concatenate([s * a for s, (a, _) in zip(scales, parts, strict=True)]), np.concatenate(
        [s * b for s, (_, b) in zip(scales, parts, strict=True)]
    )


def _infimum(system: tuple[np.ndarray, np.ndarray]) -> float:
    """min_x ½‖Ax − b‖²."""
    a, b = system
    return float(0.5 * np.square(a @ np.linalg.lstsq(a, b, rcond=None)[0] - b).sum())


def largest_eigenvalue(features: np.ndarray) -> float:
    """λ_max(AᵀA/n) of features (n, d): of the smaller Gram matrix, or by power iteration with a margin of 5%."""
    n, d = features.shape
    gram = features.T @ features / n if d <= n else features @ features.T / n
    if len(gram) <= LARGEST_EXACT:
        return float(np.linalg.eigvalsh(gram)[-1]) * (1 + 1e-12)
    vector = np.random.default_rng(0).uniform(0.5, 1.5, len(gram))
    for _ in range(POWER_ITERATIONS):
        vector = gram @ vector
        vector /= np.linalg.norm(vector)
    return float(vector @ gram @ vector) * MARGIN


def _batches(federation: Federation, client: int, bias: bool, local: LocalMethod) -> list[tuple[np.ndarray, np.ndarray]]:
    """(features, targets) of each f_ij of a client: its mini-batches in their order with ig, else all of its samples."""
    x, y = federation.client(client)
    features = x.flatten(1).double().cpu().numpy()
    if bias:
        features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    size = local.batch_size if local.method == "ig" else max(len(features), 1)
    targets = y.double().cpu().numpy()
    return [(features[start : start + size], targets[start : start + size]) for start in range(0, len(features), size)]


def _linear_layer(module: nn.Module) -> nn.Linear | None:
    """The one trainable linear layer of a module that is otherwise made of reshapes, or None."""
    leaves = [part for part in module.modules() if not list(part.children())]
    layers = [part for part in leaves if not isinstance(part, nn.Flatten | nn.Identity | nn.Unflatten)]
    known = type(module) in (nn.Sequential, nn.Linear) or hasattr(module, "penalty_smoothness")
    if len(layers) != 1 or not isinstance(layers[0], nn.Linear) or not known:
        return None
    return layers[0] if all(parameter.requires_grad for parameter in layers[0].parameters()) else None


def smoothness_seen(x: torch.Tensor, gradient: torch.Tensor, before: tuple[torch.Tensor, torch.Tensor] | None) -> float | None:
    """‖∇f(x) − ∇f(x')‖ / ‖x − x'‖: a lower estimate of L from two models of a run."""
    if before is None or not bool((x != before[0]).any()):
        return None
    return float((gradient - before[1]).norm() / (x - before[0]).double().norm())

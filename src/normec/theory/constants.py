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
from normec.theory.problems import RegularisedLogistic, half_squares

LARGEST_EXACT = 2000
"""Order of the largest matrix whose eigenvalues are computed; beyond, power iteration and a margin."""
POWER_ITERATIONS, MARGIN = 200, 1.05


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
    diag(p) − ppᵀ <= ½ I; zero bounds every loss from below, so that Δ^inf = 0. `RegularisedLogistic` adds what its penalty bends.
    With squared losses everything is exact. Recognised by exact types and identity: whatever might compute something else is
    unknown.
    """
    layer = _linear_layer(model.module, federation)
    regularised = type(model.module) is RegularisedLogistic
    if layer is None or (hasattr(model.module, "penalty") and not regularised):
        return UNKNOWN
    batches = [_batches(federation, client, layer.bias is not None, local) for client in range(len(federation))]
    if model.loss is functional.cross_entropy and not federation.y.is_floating_point():
        largest = max(0.5 * largest_eigenvalue(a) for client in batches for a, _ in client)
        bent = model.module.penalty_smoothness if isinstance(model.module, RegularisedLogistic) else 0.0
        return Constants(largest + bent, 0.0, 0.0, 0.0, "bounded from above for softmax regression", True)
    weight = _weight_of_squares(model.loss)
    one = federation.x[:1].to(model.vector.dtype)
    shapes_agree = model.outputs(model.vector.clone(), one).shape == federation.y[:1].shape
    if weight is None or regularised or not shapes_agree:
        return UNKNOWN
    return _least_squares(batches, weight)


def _weight_of_squares(loss: object) -> float | None:
    """What multiplies (1/2n) ‖Ax − b‖² in a squared loss that is known by identity; None for any other."""
    if loss is half_squares:
        return 1.0
    plain = type(loss) is nn.MSELoss and loss.reduction == "mean"
    return 2.0 if plain or loss is functional.mse_loss else None


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


def _linear_layer(module: nn.Module, federation: Federation) -> nn.Linear | None:
    """The linear layer of a model that is nothing but A x + b on flattened samples, or None."""
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return None
    parts = [module.layer] if type(module) is RegularisedLogistic else list(module) if type(module) is nn.Sequential else [module]
    kinds = [type(part) for part in parts]
    if kinds.count(nn.Linear) != 1 or any(kind not in (nn.Linear, nn.Flatten) for kind in kinds):
        return None
    position = kinds.index(nn.Linear)
    layer = parts[position]
    if not isinstance(layer, nn.Linear):
        return None
    own = {id(parameter) for parameter in layer.parameters() if parameter.requires_grad}
    whole = own == {id(parameter) for parameter in module.parameters()} and len(own) == 1 + (layer.bias is not None)
    flat = federation.x.ndim == 2 or position > 0 or type(module) is RegularisedLogistic
    return layer if whole and flat and layer.in_features == federation.x[0].numel() else None


def smoothness_seen(x: torch.Tensor, gradient: torch.Tensor, before: tuple[torch.Tensor, torch.Tensor] | None) -> float | None:
    """‖∇f(x) − ∇f(x')‖ / ‖x − x'‖: a lower estimate of L from two models of a run."""
    if before is None or not bool((x != before[0]).any()):
        return None
    return float((gradient - before[1]).norm() / (x - before[0]).double().norm())

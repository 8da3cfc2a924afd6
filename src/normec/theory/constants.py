"""The constants of a problem that the theorems need: L, lower bounds, heterogeneity.

Certified for linear models, with least squares exact and softmax regression bounded from above; an estimate otherwise.
They are those of f, the mean over all clients of the loss on all of each one's samples, whatever is scored in a round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from normec.data import Federation
from normec.local import LocalMethod
from normec.models import FlatModel
from normec.theory.recognition import agrees, recognised

LARGEST_EXACT, LARGEST_FACTORED = 2000, 6000
"""Orders of the largest matrices whose eigenvalues are computed, and whose largest one a Cholesky factor bounds."""
POWER_ITERATIONS, MARGIN = 200, 1.02


@dataclass(frozen=True, kw_only=True)
class Constants:
    """L: smoothness, of every f_i, and with incremental steps of every f_ij. infimum: f^inf or a lower bound of it.
    heterogeneity: Δ^inf. order_heterogeneity: the mean of the Δ_i^inf. how: in words. certified: whether they are proven.
    start: f(x⁰), None where it is not known from a formula.
    """

    L: float
    infimum: float = 0.0
    heterogeneity: float = 0.0
    order_heterogeneity: float = 0.0
    how: str
    certified: bool
    start: float | None = None


UNKNOWN = Constants(L=float("nan"), how="estimated along the run, with zero as the lower bound of every loss", certified=False)


def constants(model: FlatModel, federation: Federation, local: LocalMethod, start: Tensor | None = None) -> Constants:
    """The constants of a run's problem, or `UNKNOWN` where nothing is proven about its model.

    start: x⁰ (d,), by default where the model stands.

    A linear model with the cross-entropy loss: L_i = ½ λ_max(AᵀA/n), A the client's features with a one for the bias, since
    diag(p) − ppᵀ <= ½ I; zero bounds every loss from below, so that Δ^inf = 0. `RegularisedLogistic` adds what its penalty bends.
    With squared losses everything is exact, for any number of outputs. The model is recognised by its exact parts, and its losses
    and gradients are compared with the formula at a point of each client: whatever might compute something else is unknown.
    """
    x = (model.vector if start is None else start).double().cpu().numpy().copy()  # the model is about to move
    problem = recognised(model, federation)
    if problem is None:
        return UNKNOWN
    batches = [_batches(federation, client, problem.layer.bias is not None, local) for client in range(len(federation))]
    point = np.random.default_rng(0).uniform(-1, 1, len(x)) / np.sqrt(len(x))
    first, filled = 0.0, [client for client, parts in enumerate(batches) if parts]
    for client in filled:
        features, targets = _whole(batches[client])
        if not agrees(problem, model, federation.client(client), features, point):
            return UNKNOWN
        first += problem.values(x, features, targets)[0] / len(batches)
    if problem.squares is not None:
        return replace(_least_squares(batches, problem.squares), start=first)
    largest = max(0.5 * largest_eigenvalue(a) for client in batches for a, _ in client)
    how = "bounded from above for softmax regression"
    return Constants(L=largest + 2 * problem.penalty, how=how, certified=True, start=first)


def _least_squares(batches: list[list[tuple[np.ndarray, np.ndarray]]], weight: float) -> Constants:
    """Exact constants of f_ij(x) = (weight/2n) ‖Ax − b‖², the norm being over all samples and outputs."""
    filled = [client for client in batches if client]
    largest = weight * max(largest_eigenvalue(a) for client in filled for a, _ in client)
    together = [_stacked(client) for client in filled]
    infimum = weight * _infimum(_stacked(together, count=len(batches)))
    own = [weight * _infimum(client) for client in together]
    within = [weight * float(np.mean([_infimum(_stacked([batch])) for batch in client])) for client in filled]
    order = float(np.sum(np.subtract(own, within))) / len(batches)
    return Constants(
        L=largest,
        infimum=infimum,
        heterogeneity=max(infimum - sum(own) / len(batches), 0.0),
        order_heterogeneity=max(order, 0.0),
        how="exact for least squares",
        certified=True,
    )


def _stacked(parts: list[tuple[np.ndarray, np.ndarray]], count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows scaled so that ½‖Ax − b‖² is the mean of the parts' means (over `count` parts, the others being empty)."""
    scales = [1 / np.sqrt((count or len(parts)) * (len(b) if count is None else 1)) for _, b in parts]
    return np.concatenate([s * a for s, (a, _) in zip(scales, parts, strict=True)]), np.concatenate(
        [s * b for s, (_, b) in zip(scales, parts, strict=True)]
    )


def _whole(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """All samples of a client, of its mini-batches."""
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def _infimum(system: tuple[np.ndarray, np.ndarray]) -> float:
    """min_x ½‖Ax − b‖²."""
    a, b = system
    return float(0.5 * np.square(a @ np.linalg.lstsq(a, b, rcond=None)[0] - b).sum())


def largest_eigenvalue(features: np.ndarray) -> float:
    """λ_max(AᵀA/n) of features (n, d), or a proven upper bound of it: within 5% up to an order of `LARGEST_FACTORED`.

    Of the smaller Gram matrix G: where eigenvalues take too long, cI − G has a Cholesky factor, so that c is above them all; and
    where that does too, the trace or the largest row of |A|ᵀ|A| (Gershgorin), which may be far above.
    """
    n, d = features.shape
    if min(n, d) > LARGEST_FACTORED:
        sizes = np.abs(features)
        bounds = float(np.square(features).sum()), float((sizes.T @ sizes.sum(1)).max())
        return float(min(bounds) / n) * (1 + 1e-9)
    gram: np.ndarray = features.T @ features / n if d <= n else features @ features.T / n
    if len(gram) <= LARGEST_EXACT:
        return float(np.linalg.eigvalsh(gram)[-1]) * (1 + 1e-12)
    vector = np.random.default_rng(0).uniform(0.5, 1.5, len(gram))
    for _ in range(POWER_ITERATIONS):
        vector = gram @ vector
        vector /= np.linalg.norm(vector) or 1.0
    above = max(float(vector @ gram @ vector), float(gram.trace()) / len(gram))
    while above > 0:
        above *= MARGIN
        try:
            np.linalg.cholesky(above * np.eye(len(gram)) - gram)
        except np.linalg.LinAlgError:
            continue
        return above * (1 + 1e-9)
    return 0.0


def _batches(federation: Federation, client: int, bias: bool, local: LocalMethod) -> list[tuple[np.ndarray, np.ndarray]]:
    """(features, targets) of each f_ij of a client: its mini-batches in their order with ig, else all of its samples."""
    x, y = federation.client(client)
    features = x.flatten(1).double().cpu().numpy()
    if bias:
        features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    size = local.batch_size if local.method == "ig" else max(len(features), 1)
    targets = y.double().cpu().numpy()
    return [(features[start : start + size], targets[start : start + size]) for start in range(0, len(features), size)]


def smoothness_seen(x: torch.Tensor, gradient: torch.Tensor, before: tuple[torch.Tensor, torch.Tensor] | None) -> float | None:
    """‖∇f(x) − ∇f(x')‖ / ‖x − x'‖: a lower estimate of L from two models of a run."""
    if before is None or not bool((x != before[0]).any()):
        return None
    return float((gradient - before[1]).norm() / (x - before[0]).double().norm())

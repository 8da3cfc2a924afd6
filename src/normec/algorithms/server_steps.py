"""Steps of the server on the model that several algorithms share."""

from __future__ import annotations

import torch
from torch import Tensor


def descend(x: Tensor, direction: Tensor, lr: float) -> Tensor:
    """X − η v."""
    return x - lr * direction


def descend_normalized(x: Tensor, direction: Tensor, lr: float) -> Tensor:
    """X − η v / ‖v‖ (the step that the theorems cover); a zero v gives a zero step."""
    exact = direction.double()
    norm = torch.linalg.vector_norm(exact)
    return x - (lr * torch.where(norm > 0, exact / norm, 0.0)).to(x.dtype)

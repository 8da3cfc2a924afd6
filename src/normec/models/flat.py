"""A module seen as one flat vector of its trainable parameters."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from normec.errors import BadInput
from normec.local import Batch

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → the mean loss of the batch, a scalar."""


class FlatModel:
    """One resident module whose trainable parameters are views of one vector (d,).

    Frozen parameters and buffers stay outside the vector, hence outside the norm and the noise; tied parameters enter
    once. d: the number of trainable parameters.
    """

    def __init__(self, module: nn.Module, loss: Loss, device: torch.device, dtype: torch.dtype) -> None:
        self.module = module.to(device, dtype)
        self.loss = loss
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not self.parameters:
            raise BadInput("model", " has no trainable parameters. Give a module with at least one.")
        self.vector = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self._gradient_sum = torch.zeros_like(self.vector)
        self._gradient_views = self._views(self._gradient_sum)
        for parameter, view in zip(self.parameters, self._views(self.vector), strict=True):
            parameter.data = view
        self.stochastic = False
        """Whether the forward pass draws random numbers in training; set by `probe`."""

    @property
    def d(self) -> int:
        return len(self.vector)

    def fingerprint(self) -> str:
        """A hash of the parameters as they stand."""
        return hashlib.blake2b(self.vector.cpu().numpy().tobytes(), digest_size=16).hexdigest()

    def replica(self) -> FlatModel:
        """An independent copy, for another worker."""
        module = copy.deepcopy(self.module)
        twin = FlatModel(module, self.loss, self.vector.device, self.vector.dtype)
        twin.stochastic = self.stochastic
        return twin

    def local_update(self, x: Tensor, samples: tuple[Tensor, Tensor], schedule: Sequence[Batch], lr: float, out: Tensor) -> None:
        """Writes g = (x − T(x)) / γ into `out` (d,): the mean of the gradients met on the way from x (d,).

        Computed as that mean and not as a difference, which would cancel for a small γ = lr. No steps give zero.
        """
        features, targets = samples
        self.module.train()
        self.vector.copy_(x)
        total = self._gradient_sum.zero_()
        for step, batch in enumerate(schedule):
            if step:
                torch.add(x, total, alpha=-lr / len(schedule), out=self.vector)
            loss = self.loss(self.module(features[batch]), targets[batch])
            gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
            torch._foreach_add_(self._gradient_views, gradients)
        torch.div(total, max(len(schedule), 1), out=out)

    def outputs(self, x: Tensor, features: Tensor) -> Tensor:
        """The module's outputs at parameters x, in evaluation mode."""
        self.module.eval()
        self.vector.copy_(x)
        with torch.no_grad():
            outputs: Tensor = self.module(features)
        return outputs

    def probe(self, samples: tuple[Tensor, Tensor]) -> None:
        """Runs one training step on a few samples, so that an unsuitable model is refused before training.

        Raises:
            BadInput: where it fails, its loss is no finite scalar, or its forward pass changes buffers.
        """
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        start, before = self.vector.clone(), torch.get_rng_state()
        try:
            self.module.train()
            loss = self.loss(self.module(samples[0]), samples[1])
            torch.autograd.grad(loss, self.parameters, allow_unused=True)
        except Exception as error:  # whatever a user's module or loss raises
            reason = " ".join(str(error).split())
            problem = f" fails on samples of shape {tuple(samples[0].shape)}: {type(error).__name__}: {reason}."
            raise BadInput("model", problem) from error
        if not bool(loss.isfinite()):
            raise BadInput("model", f" and loss give {float(loss)} on the first samples. They must give a finite number.")
        for name, buffer in self.module.named_buffers():
            if not torch.equal(buffer, buffers[name]):
                problem = f" changes its buffer {name} in the forward pass, which would leak outside the mechanism."
                raise BadInput("model", problem + " Use GroupNorm in place of BatchNorm.")
        self.stochastic = not torch.equal(before, torch.get_rng_state())
        self.vector.copy_(start)

    def _views(self, vector: Tensor) -> list[Tensor]:
        parts = torch.split(vector, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

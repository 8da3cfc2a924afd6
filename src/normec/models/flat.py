"""A module seen as one flat vector of its trainable parameters."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from normec.errors import FAILURES, BadInput, ModelFailed, TrainingFailed, plural
from normec.local import Batch
from normec.models.readings import Loss, Reading


class LocalSteps(NamedTuple):
    """How a client steps from x: y ← y − (γ / steps) (gradient at y + correction + μ (y − x)).

    lr: γ. correction: (d,), or None for zero. proximal: μ. divisor: what divides the sum of a mini-batch's gradients, None for its size.
    """

    lr: float
    correction: Tensor | None = None
    proximal: float = 0.0
    divisor: float | None = None

    def share(self, held: int) -> float:
        """What the mean gradient of a mini-batch that holds so many samples is multiplied by."""
        return 1.0 if self.divisor is None else held / self.divisor


class FlatModel:
    """One resident module whose trainable parameters are views of one vector (d,).

    Frozen parameters and buffers stay outside the vector, hence outside the norm and the noise; tied parameters enter
    once. Buffers are put back to their common values before every use, so that nothing of one client's data reaches another
    through them; those that the forward pass moves, such as running statistics, are `moving`. d: the number of trainable parameters.
    """

    def __init__(self, module: nn.Module, loss: Loss, device: torch.device, dtype: torch.dtype) -> None:
        self.module = module.to(device, dtype)
        self.loss = copy.deepcopy(loss).to(device, dtype) if isinstance(loss, nn.Module) else loss
        self.parameters = trainable(self.module)
        if not sum(p.numel() for p in self.parameters):
            raise BadInput("model", "has no trainable parameters", remedy="Give a module with at least one")
        self.vector = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self._held = self._places()
        self._gradient_sum = torch.zeros_like(self.vector)
        self._gradient_views = self._views(self._gradient_sum)
        for parameter, view in zip(self.parameters, self._views(self.vector), strict=True):
            parameter.data = view
        self._buffers = [
            (owner, name, buffer, buffer.clone())
            for owner in self.module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        self.stochastic = False
        """Whether the forward pass was seen to draw random numbers in training."""
        self.keeps: str | None = None
        """An attribute that the forward pass was seen to change: a counter, or something of the samples."""
        self.moving: list[int] = []
        """The positions of the buffers that the forward pass was seen to change in training."""
        self.mixes_samples = False
        """Whether the outputs of a sample were seen to depend on those beside it, in evaluation too."""
        self.reading = Reading()
        """How its outputs are read."""

    @property
    def plain_cross_entropy(self) -> bool:
        """Whether the loss of a batch is the mean of its samples' cross-entropies."""
        return self.loss is functional.cross_entropy and not self.reading.left_out

    @property
    def d(self) -> int:
        return len(self.vector)

    def fingerprint(self) -> str:
        """A hash of the module's structure, its loss and its parameters as they stand."""
        digest = hashlib.blake2b(f"{self.module}/{getattr(self.loss, '__qualname__', self.loss)}".encode(), digest_size=16)
        digest.update(self.vector.cpu().numpy().tobytes())
        for held in self.loss.state_dict().values() if isinstance(self.loss, nn.Module) else ():  # such as class weights
            digest.update(held.cpu().numpy().tobytes())
        return digest.hexdigest()

    def replica(self) -> FlatModel:
        """An independent copy, for another worker."""
        try:
            module = copy.deepcopy(self.module)
        except Exception as error:  # a module may hold what cannot be copied
            raise BadInput("engine.workers", f": this model cannot be copied ({error})", remedy="Use engine.workers=1") from error
        twin = FlatModel(module, self.loss, self.vector.device, self.vector.dtype)
        twin.stochastic, twin.moving, twin.keeps, twin.reading = self.stochastic, self.moving, self.keeps, self.reading
        return twin

    @property
    def buffers(self) -> Tensor:
        """The moving buffers as they stand, (m,) in float64, which holds counters exactly."""
        held = [owner._buffers[name] for owner, name, _, _ in self._moving()]
        parts = [torch.as_tensor(buffer, device=self.vector.device).double().reshape(-1) for buffer in held]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=self.vector.device)

    @property
    def counters(self) -> Tensor:
        """Mask (bool, (m,)) of the moving buffers' numbers that are whole."""
        kinds = [torch.full((buffer.numel(),), not buffer.is_floating_point(), device=buffer.device) for _, _, buffer, _ in self._moving()]
        return torch.cat(kinds) if kinds else torch.zeros(0, dtype=torch.bool, device=self.vector.device)

    def start_from(self, buffers: Tensor) -> None:
        """Sets the values (m,) to which the moving buffers are restored."""
        saved = [saved for _, _, _, saved in self._moving()]
        for values, part in zip(saved, torch.split(buffers, [each.numel() for each in saved]), strict=True):
            values.copy_(part.view(values.shape))

    def _places(self) -> set[tuple[int, str, bool]]:
        """Where there are buffers, and which of these are None."""
        return {(id(owner), name, buffer is None) for owner in self.module.modules() for name, buffer in owner._buffers.items()}

    def _moving(self) -> list[tuple[nn.Module, str, Tensor, Tensor]]:
        return [self._buffers[position] for position in self.moving]

    def local_update(self, x: Tensor, samples: tuple[Tensor, Tensor], schedule: Sequence[Batch], steps: LocalSteps, out: Tensor) -> None:
        """Writes g = (x − T(x)) / γ into `out` (d,): the mean of the directions along the way from x (d,).

        Computed as that mean and not as a difference, which would cancel for a small γ. A client without samples has f_i = 0, so
        that its direction is the correction alone.
        """
        features, targets = samples
        self.enter(x, training=True)
        total = self._gradient_sum.zero_()
        for step, batch in enumerate(schedule):
            if step:
                torch.add(x, total, alpha=-steps.lr / len(schedule), out=self.vector)
            loss = self._loss(features[batch], targets[batch], steps)
            if loss is not None:
                gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
                torch._foreach_add_(self._gradient_views, gradients)
            if steps.correction is not None:
                total += steps.correction
            if steps.proximal and step:
                total.add_(self.vector - x, alpha=steps.proximal)
        if not schedule and steps.correction is not None:
            total += steps.correction
        torch.div(total, max(len(schedule), 1), out=out)

    def objective(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch, and the module's `penalty()` where it has one."""
        loss, penalty = self.loss(outputs, targets), self.penalty()
        return loss if penalty is None else loss + penalty

    def penalty(self) -> Tensor | None:
        """The module's `penalty()`, which no sample enters; None where it has none."""
        return self.module.penalty() if hasattr(self.module, "penalty") else None  # type: ignore[operator]

    def _loss(self, features: Tensor, targets: Tensor, steps: LocalSteps) -> Tensor | None:
        """What a local step descends; None where that is nothing: a mini-batch is empty, and there is no penalty."""
        if steps.divisor is None:
            return self.objective(self.module(features), targets)
        penalty, held = self.penalty(), len(targets)
        if not held:
            return penalty
        loss = self.loss(self.module(features), targets) * steps.share(held)
        return loss if penalty is None else loss + penalty

    def gradient(self, x: Tensor, samples: tuple[Tensor, Tensor], out: Tensor) -> None:
        """Writes the gradient (d,) of a client's objective at x (d,) into `out`; zero without samples."""
        self.local_update(x, samples, [slice(None)] if len(samples[1]) else [], LocalSteps(1.0), out)

    def outputs(self, x: Tensor, features: Tensor) -> Tensor:
        """The module's outputs at parameters x, in evaluation mode.

        Raises:
            ModelFailed: where it fails.
            TrainingFailed: where the module has other trainable parameters than at the start.
        """
        if [id(p) for p in trainable(self.module)] != [id(p) for p in self.parameters]:
            raise TrainingFailed("the model's trainable parameters changed during the run. Fix which ones are trainable.")
        self.enter(x, training=False)
        try:
            with torch.no_grad():
                outputs: Tensor = self.module(features)
        except FAILURES as error:  # whatever a user's module raises
            reason = " ".join(str(error).split()).rstrip(".")
            problem = f"the model fails on {plural(len(features), 'sample')} in evaluation ({type(error).__name__}: {reason})."
            raise ModelFailed(f"{problem} Change the model, or the data.") from error
        return outputs

    def load(self, x: Tensor) -> nn.Module:
        """The module, with the parameters x (d,) in it."""
        self.enter(x, training=False)
        return self.module

    def note_buffers(self) -> None:
        """Notes which buffers a forward pass has moved.

        Raises:
            BadInput: where it has made or removed one, or changed its shape or type.
        """
        if self._places() != self._held:
            raise BadInput(
                "model",
                "makes or removes buffers in its forward pass, where one client's data would reach the others",
                remedy="Register them, with their shapes, when the module is made",
            )
        for position, (owner, name, buffer, saved) in enumerate(self._buffers):
            now = owner._buffers[name]
            if now is not None and (now.shape != saved.shape or now.dtype != saved.dtype or now.is_complex()):
                raise BadInput("model", f"changes the shape or type of its buffer {name} in the forward pass", remedy="Keep both")
            if position not in self.moving and (now is not buffer or not _same(buffer, saved)):
                self.moving.append(position)

    def refuse_what_collects_data(self) -> None:
        """Refuses a model whose buffers or attributes collect data.

        Raises:
            BadInput: naming the first of them.
        """
        if self.keeps:
            raise BadInput(
                "model",
                (
                    f"changes its attribute {self.keeps} in the forward pass, where one client's data could reach the others, "
                    "which no noise would protect"
                ),
                remedy="Keep nothing, or use privacy.trust=none",
            )
        for _, name, _, _ in self._moving():
            raise BadInput(
                "model",
                f"collects data in its buffer {name} in the forward pass, which no noise would protect",
                remedy="Use GroupNorm in place of BatchNorm (model.norm=group), or privacy.trust=none",
            )

    def enter(self, x: Tensor, training: bool) -> None:
        """Puts the module at the parameters x (d,), with its common buffers, in training or evaluation mode."""
        self.module.train(training)
        self.vector.copy_(x)
        for owner, name, buffer, saved in self._buffers:
            owner._buffers[name] = buffer
            buffer.copy_(saved)

    def _views(self, vector: Tensor) -> list[Tensor]:
        parts = torch.split(vector, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal element by element, NaN to NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())

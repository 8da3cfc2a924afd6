"""One training step on a few samples, so that an unsuitable model is refused before training."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from normec.errors import FAILURES, BadInput
from normec.models.attributes import changed, held
from normec.models.flat import FlatModel, trainable
from normec.models.readings import Fit, fits, mixes, strangers

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def probe(model: FlatModel, samples: tuple[Tensor, Tensor], classes: int | None) -> tuple[Tensor, Fit]:
    """Notes the model's side effects, and returns its outputs and the form in which its loss takes the targets.

    Raises:
        BadInput: where it fails, does not fit the loss, or its forward pass changes its parameters.
    """
    start, before, held_before = model.vector.clone(), torch.get_rng_state(), held(model.module)
    drawn = random.getstate(), np.random.get_state()  # noqa: NPY002 (whether a model draws from it)
    shape = tuple(samples[0].shape)
    given, targets = (tensor.clone() for tensor in samples)
    try:
        for training in (False, True):
            model.enter(start, training=training)
            outputs = model.module(given)
            if not isinstance(outputs, Tensor):
                raise TypeError(f"it returns {type(outputs).__name__}; return a tensor")
            if not torch.equal(given, samples[0]):
                raise ValueError("it writes into its input; make its first layer one that does not work in place")
            model.note_buffers()
            model.mixes_samples |= not training and _mixes(model.module, given, outputs)
        _check_shape(model, outputs, targets, classes)
        fit = _fit(model, outputs, targets)
        if not torch.equal(targets, samples[1]):
            raise ValueError("the loss writes into its targets; make it one that does not work in place")
    except BadInput:
        raise
    except FAILURES as error:  # whatever a user's module or loss raises
        odd = strangers([targets], classes)
        loss = f"torch.nn.CrossEntropyLoss(ignore_index={odd[0]})" if odd else ""
        remedy = f"Targets {odd[0]} are not classes: give a loss that leaves them out, {loss}" if odd else ""
        reason = " ".join(str(error).split()).rstrip(".")
        problem = f"or its loss fails on samples of shape {shape}: {type(error).__name__}: {reason}"
        raise BadInput("model", problem, remedy=remedy) from error
    model.stochastic |= not torch.equal(before, torch.get_rng_state())
    _refuse_foreign_draws(*drawn)
    model.note_buffers()
    model.keeps = model.keeps or changed(held_before, held(model.module))
    if [id(p) for p in trainable(model.module)] != [id(p) for p in model.parameters] or not torch.equal(start, model.vector):
        raise BadInput("model", "changes its own parameters in the forward pass", remedy="Leave them to the training")
    return outputs.detach(), fit


def _check_shape(model: FlatModel, outputs: Tensor, targets: Tensor, classes: int | None) -> None:
    if model.loss is functional.cross_entropy and (outputs.ndim < 2 or outputs.shape[1] < (classes or 0)):
        axis = f" on axis 1 of {targets.ndim + 1}"
        where = f"; the scores of the classes belong{axis}" if targets.ndim > 1 else "; cross-entropy needs one score for each class"
        raise ValueError(f"outputs of shape {tuple(outputs.shape)} for {classes} classes{where}")
    if len(outputs) != len(targets):
        raise ValueError(f"outputs of shape {tuple(outputs.shape)}")


def _fit(model: FlatModel, outputs: Tensor, targets: Tensor) -> Fit:
    """The first form of the targets with which a step can be taken; before others one in which each target meets its own output."""
    fitting: list[Fit] = []
    problem: BaseException | None = None
    for fit in fits(outputs, targets):
        given = targets if fit == Fit() else fit(targets, model.vector.dtype)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Using a target size")  # torch would broadcast, and train on nonsense
                loss = model.objective(outputs, given)
            if isinstance(loss, Tensor) and loss.numel() != 1:
                raise ValueError(f"the loss returns {tuple(loss.shape)} numbers; return their mean, as with reduction='mean'")
            torch.autograd.grad(loss, model.parameters, allow_unused=True, retain_graph=True)
        except FAILURES as error:  # whatever a user's loss raises
            problem = problem or error
            continue
        fitting.append(fit)
        if not mixes(model.loss, outputs.detach(), given):
            return fit
    if not fitting and problem:
        raise problem
    return fitting[0]


def _mixes(module: nn.Module, features: Tensor, outputs: Tensor) -> bool:
    """Whether the outputs of a sample depend on those beside it, as with batch normalization that keeps no statistics."""
    if any(part.running_mean is None for part in module.modules() if isinstance(part, BATCH_NORMS)):
        return True
    drawn, half = torch.get_rng_state(), len(features) // 2
    alone = module(features[:half]) if half else outputs[:0]
    close = torch.allclose(alone, outputs[:half], rtol=1e-2, atol=1e-3, equal_nan=True)
    return not close and torch.equal(drawn, torch.get_rng_state())


def _refuse_foreign_draws(plain: Any, of_numpy: Any) -> None:
    """Refuses a model that has moved these states of Python's and numpy's generators, and moves them back."""
    now = np.random.get_state()  # noqa: NPY002
    same = random.getstate() == plain and all(np.array_equal(a, b) for a, b in zip(of_numpy, now, strict=True))
    random.setstate(plain)
    np.random.set_state(of_numpy)  # noqa: NPY002
    if not same:
        raise BadInput(
            "model",
            "draws from Python's or numpy's own generator, which no seed of the run reaches",
            remedy="Draw with torch, such as torch.rand",
        )

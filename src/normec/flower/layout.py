"""A model's arrays as one vector: which of them are trained, and which are one parameter under several names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from normec.errors import BadInput

Model = ArrayRecord | Mapping[str, Tensor] | nn.Module
"""What a model may be given as. Of a module it is known what is trained and what is tied; of a state dict, what is tied; of an
array record neither, and arrays that begin equal are taken for tied until a client moves them apart."""


class Layout(NamedTuple):
    """Which arrays of a model are trained, in what order they make one vector (d,), and their shapes.

    copies: further names of trained arrays, with the name under which each is in the vector.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    copies: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_model(cls, model: Model, trained: Sequence[str] | None) -> tuple[ArrayRecord, Layout]:
        """A model's arrays and their layout; by default all of them are trained, of a module what requires gradients.

        Raises:
            BadInput: for an array that is not there, or holds no floating-point numbers; for layers that collect statistics.
        """
        if isinstance(model, ArrayRecord):
            same = _firsts({name: key for name, array in model.items() if (key := _content(array))})
            return model, cls.of(model, trained, tuple(same.items()))
        if isinstance(model, nn.Module):
            _refuse_what_collects_statistics(model)
            if trained is None:
                trained = [name for name, each in model.named_parameters(remove_duplicate=False) if each.requires_grad]
            model = model.state_dict()
        same = _firsts({name: _place(each) for name, each in model.items() if each.numel()})
        _refuse_what_overlaps({name: each for name, each in model.items() if each.numel() and name not in same})
        arrays = ArrayRecord(dict(model))
        return arrays, cls.of(arrays, trained, tuple(same.items()))

    @classmethod
    def of(cls, arrays: ArrayRecord, trained: Sequence[str] | None, copies: Sequence[tuple[str, str]] = ()) -> Layout:
        """The layout of a model's arrays, given which of them are copies; by default all are trained.

        Raises:
            BadInput: for an array that is not there, or holds no floating-point numbers.
        """
        first = dict(copies)
        if absent := {*(trained or ()), *first, *first.values()} - set(arrays):
            raise BadInput("trained", f"names {min(absent)!r}, and the model's arrays are {', '.join(arrays)}")
        wanted = {first.get(name, name) for name in (arrays if trained is None else trained)}
        names = tuple(name for name in arrays if name in wanted)
        for name in names:
            if not np.issubdtype(np.dtype(arrays[name].dtype), np.floating):
                raise BadInput(
                    "initial_arrays",
                    f": {name!r} holds {arrays[name].dtype}, which no noise can protect and no step can move",
                    remedy="Give the module itself, or name the trained arrays with trained=[…]",
                )
        if not names:
            raise BadInput("initial_arrays", "hold nothing to train", remedy="Give the model's arrays")
        used = tuple(pair for pair in copies if pair[1] in wanted)
        return cls(names, tuple(tuple(arrays[name].shape) for name in names), used)

    @property
    def d(self) -> int:
        """The number of trained parameters."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def flat(self, arrays: ArrayRecord) -> Tensor:
        """The trained arrays as one vector (d,), float32.

        Raises:
            BadInput: for arrays of another model.
        """
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in arrays or tuple(arrays[name].shape) != shape:
                raise BadInput(
                    "arrays", f"hold no {name!r} of shape {shape}", remedy="Return the arrays that were received, with their names"
                )
            parts.append(arrays[name].numpy().astype(np.float32, casting="same_kind").ravel())
        return torch.from_numpy(np.concatenate(parts))

    def check_copies(self, arrays: ArrayRecord) -> None:
        """Refuses arrays in which what was taken for one parameter has become two.

        Raises:
            BadInput: naming both.
        """
        for name, first in self.copies:
            if name not in arrays or not np.array_equal(arrays[name].numpy(), arrays[first].numpy(), equal_nan=True):
                raise BadInput(
                    "arrays",
                    f": {name!r} and {first!r} began equal and count as one parameter, and training has moved them apart",
                    remedy="Tie them in the train function's model, or give Strategy.start the module itself",
                )

    @staticmethod
    def tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
        """Arrays by name, as tensors."""
        return {name: torch.from_numpy(np.array(array.numpy(), order="C")) for name, array in arrays.items()}

    def arrays(self, x: Tensor, like: ArrayRecord) -> ArrayRecord:
        """The model's arrays with the trained ones and their copies taken from x (d,); the others, and all types, as in `like`."""
        parts = dict(zip(self.names, torch.split(x, [int(np.prod(shape)) for shape in self.shapes]), strict=True))
        first, made = dict(self.copies), {}
        for name, array in like.items():
            part = parts.get(first.get(name, name))
            made[name] = array if part is None else Array(part.numpy().astype(array.dtype).reshape(array.shape))
        return ArrayRecord(made)


def _refuse_what_collects_statistics(module: nn.Module) -> None:
    """Running statistics of the data travel in no message: at the server they would stay as they began."""
    for name, layer in module.named_modules():
        if getattr(layer, "running_mean", None) is not None:
            raise BadInput(
                "initial_arrays",
                f": its layer {name!r} ({type(layer).__name__}) collects statistics of the data, which no message carries",
                remedy="Use GroupNorm",
            )


def _refuse_what_overlaps(tensors: Mapping[str, Tensor]) -> None:
    """Tensors that share a part of their memory, or all of it in another shape, are neither one parameter nor two."""
    name, end = "", 0
    for other, tensor in sorted(tensors.items(), key=lambda each: each[1].data_ptr()):
        start = tensor.data_ptr()
        if start < end:
            raise BadInput(
                "initial_arrays",
                f": {name!r} and {other!r} share memory and are not the same tensor, so that neither can move alone",
                remedy="Make one of them a copy (.clone()), or both the same tensor",
            )
        length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        name, end = other, start + length * tensor.element_size()


def _firsts(keys: Mapping[str, object]) -> dict[str, str]:
    """By name, the first name with the same key, where that is another."""
    first: dict[object, str] = {}
    found = {name: first.setdefault(key, name) for name, key in keys.items()}
    return {name: other for name, other in found.items() if name != other}


def _place(tensor: Tensor) -> object:
    """Where a tensor lies, and how it is read from there."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _content(array: Array) -> object:
    """What an array holds; none where it is a constant, as fresh biases are that are not tied."""
    values = array.numpy()
    return (values.tobytes(), values.shape, str(values.dtype)) if values.size and (values != values.flat[0]).any() else None

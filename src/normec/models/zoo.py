"""Built-in models, and factories by import path."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from normec.errors import BadInput, nearest
from normec.imports import load_object, looks_like_import_path
from normec.models.images import CNN, ResNet20
from normec.models.text import CharLM
from normec.settings import Positive, Settings, Text
from normec.streams import global_generators_seeded

Factory = Callable[..., nn.Module]
"""Makes a module; or a module itself, of which each run takes a copy."""
Weights = Annotated[tuple[Positive, ...], Field(strict=False, description="a list of numbers > 0, one for each class")]


class Model(Settings):
    """The `[model]` section. name: a built-in one, or `package.module:factory`. loss: "cross-entropy", or `package.module:function`.

    norm: of cnn and resnet20, "group" (by default) or "batch", whose running statistics only runs without privacy allow.
    start: the folder of a run, a .safetensors file or a state dict, whose weights the model starts from.
    class_weights: the weight of a sample of each class under cross-entropy. They are constants: weights computed from the clients' data
    would be a separate release.
    """

    name: Text = "logistic"
    loss: Text = "cross-entropy"
    norm: Literal["group", "batch"] | None = None
    class_weights: Weights | None = None
    start: Text | None = None

    def __init__(self, /, **values: Any) -> None:
        super().__init__(**values)
        if self.class_weights is not None and self.loss != "cross-entropy":
            raise BadInput(
                "class_weights",
                "acts only with loss='cross-entropy'",
                value=list(self.class_weights),
                remedy="Remove it, or weigh in your own loss",
            )

    def resolved(self) -> Model:
        """The same section with the path of a start made absolute."""
        return self if self.start is None else self.changed(start=str(Path(self.start).absolute()))


def logistic(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Softmax regression on flattened features, starting at zero: weight (outputs, features), then bias (outputs,); linear for numbers."""
    linear = nn.Linear(_features(input_shape), outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Flatten(), linear)


def mlp(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two layers with 64 hidden units and ReLU, in torch's default initialisation."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_features(input_shape), 64), nn.ReLU(), nn.Linear(64, outputs))


MODELS: dict[str, Factory] = {"logistic": logistic, "mlp": mlp, "cnn": CNN, "resnet20": ResNet20, "charlm": CharLM}


def factory(model: Model) -> Factory:
    """The factory that a `[model]` section names.

    Raises:
        BadInput: for an unknown name, or a norm for a model that has none to choose.
    """
    name = model.name
    if looks_like_import_path(name):
        make: Factory = load_object("model.name", name)
    elif name in MODELS:
        make = MODELS[name]
    else:
        raise BadInput(
            "model.name", "is not known", value=name, remedy=f"{nearest(name, MODELS)} A factory of your own: package.module:factory"
        )
    if model.norm is None:
        return make
    if "norm" not in inspect.signature(make).parameters:
        raise BadInput("model.norm", "acts only with cnn and resnet20", value=model.norm, remedy="Remove it, or change model.name")
    return functools.partial(make, norm=model.norm)


def address(make: Factory) -> dict[str, str] | None:
    """The name of a factory in a `[model]` section; None for a factory that cannot be imported again."""
    if isinstance(make, functools.partial):
        inner = address(make.func)
        return None if inner is None or make.args or set(make.keywords) != {"norm"} else inner | {"norm": str(make.keywords["norm"])}
    if isinstance(make, nn.Module):
        return None
    for name, known in MODELS.items():
        if make is known:
            return {"name": name}
    module, name = getattr(make, "__module__", "__main__"), getattr(make, "__qualname__", "<unnamed>")
    return None if module == "__main__" or "<" in name else {"name": f"{module}:{name}"}


def loss_function(model: Model) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss that a `[model]` section names: (outputs, targets) → the mean loss of a batch."""
    name = model.loss
    if name == "cross-entropy":
        return functional.cross_entropy if model.class_weights is None else nn.CrossEntropyLoss(weight=torch.tensor(model.class_weights))
    if not looks_like_import_path(name):
        raise BadInput(
            "model.loss",
            "is not known",
            value=name,
            remedy="Use cross-entropy, or a function package.module:function, such as torch.nn.functional:mse_loss",
        )
    loss: Callable[[Tensor, Tensor], Tensor] = load_object("model.loss", name)
    if isinstance(loss, type):
        made = f"loss = {loss.__name__}()"
        raise BadInput(
            "model.loss",
            "is a class",
            value=name,
            remedy=f"Name a function of outputs and targets, or an object: write {made} in a module, and name that",
        )
    return loss


def build(make: Factory, sample: Tensor, classes: int | None, seed: int, outputs: int | None = None) -> nn.Module:
    """The module of a factory, with its random initialisation drawn from `seed`; or a copy of a module that is given.

    A factory may ask for `input_shape` (of one sample), `classes` and `outputs` by those parameter names, or for nothing. outputs: how
    many a sample should have, by default as many as there are classes.

    Raises:
        BadInput: where the factory fails or returns no torch.nn.Module.
    """
    label = type(make).__name__ if isinstance(make, nn.Module) else getattr(make, "__qualname__", repr(make))
    offered: dict[str, object] = {"input_shape": tuple(sample.shape), "classes": classes, "outputs": outputs or classes}
    with global_generators_seeded(seed):
        try:
            if isinstance(make, nn.Module):
                module = copy.deepcopy(make)
            else:
                asked = inspect.signature(make).parameters
                module = make(**{name: value for name, value in offered.items() if name in asked})
        except (Exception, SystemExit) as error:  # whatever a user's factory raises
            failed = "cannot be copied; give a function that makes it" if isinstance(make, nn.Module) else "failed"
            raise BadInput("model", f": {label} {failed} ({type(error).__name__}: {error})") from error
    if not isinstance(module, nn.Module):
        raise BadInput("model", f": {label} returned {type(module).__name__}", remedy="Return a torch.nn.Module")
    for name, parameter in module.named_parameters():
        lazy = nn.parameter.is_lazy(parameter)
        if lazy or parameter.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            problem = "has no shape yet. Pass one batch through the module first" if lazy else f"is {parameter.dtype}. Use floats"
            raise BadInput("model", f": {label} has the parameter {name}, which {problem}")
    return module


def _features(input_shape: tuple[int, ...]) -> int:
    return int(torch.Size(input_shape).numel())

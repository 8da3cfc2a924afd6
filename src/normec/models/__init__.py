"""Models: the flat view that algorithms work on, and the built-in ones."""

from normec.models.flat import FlatModel, LocalSteps, Loss
from normec.models.images import CNN, ResNet20
from normec.models.text import CharLM
from normec.models.zoo import Factory, Model, address, build, factory, logistic, loss_function, mlp

__all__ = [
    "CNN", "CharLM", "Factory", "FlatModel", "LocalSteps", "Loss", "Model", "ResNet20", "address", "build", "factory", "logistic",
    "loss_function", "mlp",
]  # fmt: skip

"""Models: the flat view that algorithms work on, and the built-in ones."""

from normec.models.flat import FlatModel, LocalSteps, Loss
from normec.models.zoo import Factory, Model, build, factory, loss_function

__all__ = ["Factory", "FlatModel", "LocalSteps", "Loss", "Model", "build", "factory", "loss_function"]

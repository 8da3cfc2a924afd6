"""Models: the flat view that algorithms work on, and the built-in ones."""

from normec.models.flat import FlatModel, LocalSteps
from normec.models.images import CNN, ResNet20
from normec.models.probe import probe
from normec.models.readings import Loss, Reading, reading_of
from normec.models.start import start_from, start_note
from normec.models.text import CharLM
from normec.models.zoo import Factory, Model, address, build, factory, logistic, loss_function, mlp

__all__ = [
    "CNN",
    "CharLM",
    "Factory",
    "FlatModel",
    "LocalSteps",
    "Loss",
    "Model",
    "Reading",
    "ResNet20",
    "address",
    "build",
    "factory",
    "logistic",
    "loss_function",
    "mlp",
    "probe",
    "reading_of",
    "start_from",
    "start_note",
]  # fmt: skip

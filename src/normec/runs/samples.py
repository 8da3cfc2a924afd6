"""A few samples through the model before a run: which features, targets and batches it takes, and how its outputs are read."""

from __future__ import annotations

import contextlib

from torch import Tensor

from normec.data import Federation
from normec.errors import BadInput, plural
from normec.models import FlatModel, Reading, probe, reading_of
from normec.models.readings import Fit, passes_over, strangers

PROBE_SAMPLES = 8


def probed(model: FlatModel, federation: Federation, classes: int | None) -> tuple[Federation, Tensor, Fit]:
    """The federation with features as the model takes them, whole numbers or floats, its outputs, and how its loss takes the targets.

    A file does not say what its whole numbers are: an embedding takes codes, a linear layer measurements.

    Raises:
        BadInput: where the model takes neither.
    """
    try:
        return federation, *probe(model, (federation.x[:PROBE_SAMPLES], federation.y[:PROBE_SAMPLES]), classes)
    except BadInput:
        other = federation.with_features_of_the_other_kind(model.vector.dtype)
        if other is None:
            raise
        with contextlib.suppress(BadInput):
            return other, *probe(model, (other.x[:PROBE_SAMPLES], other.y[:PROBE_SAMPLES]), classes)
        raise


def probe_smallest(model: FlatModel, samples: tuple[Tensor, Tensor], smallest: int, classes: int | None) -> None:
    """That the model can train on the smallest mini-batch of any client.

    Raises:
        BadInput: where it cannot.
    """
    try:
        probe(model, (samples[0][:smallest], samples[1][:smallest]), classes)
    except BadInput as error:
        remedy = "Raise data.min_size or local.batch_size, leave such clients out, or use a model that can (GroupNorm for BatchNorm)"
        raise BadInput(
            error.setting, f"{error.problem}; some client has a mini-batch of {plural(smallest, 'sample')}", remedy=remedy
        ) from None


def checked_reading(model: FlatModel, outputs: Tensor, federation: Federation, classes: int | None) -> Reading:
    """How the model's outputs are read.

    Raises:
        BadInput: where targets are not classes, and the loss does not leave them out.
    """
    targets = [federation.y, *(federation.test[1:] if federation.test else ())]
    for value in strangers(targets, classes):
        if not passes_over(model.loss, outputs, targets[0], value):
            remedy = f"Give a loss that does, such as torch.nn.CrossEntropyLoss(ignore_index={value}), or remove them"
            raise BadInput("y", f"holds targets {value}, which are not classes and which the loss does not ignore", remedy=remedy)
    return reading_of(model.loss, outputs, targets, classes)

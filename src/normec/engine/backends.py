"""The choice of the backend that computes the local updates of a run."""

from __future__ import annotations

from torch import Tensor

from normec.engine.loop import Backend, Loop
from normec.engine.settings import Engine
from normec.engine.vmap import Vmap, suits
from normec.errors import BadInput
from normec.models import FlatModel

LARGEST_FOR_VMAP = 100_000
"""Parameters beyond which the loop's calls cost little beside its arithmetic."""


def choose_backend(engine: Engine, model: FlatModel, samples: tuple[Tensor, Tensor]) -> Backend:
    """The backend that the settings name, or by default vmap for small models that it suits; the choice depends on the model alone.

    samples: a few, to try the model on.

    Raises:
        BadInput: where vmap is asked for and cannot compute the model, with the reason.
    """
    if engine.backend == "loop" or (engine.backend == "auto" and model.d > LARGEST_FOR_VMAP):
        return Loop()
    reason = suits(model, model.vector.clone(), samples)
    if reason and engine.backend == "vmap":
        raise BadInput("engine.backend", f"cannot compute this model: {reason}", value="vmap", remedy="Use loop or auto")
    return Loop() if reason else Vmap()

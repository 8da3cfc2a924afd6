"""Trained models: what a run saves beside the parameters, and the module that comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError
from torch import nn

from normec.errors import BadInput
from normec.hashed import read_with_hash, unsealed
from normec.models import Factory, Model, address, build, factory
from normec.models.readings import outputs_asked
from normec.models.zoo import MODELS
from normec.runs.experiment import Plan
from normec.runs.folder import BEST, MODEL, RunFolder


class SavedModel(TypedDict):
    """What makes the module of a run again, and says how to use it.

    factory: its name, of one that has any. input_shape, integers: of a sample. classes, outputs: how many. names: of the classes.
    """

    factory: dict[str, str] | None
    input_shape: list[int]
    integers: bool
    classes: int | None
    names: list[str]
    outputs: int | None


def saved_as(plan: Plan) -> SavedModel:
    """What makes the module of a run again."""
    data = plan.experiment.data
    classes = len(data.classes) if data.classes else None
    outputs = outputs_asked(plan.experiment.loss, data.y, classes)
    return {
        "factory": address(plan.experiment.model),
        "input_shape": list(data.x.shape[1:]),
        "integers": not data.x.is_floating_point(),
        "classes": classes,
        "names": list(data.classes or ()),
        "outputs": outputs,
    }


def load_model(folder: Path | str, model: Factory | None = None, *, best: bool = False) -> nn.Module:
    """The trained model of a run's folder, on the CPU and in evaluation mode.

    model: its factory, or a module like it, needed unless the model is a built-in one. What a folder names of other code is never
    run: a folder may come from anyone. best: the best one, of a run with `evaluation.best`.

    Raises:
        BadInput: for a folder without a model, and for a factory that makes another module.
    """
    return made_again(folder, model, best)[0]


def made_again(folder: Path | str, model: Factory | None, best: bool) -> tuple[nn.Module, SavedModel]:
    """The module as `load_model` returns it, and what `saved_as` wrote beside it."""
    here = RunFolder(Path(folder))
    path = here.path / (BEST if best else MODEL)
    if not path.is_file():
        of = " with evaluation.best" if best else ""
        raise BadInput("folder", f": {folder} holds no {path.name}", remedy=f"Give the folder of a run{of} that has ended")
    try:
        state, metadata = read_with_hash(path)
        saved: SavedModel = json.loads(metadata["model"])
        known = Model(**saved["factory"]) if saved["factory"] and model is None else None
        sample, classes = torch.zeros(saved["input_shape"]), saved["classes"]
        outputs = saved.get("outputs", classes)
    except (SafetensorError, BadInput, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise BadInput("folder", f": {path} is damaged, or of another program ({error})") from None
    _check_is_of_its_run(here, path)
    if model is None and (known is None or known.name not in MODELS):
        made = f"was made by {known.name}" if known else "was given as a module, or made by a function without a name to import"
        give = "model=MODEL in Python, --model package.module:factory of normec export"
        raise BadInput("model", f": the model of {folder} {made}", remedy=f"Give that module or function: {give}")
    module = build(model or factory(known or Model()), sample, classes, seed=0, outputs=outputs)
    kinds = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    module = module.to(kinds.pop()) if len(kinds) == 1 else module
    try:
        unlike = module.load_state_dict(state, strict=False)
        missing = [key for key in unlike.missing_keys if not key.endswith("_extra_state")]  # no tensor, so never saved
        if missing or unlike.unexpected_keys:
            raise RuntimeError(f"missing: {missing}, unexpected: {unlike.unexpected_keys}")
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise BadInput(
            "model", f": it makes another module than that of {folder} ({reason})", remedy="Give the factory that the run had"
        ) from None
    return module.eval(), saved


def _check_is_of_its_run(folder: RunFolder, path: Path) -> None:
    """Refuses a model that is not the one of its folder's summary; a model may also lie alone."""
    if not folder.summary.is_file():
        return
    try:
        summary = unsealed(folder.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            "folder", f": {folder.summary} is damaged ({error})", remedy=f"Restore it, or take {path.name} out of the folder"
        ) from None
    folder.check_results(summary, path)

"""A trained model as ONNX, by torch's own exporter."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normec.errors import BadInput
from normec.files import write_atomically
from normec.models import Factory
from normec.runs.model import made_again

BATCH = 2
"""Samples that the model is traced with: torch takes 0 and 1 for constants."""


def export_onnx(folder: Path | str, file: Path | str, model: Factory | None = None, *, best: bool = False) -> Path:
    """Writes the trained model of a run's folder as ONNX, in evaluation mode.

    Its input is `x` (n, …), samples as the run read them, its output `outputs` (n, …), both with a dynamic n. The names of the
    classes, in the order of the outputs, are a JSON list in the metadata `classes`. model, best: as for `load_model`.

    Raises:
        BadInput: for a file that is not to be written, a model that the exporter cannot express, without the extra `onnx`, and as
            `load_model`.
    """
    path = _checked(Path(file))
    module, saved = made_again(folder, model, best)
    floating = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    x = torch.zeros(BATCH, *saved["input_shape"], dtype=torch.int64 if saved.get("integers") else floating)
    try:
        with _quietly():
            program = _program(module, x)
    except Exception as error:  # whatever torch's exporter raises
        said = " ".join(str(error).split())[:300].rstrip(".")
        raise BadInput(
            "model",
            f": torch's exporter cannot express {type(module).__name__} of {folder} ({type(error).__name__}: {said})",
            remedy="Use the model in Python: normec.load_model",
        ) from None
    if saved.get("names"):
        program.model.metadata_props["classes"] = json.dumps(saved["names"], ensure_ascii=False)
    try:
        write_atomically(path, lambda: program.model_proto.SerializeToString())
    except OSError as error:
        raise BadInput("file", f"cannot be written ({error.strerror})", value=path, remedy="Name another file") from None
    return path


def _checked(path: Path) -> Path:
    """A file that can be made, with what makes it."""
    if path.suffix.lower() != ".onnx":
        raise BadInput("file", value=path, must="end in .onnx")
    if not path.parent.is_dir():
        raise BadInput("file", f": {path.parent} is not a folder", value=path, remedy="Make it, or name another")
    if not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        raise BadInput("export", "needs onnx and onnxscript", remedy="Install them with pip install 'normec[onnx]'")
    return path


def _program(module: nn.Module, x: torch.Tensor) -> Any:
    """The exported program. Traced as Python runs it; where that takes n for a constant, as in len(x), by its bytecode."""
    shapes = ({0: torch.export.Dim("n")},)
    try:
        traced = torch.export.export(module, (x,), dynamic_shapes=shapes, strict=False)
    except Exception:  # whatever tracing raises
        traced = torch.export.export(module, (x,), dynamic_shapes=shapes, strict=True)
    return torch.onnx.export(traced, dynamo=True, verbose=False, input_names=["x"], output_names=["outputs"])


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter tells its own developers."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

"""normec: private federated learning with guarantees that a run can check."""

from __future__ import annotations

from importlib import import_module

from normec.version import __version__

TYPE_CHECKING = False
"""True to a checker of types; the module of that name is slow to import, and Ctrl-C ends the command from the start."""

if TYPE_CHECKING:
    from typing import Any

    from normec import contract
    from normec.algorithms import (
        DPSGD,
        EF14,
        EF21,
        EF21SGDM,
        About,
        Algorithm,
        AlphaNormEC,
        ClientStep,
        Clip21,
        Clip21SGD2M,
        Context,
        Coverage,
        DPFedAvgClip,
        DPFedAvgNorm,
        DPNormFedAvg,
        DPScaffold,
        FedAvg,
        FedNormEC,
        FedProx,
        LocalRule,
        Scaffold,
        ServerAdam,
        ServerMomentum,
        ServerStep,
        register,
    )
    from normec.data import Federation
    from normec.data.huggingface import federation_from_huggingface, federation_from_partitioner
    from normec.engine import Engine
    from normec.errors import BadInput, NormecError, TrainingFailed
    from normec.evaluation import Evaluation
    from normec.local import GD, IG, RR, SGD, SO, PoissonBatches
    from normec.privacy import Privacy
    from normec.privacy.participation import Fixed, Full, Poisson
    from normec.runs.experiment import Theory
    from normec.runs.exported import export_onnx
    from normec.runs.loop import Run, train
    from normec.runs.model import load_model
    from normec.runs.observers import Observer
    from normec.terminal.console import ConsoleObserver

_HOMES = {
    "normec.algorithms": (
        "About", "Algorithm", "AlphaNormEC", "ClientStep", "Clip21", "Clip21SGD2M", "Context", "Coverage", "DPFedAvgClip", "DPFedAvgNorm",
        "DPNormFedAvg", "DPSGD", "DPScaffold", "EF14", "EF21", "EF21SGDM", "FedAvg", "FedNormEC", "FedProx", "LocalRule", "Scaffold",
        "ServerAdam", "ServerMomentum", "ServerStep", "register",
    ),
    "normec.terminal.console": ("ConsoleObserver",),
    "normec.data": ("Federation",),
    "normec.data.huggingface": ("federation_from_huggingface", "federation_from_partitioner"),
    "normec.engine": ("Engine",),
    "normec.evaluation": ("Evaluation",),
    "normec.runs.experiment": ("Theory",),
    "normec.runs.exported": ("export_onnx",),
    "normec.errors": ("BadInput", "NormecError", "TrainingFailed"),
    "normec.local": ("GD", "IG", "PoissonBatches", "RR", "SGD", "SO"),
    "normec.privacy.participation": ("Fixed", "Full", "Poisson"),
    "normec.privacy": ("Privacy",),
    "normec.runs.model": ("load_model",),
    "normec.runs.observers": ("Observer",),
    "normec.runs.loop": ("Run", "train"),
}  # fmt: skip
"""Where each public name lives; imported on first use, so that `normec --help` need not wait for torch."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "DPSGD", "EF14", "EF21", "EF21SGDM", "GD", "IG", "RR", "SGD", "SO", "About", "Algorithm", "AlphaNormEC", "BadInput", "ClientStep",
    "Clip21", "Clip21SGD2M", "ConsoleObserver", "Context", "Coverage", "DPFedAvgClip", "DPFedAvgNorm", "DPNormFedAvg", "DPScaffold",
    "Engine", "Evaluation", "FedAvg", "FedNormEC", "FedProx", "Federation", "Fixed", "Full", "LocalRule", "NormecError", "Observer",
    "Poisson", "PoissonBatches", "Privacy", "Run", "Scaffold", "ServerAdam", "ServerMomentum", "ServerStep", "Theory", "TrainingFailed",
    "__version__", "contract", "export_onnx", "federation_from_huggingface", "federation_from_partitioner", "load_model", "register",
    "train",
]  # fmt: skip


_PARTS = ("contract",)
"""Modules that belong to the public names."""


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"normec.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'normec' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)

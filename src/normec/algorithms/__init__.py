"""The registered algorithms, one short file each."""

from normec.algorithms.base import REGISTRY, Algorithm, ClientStep, Slots, algorithm_from_table, register
from normec.algorithms.dp_fedavg import DPFedAvgClip, DPFedAvgNorm
from normec.algorithms.fed_normec import FedNormEC

__all__ = [
    "REGISTRY",
    "Algorithm",
    "ClientStep",
    "DPFedAvgClip",
    "DPFedAvgNorm",
    "FedNormEC",
    "Slots",
    "algorithm_from_table",
    "register",
]

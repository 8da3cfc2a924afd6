"""Operators: maps from a vector to a message, each with the norm bound that it guarantees."""

from normec.operators.base import ClipNorm, Clipping, Identity, Operator, Radial, SmoothedNormalization, Uniform, margin, row_norms, usable
from normec.operators.compressors import Compressed, Natural, RandK, TopK

__all__ = [
    "ClipNorm",
    "Clipping",
    "Compressed",
    "Identity",
    "Natural",
    "Operator",
    "Radial",
    "RandK",
    "SmoothedNormalization",
    "TopK",
    "Uniform",
    "margin",
    "row_norms",
    "usable",
]

"""Operators: from a vector to a message, and the bound that it guarantees."""

from normec.operators.base import ClipNorm, Clipping, Identity, Operator, SmoothedNormalization, Uniform, margin, row_norms, usable
from normec.operators.compressors import Compressed, Natural, RandK, TopK

__all__ = [
    "ClipNorm",
    "Clipping",
    "Compressed",
    "Identity",
    "Natural",
    "Operator",
    "RandK",
    "SmoothedNormalization",
    "TopK",
    "Uniform",
    "margin",
    "row_norms",
    "usable",
]

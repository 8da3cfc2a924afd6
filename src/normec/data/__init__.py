"""Data: sources, partitions and the federation they make."""

from normec.data.federation import Federation
from normec.data.settings import Data
from normec.data.sources import load

__all__ = ["Data", "Federation", "load"]

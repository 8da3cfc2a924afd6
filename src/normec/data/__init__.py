"""Data: sources, partitions and the federation they make."""

from normec.data.federation import Federation
from normec.data.sources import Data, load

__all__ = ["Data", "Federation", "load"]

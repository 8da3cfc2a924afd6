"""Privacy: what is promised, the mechanism that keeps the promise, and its accounting."""

from normec.privacy.accountant import Spent, SpentSoFar, epsilon
from normec.privacy.calibration import calibrate
from normec.privacy.mechanism import Adjacency, Mechanism, Privacy, Trust

__all__ = ["Adjacency", "Mechanism", "Privacy", "Spent", "SpentSoFar", "Trust", "calibrate", "epsilon"]

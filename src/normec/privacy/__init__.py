"""Privacy: what is promised, the mechanism that keeps the promise, and its accounting."""

from normec.privacy.accountant import Spent, SpentSoFar, by_group_privacy, epsilon
from normec.privacy.calibration import calibrate
from normec.privacy.mechanism import Adjacency, Mechanism, Privacy, Trust

__all__ = ["Adjacency", "Mechanism", "Privacy", "Spent", "SpentSoFar", "Trust", "by_group_privacy", "calibrate", "epsilon"]

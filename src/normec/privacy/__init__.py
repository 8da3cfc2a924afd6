"""Privacy: what is promised, the mechanism that keeps the promise, and its accounting."""

from normec.privacy.accountant import SpentSoFar, epsilon, realised, within_limit
from normec.privacy.calibration import affordable_rounds, calibrate
from normec.privacy.gaussian import Spent, gaussian
from normec.privacy.mechanism import PER_CLIENT, Adjacency, Mechanism, Privacy, Trust

__all__ = [
    "PER_CLIENT",
    "Adjacency",
    "Mechanism",
    "Privacy",
    "Spent",
    "SpentSoFar",
    "Trust",
    "affordable_rounds",
    "calibrate",
    "epsilon",
    "gaussian",
    "realised",
    "within_limit",
]

"""Privacy: what is promised, the mechanism that keeps the promise, and its accounting."""

from normec.privacy.accountant import SpentSoFar, epsilon, realised, within_limit
from normec.privacy.calibration import affordable_rounds, calibrate
from normec.privacy.gaussian import Spent, gaussian
from normec.privacy.mechanism import Adjacency, Mechanism, Privacy
from normec.privacy.trust import Central, Local, Nobody, SecAgg, Trust, TrustModel, trust_model

__all__ = [
    "Adjacency",
    "Central",
    "Local",
    "Mechanism",
    "Nobody",
    "Privacy",
    "SecAgg",
    "Spent",
    "SpentSoFar",
    "Trust",
    "TrustModel",
    "affordable_rounds",
    "calibrate",
    "epsilon",
    "gaussian",
    "realised",
    "trust_model",
    "within_limit",
]

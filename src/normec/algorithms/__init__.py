"""The registered algorithms, one short file each."""

from normec.algorithms.about import About, Coverage
from normec.algorithms.alpha_normec import AlphaNormEC
from normec.algorithms.base import (
    REGISTRY,
    Algorithm,
    ClientStep,
    Context,
    LocalRule,
    Slots,
    algorithm_from_table,
    algorithm_kind,
    algorithm_table,
    check_bound,
    check_local,
    client_step,
    register,
)
from normec.algorithms.clip21 import Clip21
from normec.algorithms.clip21_sgd2m import Clip21SGD2M
from normec.algorithms.dp_fedavg_clip import DPFedAvgClip
from normec.algorithms.dp_fedavg_norm import DPFedAvgNorm
from normec.algorithms.dp_normfedavg import DPNormFedAvg
from normec.algorithms.dp_scaffold import DPScaffold
from normec.algorithms.dp_sgd import DPSGD
from normec.algorithms.ef14 import EF14
from normec.algorithms.ef21 import EF21
from normec.algorithms.ef21_sgdm import EF21SGDM
from normec.algorithms.fed_normec import FedNormEC
from normec.algorithms.fedavg import FedAvg
from normec.algorithms.fedprox import FedProx
from normec.algorithms.scaffold import Scaffold
from normec.algorithms.server_round import Server, server_round
from normec.algorithms.server_steps import Descent, ServerAdam, ServerMomentum, ServerStep, server_step_from_table

__all__ = [
    "DPSGD",
    "EF14",
    "EF21",
    "EF21SGDM",
    "REGISTRY",
    "About",
    "Algorithm",
    "AlphaNormEC",
    "ClientStep",
    "Clip21",
    "Clip21SGD2M",
    "Context",
    "Coverage",
    "DPFedAvgClip",
    "DPFedAvgNorm",
    "DPNormFedAvg",
    "DPScaffold",
    "Descent",
    "FedAvg",
    "FedNormEC",
    "FedProx",
    "LocalRule",
    "Scaffold",
    "Server",
    "ServerAdam",
    "ServerMomentum",
    "ServerStep",
    "Slots",
    "algorithm_from_table",
    "algorithm_kind",
    "algorithm_table",
    "check_bound",
    "check_local",
    "client_step",
    "register",
    "server_round",
    "server_step_from_table",
]

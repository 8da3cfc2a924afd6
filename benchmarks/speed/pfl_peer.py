"""pfl-research, in its own words: FederatedAveraging on a SimulatedBackend."""

import itertools
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional
from workloads import LR, Workload, flat, serve


class WithLoss(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.module(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.times: list[float] = []

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        self.times.append(time.perf_counter())
        return False, Metrics()


def rounds(work: Workload, count: int) -> tuple[list[float], Tensor]:
    """As `workloads.Rounds`."""
    x, y = work.data()
    module, clock = WithLoss(work.model()), Clock()
    model = PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0))
    users = list(range(work.clients))
    sets = {user: Dataset((x[user], y[user]), user_id=user) for user in users}
    data = FederatedDataset(sets.__getitem__, get_user_sampler("minimize_reuse", users))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=count + 1, evaluation_frequency=10**9, train_cohort_size=work.clients, val_cohort_size=None
        ),
        SimulatedBackend(training_data=data, val_data=None),
        model,
        NNTrainHyperParams(local_num_epochs=work.passes, local_learning_rate=LR / work.steps, local_batch_size=work.batch),
        callbacks=[clock],
    )
    return [after - before for before, after in itertools.pairwise(clock.times)], flat(module.parameters())


if __name__ == "__main__":
    serve(rounds)

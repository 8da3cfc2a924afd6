"""Your own module and your own loss: a regression with a frozen encoder, by client. Runs in a few seconds."""

import numpy as np
from torch import Tensor, nn

import normec


class Head(nn.Module):
    """Random features that stay as they are, and one linear layer that is trained: only it is clipped, noised and sent."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(input_shape[0], 64), nn.Tanh()).requires_grad_(False)
        self.out = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Predictions (n,)."""
        y: Tensor = self.out(self.encoder(x)).squeeze(1)
        return y


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the batch."""
    return (outputs - targets).abs().mean()


random = np.random.default_rng(0)
x = random.uniform(-1, 1, (4000, 3)).astype(np.float32)
y = np.sin(2 * x).sum(1).astype(np.float32)
client = np.arange(4000) % 200

run = normec.train(
    model=Head,
    loss=absolute_error,
    data=normec.Federation.from_arrays(x[400:], y[400:], client[400:], test=(x[:400], y[:400]), test_client_ids=client[:400]),
    algorithm=normec.DPFedAvgClip(clip_norm=1.0),
    local=normec.RR(steps=1, lr=0.5, batch_size=10),
    participation=normec.Poisson(rate=0.2),
    privacy=normec.Privacy(epsilon=8.0, trust="central"),
    rounds=60,
)
print(run.summary["claim"])
print(f"test error {run.metrics[-1]['test_loss']:.3f}, predicting the mean {abs(y - y.mean()).mean():.3f}")
print(f"by client, in simulation only: {run.summary['simulation_only']['spread']}")
sizes = [(p.numel(), p.requires_grad) for p in run.model.parameters()]
print(f"trained: {sum(n for n, trained in sizes if trained)} of {sum(n for n, _ in sizes)} numbers")

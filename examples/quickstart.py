"""Your own arrays: features, labels, and whose each sample is. Runs in a few seconds."""

import numpy as np

import normec
from normec.models import logistic

random = np.random.default_rng(0)
patients, hospitals = 6000, 300
x = random.normal(size=(patients, 10)).astype(np.float32)
y = (x @ random.normal(size=10) + random.normal(size=patients) > 0).astype(np.int64)
hospital = random.integers(hospitals, size=patients)

run = normec.train(
    model=logistic,
    data=normec.Federation.from_arrays(x[600:], y[600:], hospital[600:], test=(x[:600], y[:600])),
    algorithm=normec.FedNormEC(server_lr=1.0),
    local=normec.GD(steps=5, lr=0.5),
    participation=normec.Poisson(rate=0.25),
    privacy=normec.Privacy(epsilon=4.0, trust="central"),
    rounds=60,
    out="runs/quickstart",
)
print(run.summary["claim"])
print(f"test accuracy {run.metrics[-1]['test_accuracy']:.1%}, model in {run.folder}")

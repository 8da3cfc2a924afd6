"""A trained model, used: the digits of a run's folder (by default the last one under runs/) that it gets wrong."""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits

import normec

folder = sys.argv[1] if len(sys.argv) > 1 else max(Path("runs").glob("*/model.safetensors")).parent
x, y = load_digits(return_X_y=True)
predicted = normec.load_model(folder)(torch.tensor(x / 16, dtype=torch.float32)).argmax(1)
print(f"{(predicted == torch.tensor(y)).float().mean():.1%} of all digits are read right")

"""A trained model, used: how many digits the model of a run's folder reads. After `normec train --out DIR`: use_model.py DIR"""

import sys

import torch
from sklearn.datasets import load_digits

import normec

x, y = load_digits(return_X_y=True)
predicted = normec.load_model(sys.argv[1])(torch.tensor(x / 16, dtype=torch.float32)).argmax(1)
print(f"{(predicted == torch.tensor(y)).float().mean():.1%} of all digits are read right")

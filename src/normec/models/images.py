"""Convolutional networks for small images: they need nothing but torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS_IN_A_GROUP = 8
Norm = Literal["group", "batch"]
"""GroupNorm normalizes each sample by itself; BatchNorm over the batch, and keeps running statistics of the data."""
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(max(channels // CHANNELS_IN_A_GROUP, 1), channels),
    "batch": nn.BatchNorm2d,
}


class CNN(nn.Module):
    """Three 3×3 convolutions with 16, 32 and 64 channels, each normalized, then ReLU and 2×2 pooling; one linear layer.

    d = 34,058 for 3×32×32 images and 10 classes.
    """

    def __init__(self, input_shape: tuple[int, ...], outputs: int, norm: Norm = "group") -> None:
        super().__init__()
        channels, height, width = as_image(input_shape)
        self.input_shape = (channels, height, width)
        self.features = nn.Sequential(*_stage(channels, 16, norm), *_stage(16, 32, norm), *_stage(32, 64, norm))
        self.head = nn.Linear(64 * (height // 8) * (width // 8), outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, outputs) of images (n, channels, height, width), or of the same numbers in another shape."""
        y: Tensor = self.head(self.features(x.reshape(x.shape[0], *self.input_shape)).flatten(1))
        return y


class ResNet20(nn.Module):
    """The residual network for CIFAR of He et al. 2016, Section 4.2: 20 layers, 16 to 64 channels, shortcuts without parameters.

    GroupNorm takes the place of BatchNorm unless norm is "batch"; weights start as He et al. 2015 scale them.
    d = 269,722 for 3×32×32 images and 10 classes.
    """

    def __init__(self, input_shape: tuple[int, ...], outputs: int, norm: Norm = "group") -> None:
        super().__init__()
        self.input_shape = as_image(input_shape)
        self.entry = nn.Sequential(nn.Conv2d(self.input_shape[0], 16, 3, padding=1, bias=False), NORMS[norm](16), nn.ReLU())
        widths = [16] * 3 + [32] * 3 + [64] * 3
        self.blocks = nn.Sequential(*(_Block(before, after, norm) for before, after in zip([16, *widths], widths, strict=False)))
        self.head = nn.Linear(64, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, outputs) of images (n, channels, height, width), or of the same numbers in another shape."""
        y: Tensor = self.head(self.blocks(self.entry(x.reshape(x.shape[0], *self.input_shape))).mean(dim=(2, 3)))
        return y


class _Block(nn.Module):
    """Two convolutions beside a shortcut; where the width doubles the image is halved and the shortcut filled up with zeros."""

    def __init__(self, before: int, after: int, norm: Norm) -> None:
        super().__init__()
        self.stride, self.missing = after // before, after - before
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, self.stride, padding=1, bias=False), NORMS[norm](after), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, padding=1, bias=False), NORMS[norm](after))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.missing:
            half = self.missing // 2
            shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.missing - half))
        return torch.relu(self.second(self.first(x)) + shortcut)


def as_image(input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width) of a sample of shape (height, width) or (channels, height, width), at least 8 × 8.

    Raises:
        ValueError: for any other shape.
    """
    shape = (1, *input_shape) if len(input_shape) == 2 else input_shape
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise ValueError(f"samples of shape {input_shape} are not images of at least 8 × 8: (height, width) or (channels, height, width)")
    return shape[0], shape[1], shape[2]


def _stage(before: int, after: int, norm: Norm) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1), NORMS[norm](after), nn.ReLU(), nn.MaxPool2d(2)]

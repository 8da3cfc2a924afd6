"""The only caller of a Gaussian generator."""

from __future__ import annotations

import torch
from torch import Tensor

from normec.streams import Streams


def seeded_gaussian(shape: tuple[int, ...], std: float, streams: Streams, k: int, device: torch.device) -> Tensor:
    """Noise N(0, std² I) for the release of round k, float64 of the given shape, on `device`.

    std: the standard deviation of each coordinate. The stream is keyed by (seed, round): for simulation, not for
    release. On an accelerator it is drawn there, by its own counter-based generator; on the CPU by Philox, since torch's
    CPU generator keeps only 32 bits of its seed and would repeat streams in a long run.
    """
    if device.type == "cpu":
        return torch.from_numpy(streams.generator("noise", k).standard_normal(shape)).mul_(std)
    generator = torch.Generator(device).manual_seed(streams.torch_seed("noise", k))
    return torch.randn(shape, dtype=torch.float64, device=device, generator=generator).mul_(std)

"""The `[engine]` section: how a run computes. Nothing here changes the result, up to rounding."""

from __future__ import annotations

import os
import re
from typing import Literal

import torch

from normec.errors import BadInput
from normec.settings import Count, Settings, Text


class Engine(Settings):
    """backend: "loop" computes one client after the other, "vmap" many at once; "auto" takes vmap for small models that it suits.
    workers: threads, one core each.

    device, dtype: where and in which precision. eval_every, checkpoint_every: in rounds; the last round has both.
    memory_limit: bytes of RAM allowed for client memories, beyond which they live in a mapped file; "auto" for half of what the
    machine has free.
    """

    backend: Literal["auto", "loop", "vmap"] = "auto"
    workers: Count = 1
    device: Text = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    eval_every: Count = 1
    checkpoint_every: Count = 10
    memory_limit: Literal["auto"] | Count = "auto"

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def torch_device(self) -> torch.device:
        """The device, checked to exist.

        Raises:
            BadInput: where this machine does not have it.
        """
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise BadInput("engine.device", value=self.device, must="be cpu, cuda or cuda:N")
        try:
            local = os.environ.get("LOCAL_RANK")  # of several processes on one machine each takes its own
            return torch.zeros(1, device=f"cuda:{local}" if self.device == "cuda" and local else self.device).device
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise BadInput("engine.device", f"cannot be used here: {reason}", value=self.device, remedy="Use cpu") from None

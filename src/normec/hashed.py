"""Files of tensors that hold a hash of their content, so that a damaged one is noticed wherever it is read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

KEY, HASH = "normec", "hash"
"""Of a file's metadata the one key, so that equal content makes equal files; and what stands there beside the caller's own."""


def with_hash(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file of contiguous tensors and metadata, and of the hash of both."""
    plain = {name: tensor.cpu() for name, tensor in tensors.items()}
    said = {**(metadata or {}), HASH: _hash(plain, metadata or {})}
    return save(plain, metadata={KEY: json.dumps(said, sort_keys=True)})


def read_with_hash(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of such a file.

    Raises:
        ValueError: where it holds no hash, or another content than was written.
        SafetensorError, OSError: where it cannot be read at all.
    """
    with safe_open(path, framework="pt") as file:
        said = (file.metadata() or {}).get(KEY)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    if said is None:
        raise ValueError("it holds no hash, as files of other programs and earlier versions do not")
    metadata: dict[str, str] = dict(json.loads(said))
    if metadata.pop(HASH, None) != _hash(tensors, metadata):
        raise ValueError("its content is not what was written, by its own hash")
    return tensors, metadata


def _hash(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    found = hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()

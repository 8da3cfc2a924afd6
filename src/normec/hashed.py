"""Files that hold a hash of their content, so that a damaged one is noticed wherever it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

KEY, HASH = "normec", "hash"
"""Of a file's metadata the one key, so that equal content makes equal files; and what stands there beside the caller's own."""
LAST_LINE = "# hash of the lines above: "
"""What the last line of a text begins with that ends in its hash."""
NO_HASH = "it holds no hash, as files of other programs and earlier versions do not"
ANOTHER = "its content is not what was written, by its own hash"


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
        raise ValueError(NO_HASH)
    metadata: dict[str, str] = dict(json.loads(said))
    if metadata.pop(HASH, None) != _hash(tensors, metadata):
        raise ValueError(ANOTHER)
    return tensors, metadata


def sealed(content: Mapping[str, object]) -> dict[str, object]:
    """A JSON object with the hash of all else that it holds, under `hash`."""
    content = {key: value for key, value in content.items() if key != HASH}
    return {**content, HASH: hash_of(plain(content))}


def unsealed(text: str) -> dict[str, Any]:
    """The content of a JSON object with a hash, without it.

    Raises:
        ValueError: where it is no such object, holds no hash, or another content than was written.
    """
    content = json.loads(text)
    if not isinstance(content, dict) or HASH not in content:
        raise ValueError(NO_HASH)
    if content.pop(HASH) != hash_of(plain(content)):
        raise ValueError(ANOTHER)
    return content


def plain(content: Mapping[str, object]) -> str:
    """A JSON object as the text that is hashed, whatever the layout of its file."""
    return json.dumps(content, allow_nan=False, ensure_ascii=False)


def with_last_line(text: str) -> str:
    """A text for people with its hash in a last line, a comment."""
    return f"{text}{LAST_LINE}{hash_of(text)}\n"


def check_last_line(text: str) -> None:
    """Refuses a text whose last line is not its hash.

    Raises:
        ValueError: where there is none, or it is another.
    """
    above, found, last = text.rpartition(LAST_LINE)
    if not found:
        raise ValueError(NO_HASH)
    if last != f"{hash_of(above)}\n":
        raise ValueError(ANOTHER)


def hash_of(content: str | bytes) -> str:
    """The hash of a text, or of a file's bytes: b2sum -l 128."""
    whole = content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
    return hashlib.blake2b(whole, digest_size=16).hexdigest()


def _hash(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    found = hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()

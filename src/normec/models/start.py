"""A model's start from the weights of a run or of a file, in place of its random initialisation."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from normec.data.limits import regular_file
from normec.errors import BadInput
from normec.hashed import read_with_hash

SETTING = "model.start"
KINDS = "a run's folder, a .safetensors file, or a state dict that torch.save wrote"


def start_from(module: nn.Module, path: Path) -> str:
    """Sets a module's parameters and buffers to those of a run's folder or of a file; returns a hash of them.

    No code of the file runs: a state dict of torch is loaded with weights_only.

    Raises:
        BadInput: for what cannot be read, and naming what is missing, left over, of another shape, or not finite.
    """
    state, held = _state(path), module.state_dict()
    wanted = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    places = {(value.data_ptr(), value.shape) for name, value in wanted.items() if name in state}
    missing = [name for name in wanted if name not in state and (wanted[name].data_ptr(), wanted[name].shape) not in places]
    over = [name for name in state if name not in wanted]
    if missing or over:
        told = [f"{word} {', '.join(names[:3])}{' …' * (len(names) > 3)}" for word, names in (("no", missing), ("also", over)) if names]
        raise BadInput(SETTING, f"is of another model: it holds {' and '.join(told)}", value=path, remedy="Give weights of this one")
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(state.items()):
        if value.shape != wanted[name].shape:
            raise BadInput(
                SETTING,
                f"holds {name} of shape {tuple(value.shape)}, the model of {tuple(wanted[name].shape)}",
                value=path,
                remedy="Give weights of this model",
            )
        if not bool(value.isfinite().all()):
            raise BadInput(SETTING, f"holds numbers in {name} that are not finite", value=path, remedy="Give other weights")
        with torch.no_grad():
            wanted[name].copy_(value)
        digest.update(f"{name}{wanted[name].dtype}".encode() + wanted[name].double().numpy(force=True).tobytes())
    return digest.hexdigest()


def start_note(path: Path, private: bool) -> str:
    """The note on a start. private: whether this run makes a claim."""
    if not private:
        return f"the model starts from {path}"
    told = f"warning: the model starts from {path}, and the claim is that of this run alone"
    if (path / "ledger.jsonl").is_file():
        return f"{told}: the earlier run has spent an ε of its own (normec ledger {path}), and both compose where they share clients"
    return f"{told}: nothing in it protects those whose data these weights have seen"


def _state(path: Path) -> dict[str, Tensor]:
    """The tensors of a run's folder or of a file, by name."""
    file = path / "model.safetensors" if path.is_dir() else regular_file(path, SETTING, KINDS)
    if not file.is_file():
        raise BadInput(SETTING, "holds no model.safetensors", value=path, remedy="Give the folder of a run that has ended")
    try:
        if path.is_dir():
            state: Any = read_with_hash(file)[0]
        else:
            state = load_file(file) if file.suffix == ".safetensors" else torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, ValueError) as error:
        raise BadInput(SETTING, f"cannot be read ({error})", value=path, remedy=f"Give {KINDS}") from None
    except Exception as error:  # whatever a damaged or foreign pickle raises; nothing in it has run
        reason = (str(error).strip().splitlines() or [""])[0][:120].rstrip(".")
        raise BadInput(
            SETTING,
            f"holds no plain state dict ({type(error).__name__}: {reason})",
            value=path,
            remedy="Save one with torch.save(module.state_dict(), FILE)",
        ) from None
    odd = [key for key, value in state.items() if not isinstance(value, Tensor)] if isinstance(state, dict) else [type(state).__name__]
    if odd or not state:
        inside = f" (it holds {odd[0]!r}, which is none)" if odd else ""
        raise BadInput(SETTING, f"is not a state dict of tensors{inside}", value=path, remedy="Use torch.save(module.state_dict(), FILE)")
    return {str(name): value for name, value in state.items()}

"""Files of numpy arrays, .npz: headers are read first, and only the arrays that are needed."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

from normec.data.limits import check_size
from normec.data.readers import Table
from normec.errors import BadInput, plural


def read_npz(path: Path, natural: bool, limit: int) -> Table:
    """Arrays x (n, …), y (n,) and, for natural clients, client (n,).

    Raises:
        BadInput: for a missing or empty array, lengths that differ, and for more memory than the limit.
    """
    wanted = ("x", "y", "client") if natural else ("x", "y")
    with zipfile.ZipFile(path) as file:
        names = [name.removesuffix(".npy") for name in file.namelist()]
        for name in ("x", "y"):
            if name not in names:
                raise BadInput("data.source", f"has no array {name}", value=path, remedy="It needs x and y, and client for natural clients")
        read = [name for name in wanted if name in names]
        check_size(path, sum(_bytes(file, name) for name in read), limit)
    with np.load(path, allow_pickle=False) as arrays:
        held: dict[str, np.ndarray] = {name: arrays[name] for name in read}
    x, y, client = held["x"], held["y"], held.get("client")
    for name, array in (("y", y), ("client", client)):
        if array is not None and array.shape[:1] != x.shape[:1]:
            raise BadInput(
                "data.source", f": array {name} has shape {array.shape}, x {x.shape}", value=path, remedy=f"Give one {name} a row of x"
            )
    if client is not None and (client.dtype.kind not in "iubU" or client.ndim != 1):
        raise BadInput(
            "data.source",
            f": array client holds {client.dtype} of shape {client.shape}",
            value=path,
            remedy="Give one whole number or string a row of x",
        )
    if not x.size:
        raise BadInput("data.source", f": array x is empty, of shape {x.shape}", value=path, remedy="Give at least one row")
    others = [name for name in names if name not in wanted and not (name == "client" and not natural)]
    left = (f"left out: {plural(len(others), 'array')} ({', '.join(others)}); x, y and client are read",) if others else ()
    return Table(x if x.ndim > 1 else x[:, None], y, client, left)


def _bytes(file: zipfile.ZipFile, name: str) -> int:
    """What an array takes, by its header; of features as floats of 4 bytes at least."""
    with file.open(f"{name}.npy" if f"{name}.npy" in file.namelist() else name) as member:
        version = np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(member)
    if dtype.hasobject:
        raise BadInput(
            "data.source",
            f": array {name} of {str(file.filename)!r} holds Python objects, which are not read",
            remedy="Save numbers or strings",
        )
    return math.prod(shape) * max(dtype.itemsize, 4 if name == "x" else 1)

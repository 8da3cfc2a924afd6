"""Client memories: the vectors that the simulator keeps on behalf of the clients, one row per client.

In a deployment these vectors never leave their owners; the simulator holds them only because it plays the clients.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Slots
from normec.errors import BadInput, TrainingFailed
from normec.machine import available

NOWHERE = -1
CHUNK = 2**20
"""Bytes that are written at a time."""
FIRST_ROWS = 64
"""Rows that a lazy memory starts with; it doubles when they are used up."""


class Layout(NamedTuple):
    """The way in which client memories are kept.

    lazy: a row exists from its client's first computation. mapped: rows live in a file, of which the system keeps in RAM what it
    can spare. expected: bytes that a run is expected to touch.
    """

    lazy: bool
    mapped: bool
    expected: int

    def __str__(self) -> str:
        kind = "a row from a client's first computation on" if self.lazy else "dense"
        return f"client memories: {self.expected:,} bytes ({kind}{', in a mapped file' if self.mapped else ''})"


class Memory:
    """The slots of all clients, zero at the start; `like`: a vector (d,) of the run."""

    def __init__(self, slots: tuple[str, ...], clients: int, like: Tensor, layout: Layout) -> None:
        self.names, self.layout, self._like, self._clients = slots, layout, like, clients
        self._clear()

    def _clear(self) -> None:
        """Makes it what it is at the start, so that no row holds what another client left there."""
        lazy, clients = self.layout.lazy, self._clients
        self._place = np.full(clients, NOWHERE) if lazy else np.arange(clients)
        self._used = 0 if lazy else clients
        rows = clients if self.layout.mapped or not lazy else min(FIRST_ROWS, clients)
        self._rows: Slots = ()  # the old ones go before new ones are made
        self._files: list[MappedFile] = []
        self._rows = tuple(self._allocate(slot, rows) for slot in self.names)
        self._make_room(self._used)

    def reserve(self, clients: np.ndarray) -> None:
        """Makes rows for clients that compute for the first time. Not to be called while others read or write.

        Raises:
            TrainingFailed: where they are in a mapped file, and the disk has no room for them.
        """
        new = clients[self._place[clients] == NOWHERE]
        if not len(new) or not self.names:
            return
        self._make_room(self._used + len(new))
        self._place[new] = np.arange(self._used, self._used + len(new))
        self._used += len(new)
        if self._used > len(self._rows[0]):
            size = min(len(self._place), max(2 * len(self._rows[0]), self._used))
            self._rows = tuple(self._grown(slot, rows, size) for slot, rows in zip(self.names, self._rows, strict=True))

    def read(self, clients: np.ndarray) -> Slots:
        """The rows (G, d) of these clients, which must not be changed: they are views where they lie together. They must be reserved."""
        return tuple(rows[self._index(clients)] for rows in self._rows)

    def write(self, clients: np.ndarray, memory: Slots) -> None:
        """Replaces the rows of these clients; the new rows may be views of old rows of another slot."""
        storages = {rows.untyped_storage().data_ptr() for rows in self._rows}
        views = [len(memory) > 1 and new.untyped_storage().data_ptr() in storages for new in memory]
        memory = tuple(new.clone() if view else new for new, view in zip(memory, views, strict=True))
        for rows, new in zip(self._rows, memory, strict=True):
            rows[self._index(clients)] = new.to(rows.dtype)

    def state(self) -> dict[str, Tensor]:
        """The state for a checkpoint: the used rows and, with a lazy layout, the clients that own them."""
        held = {f"memory.{slot}": rows[: self._used].cpu() for slot, rows in zip(self.names, self._rows, strict=True)}
        return held | ({"place": torch.from_numpy(self._place)} if self.layout.lazy and self.names else {})

    def load(self, tensors: dict[str, Tensor], own: np.ndarray | None = None) -> None:
        """Takes over a `state` of any layout, including this memory's own. own: the clients to keep, by default all.

        Every other client is where it was at the start, whatever the memory held before.
        """
        if not self.names:
            return
        held = tensors["place"].numpy() if "place" in tensors else np.arange(self._clients)
        clients = np.flatnonzero(held != NOWHERE) if own is None else own[held[own] != NOWHERE]
        self._clear()
        self.reserve(clients[np.argsort(held[clients], kind="stable")])
        rows = torch.from_numpy(held[clients])
        self.write(clients, tuple(tensors[f"memory.{slot}"][rows].to(self._like.device) for slot in self.names))

    def _index(self, clients: np.ndarray) -> Tensor | slice:
        place = self._place[clients]
        if len(place) and bool((np.diff(place) == 1).all()):
            return slice(int(place[0]), int(place[-1]) + 1)
        return torch.from_numpy(place).to(self._like.device)

    def _allocate(self, slot: str, rows: int) -> Tensor:
        shape = (rows, len(self._like))
        if not self.layout.mapped:
            return torch.zeros(shape, dtype=self._like.dtype, device=self._like.device)
        self._files.append(MappedFile(f"normec-{slot}-", rows * len(self._like) * self._like.element_size()))
        return self._files[-1].tensor(self._like.dtype).view(shape)

    def _make_room(self, rows: int) -> None:
        """Takes what so many rows need on the disk before they are written: a mapped page without a block ends the process."""
        for file in self._files:
            file.make_room(rows * len(self._like) * self._like.element_size())

    def _grown(self, slot: str, rows: Tensor, size: int) -> Tensor:
        grown = self._allocate(slot, size)
        grown[: len(rows)] = rows
        return grown


class MappedFile:
    """A file of zeros without a name. It grows on the disk up to `size` bytes and disappears with its mapping."""

    def __init__(self, prefix: str, size: int) -> None:
        """Raises TrainingFailed where it cannot be made."""
        self._taken = 0
        try:
            self._handle, self._path = tempfile.mkstemp(prefix=prefix)
            os.ftruncate(self._handle, size)  # takes no room yet
        except OSError as error:
            raise _without_room(size, error) from None

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def tensor(self, dtype: torch.dtype) -> Tensor:
        """The whole file as a vector; to be called once."""
        size = os.fstat(self._handle).st_size
        flat = torch.from_file(self._path, shared=True, size=size // dtype.itemsize, dtype=dtype)
        os.unlink(self._path)  # the mapping keeps it, until it is gone itself
        return flat

    def make_room(self, size: int) -> None:
        """Takes the first `size` bytes on the disk, of which those that are new have not been written yet.

        Raises:
            TrainingFailed: where there is no room.
        """
        new = size - self._taken
        if new <= 0:
            return
        try:
            _take(self._handle, self._taken, new)
        except OSError as error:
            raise _without_room(new, error) from None
        self._taken = size


def _take(handle: int, start: int, size: int) -> None:
    """Blocks of a file, by the system's own call, or by zeros where it has none."""
    try:
        os.posix_fallocate(handle, start, size)
    except AttributeError:  # macOS
        _fill(handle, start, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # the file system cannot
            raise
        _fill(handle, start, size)


def _fill(handle: int, start: int, size: int) -> None:
    zeros = bytes(min(size, CHUNK))
    for at in range(start, start + size, CHUNK):
        os.pwrite(handle, zeros[: start + size - at], at)


def _without_room(size: int, error: OSError) -> TrainingFailed:
    where = tempfile.gettempdir()
    problem = f"the client memories need {size:,} more bytes in a mapped file in {where}, which has no room ({error.strerror})"
    remedy = "Make room there, set TMPDIR to another folder, or raise engine.memory_limit to keep them in RAM; then resume"
    return TrainingFailed(f"{problem}. {remedy}.")


def merged(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The states of the ranks of a run as one; each rank holds other clients."""
    if len(states) == 1 or not states[0]:
        return states[0]
    place = torch.full_like(states[0]["place"], NOWHERE)
    used = 0
    for state in states:
        own = state["place"] != NOWHERE
        place[own] = state["place"][own] + used
        used += int(own.sum())
    names = [name for name in states[0] if name != "place"]
    return {"place": place, **{name: torch.cat([state[name] for state in states]) for name in names}}


def dense_rows(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors with every memory as rows (M, d), zero for clients that never computed."""
    if "place" not in tensors:
        return tensors
    place = tensors["place"]
    dense = {name: value for name, value in tensors.items() if name != "place"}
    for name in [name for name in tensors if name.startswith("memory.")]:
        zeros = torch.zeros(1, *tensors[name].shape[1:], dtype=tensors[name].dtype)
        dense[name] = torch.cat([tensors[name], zeros])[place]  # NOWHERE is the last row
    return dense


def layout_for(slots: int, clients: int, like: Tensor, computing: float, limit: int | None) -> Layout:
    """The layout of a run's memories: in RAM within the limit, else in a mapped file.

    computing: the expected share of clients that ever compute; below 1 rows are made when they are needed. limit: bytes of RAM
    allowed, by default half of what the machine has free. Only CPU memories can be mapped.
    The file lies in the system's temporary folder (TMPDIR).

    Raises:
        BadInput: where neither RAM nor the disk has room, with the numbers.
    """
    whole = slots * clients * len(like) * like.element_size()
    expected = round(whole * min(computing, 1.0))
    allowed = limit if limit is not None else available() // 2
    lazy = computing < 1
    if expected <= allowed:
        return Layout(lazy, False, expected)
    disk = shutil.disk_usage(tempfile.gettempdir()).free
    if like.device.type != "cpu" or expected > disk:
        room = f"{disk:,} are free on the disk" if like.device.type == "cpu" else f"a mapped file serves no {like.device.type}"
        raise BadInput(
            "engine.memory_limit",
            f": the client memories need {expected:,} bytes, {allowed:,} of RAM are allowed and {room}",
            remedy="Use fewer clients, a smaller model, or raise engine.memory_limit",
        )
    return Layout(lazy, True, expected)

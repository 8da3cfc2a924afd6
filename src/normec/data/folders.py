"""Folders of images: which file is a sample of which class and client, and which is not a sample."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from normec.data.pixels import Look, Pixels, decode
from normec.data.readers import Table
from normec.errors import BadInput, plural

SUFFIXES = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff")
SYSTEM = {"__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found", "__pycache__"}
SYSTEM |= {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"}
"""What systems and programs put beside the data, in lower case, as do names that begin with a dot."""
TRAIN, TEST, VALIDATION = ("train", "training"), ("test", "testing"), ("val", "valid", "validation", "dev")
"""Names of the folders of a data set that is split already, in lower case."""


class Sample(NamedTuple):
    """One image. client: the folder that its class is in, where clients have folders."""

    file: Path
    label: str
    client: str | None


class Skipped:
    """The files that were left out, and why."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._found: dict[tuple[str, str], list[Path]] = defaultdict(list)

    def add(self, why: str, noun: str, path: Path) -> None:
        """noun: what it is, in the singular."""
        self._found[why, noun].append(path)

    def notes(self) -> tuple[str, ...]:
        """One line per reason, with a count and the first path."""
        lines = []
        for (why, noun), paths in sorted(self._found.items()):
            suffixes = sorted({path.suffix.lower() or "no suffix" for path in paths})
            kinds = f" ({', '.join(map(_shown, suffixes[:5]))}{' …' if len(suffixes) > 5 else ''})" if why == OTHER else ""
            lines.append(f"left out, {why}{kinds}: {plural(len(paths), noun)} (first: {_shown(str(min(paths).relative_to(self._root)))})")
        return tuple(lines)


OTHER = "not an image by its suffix"


def read_folder(path: Path, look: Look, natural: bool) -> Table:
    """Images as CLASS/NAME.png, or where clients have folders (`natural`) as CLIENT/CLASS/NAME.png; folders below count as well.

    A folder train, with a folder test or else val beside it, holds such folders too. What is no sample is named in the notes.

    Raises:
        BadInput: where there is no such image, or where they differ in size.
    """
    skipped = Skipped(path)
    parts = _parts(path, skipped)
    listed = [sorted(_samples(part, natural, skipped)) for part in parts.values()]
    for part, samples in zip(parts, listed, strict=True):
        if not samples:
            wanted = f"{'CLIENT/' if natural else ''}CLASS/NAME.png"
            inside = f" in {_shown(part)}" if part else ""
            raise BadInput("data.source", f"holds no images{inside} as {wanted} (or {', '.join(SUFFIXES[1:])})", value=path)
    read = [decode([each.file for each in samples], lambda file: file, str, look, "data.source") for samples in listed]
    if len({(pixels.values.shape[1:], pixels.white) for pixels in read}) > 1:
        remedy = "Set data.resize, such as data.resize=32, or data.channels, or give images of one kind."
        raise BadInput("data.source", f"holds other images in {_shown(list(parts)[1])} than in train", value=path, remedy=remedy)
    notes = [*_folder_notes(parts, listed, natural), *skipped.notes(), *(note for pixels in read for note in pixels.notes)]
    return _table(read, listed, natural, tuple(dict.fromkeys(notes)))


def _table(read: list[Pixels], listed: list[list[Sample]], natural: bool, notes: tuple[str, ...]) -> Table:
    sets = [(pixels.scaled(), np.array([each.label for each in samples])) for pixels, samples in zip(read, listed, strict=True)]
    clients = [np.array([each.client for each in samples]) if natural else None for samples in listed]
    test, tested = (sets[1], clients[1]) if len(sets) > 1 else (None, None)
    return Table(*sets[0], clients[0], notes, test, test_client=tested)


def _parts(path: Path, skipped: Skipped) -> dict[str, Path]:
    """The folder of the training images and that of the test set, by name; the whole folder, called "", where it is not split.

    Raises:
        BadInput: for a test or validation set alone.
    """
    folders = [each for each in _listed(path) if each.is_dir() and not _hidden(each.name)]
    split = {kind: [each for each in folders if each.name.lower() in kind and any(below.is_dir() for below in _listed(each))]
             for kind in (TRAIN, TEST, VALIDATION)}  # fmt: skip
    if not split[TRAIN]:
        if folders and len(folders) == len(split[TEST]) + len(split[VALIDATION]):
            names = ", ".join(_shown(each.name) for each in folders)
            raise BadInput(
                "data.source",
                f"holds {names} and no train",
                value=path,
                remedy="Name the folder of the training images train, or give one of these as data.source",
            )
        return {"": path}
    chosen = [split[TRAIN][0], *(split[TEST] or split[VALIDATION])[:1]]
    for each in _listed(path):
        if each not in chosen:
            _leave(each, f"beside {_shown(chosen[0].name)}/", skipped)
    return {each.name: each for each in chosen}


def _leave(path: Path, why: str, skipped: Skipped) -> None:
    """Notes all images of what is not read."""
    if _hidden(path.name) or not path.is_dir():
        if not _skip_entry(path, skipped):
            skipped.add(why, "file", path)
        return
    images = [each.file for each in _samples(path, natural=False, skipped=Skipped(path), least=0)]
    for file in images:
        skipped.add(f"in {_shown(path.name)}/ {why}", "image", file)
    if not images:
        skipped.add(why, "folder without images", path)


def _samples(root: Path, natural: bool, skipped: Skipped, least: int | None = None) -> Iterator[Sample]:
    """The images below a folder. least: how many folders an image is in at least; by default those of class and client."""
    needed = (2 if natural else 1) if least is None else least
    met: set[tuple[str, ...]] = set()
    filled: set[tuple[str, ...]] = {()}
    for names, files in _files(root, skipped):
        met.add(names[:needed])
        if len(names) < needed:
            for file in files:
                skipped.add("in no folder of a class of a client" if natural else "in no folder of a class", "image", file)
        elif files:
            filled |= {names[:depth] for depth in range(needed + 1)}
            client, label = (names[0], names[1]) if natural else (None, names[0] if names else "")
            yield from (Sample(file, label, client) for file in files)
    for empty in met - filled:
        if empty[:-1] in filled:
            skipped.add("without an image", "folder", root.joinpath(*empty))


def _files(root: Path, skipped: Skipped) -> Iterator[tuple[tuple[str, ...], list[Path]]]:
    """The names of each folder below a folder and the image files in it; links are followed, and each folder is met once."""
    seen: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(root, followlinks=True, onerror=_unreadable):
        folder = Path(place)
        identity = folder.stat()
        if (identity.st_dev, identity.st_ino) in seen:
            skipped.add("a link to what is read already", "folder", folder)
            folders.clear()
            continue
        seen.add((identity.st_dev, identity.st_ino))
        folders[:] = [name for name in sorted(folders) if not _skip_entry(folder / name, skipped)]
        kept = [folder / name for name in sorted(files) if not _skip_entry(folder / name, skipped)]
        yield folder.relative_to(root).parts, kept


def _skip_entry(path: Path, skipped: Skipped) -> bool:
    """Whether a path is neither a folder of data nor an image, which is then noted."""
    folder = path.is_dir()
    if _hidden(path.name):
        skipped.add("hidden", "folder" if folder else "file", path)
    elif folder:
        _check_name(path)
        return False
    elif not _is_regular(path):
        skipped.add("not a regular file", "path", path)
    elif path.suffix.lower() not in SUFFIXES:
        skipped.add(OTHER, "file", path)
    else:
        return False
    return True


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM


def _is_regular(path: Path) -> bool:
    """Whether it is a file with content of its own; a FIFO or a device might never end."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:  # a link to nothing
        return False


def _check_name(folder: Path) -> None:
    """That the name of a class or a client can be written down.

    Raises:
        BadInput: for one that is not UTF-8.
    """
    try:
        folder.name.encode()
    except UnicodeEncodeError:
        raise BadInput("data.source", f": the name of the folder {str(folder)!r} is not UTF-8", remedy="Rename it") from None


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        _unreadable(error)
        raise


def _unreadable(error: OSError) -> None:
    raise BadInput(
        "data.source", f": the folder {error.filename!r} cannot be read ({error.strerror})", remedy="Make it readable, or remove it"
    )


def _folder_notes(parts: dict[str, Path], listed: list[list[Sample]], natural: bool) -> Iterator[str]:
    """Which folder is the test set, and a warning where the folders look like those of clients."""
    if len(parts) > 1 and (name := list(parts)[1]).lower() not in TEST:
        yield f"the test set is the folder {_shown(name)}/, since there is none that is called test"
    below = [each.file.relative_to(root).parts for root, samples in zip(parts.values(), listed, strict=True) for each in samples]
    if natural or any(len(names) != 3 for names in below):
        return
    homes = defaultdict(set)
    for outer, inner, _ in below:
        homes[inner].add(outer)
    if len(homes) > 1 and all(len(outer) > 1 for outer in homes.values()):
        told = "warning: the folders within the classes have the same names in several of them, as in CLIENT/CLASS/NAME.png would be"
        yield f"{told}; data.partition=column takes the outer folders as clients and the inner ones as classes"


def _shown(text: str) -> str:
    """A name in a line; quoted where it could not be seen."""
    return text if text.isprintable() else repr(text)

"""The orientation of images: they are turned as the EXIF data of their files say."""

from __future__ import annotations

from typing import Any

import numpy as np

ORIENTATION = 0x0112
ORIENTATIONS = {2: (0, True), 3: (2, False), 4: (2, True), 5: (1, True), 6: (3, False), 7: (3, True), 8: (1, False)}
"""The EXIF tag, and for each of its values quarter turns to the left, after mirroring left and right."""


def upright(image: Any, opened: Any) -> np.ndarray:
    """The pixels (height, width, …) of an image, turned as the EXIF data of its file say; Pillow turns TIFF while it decodes."""
    pixels = np.asarray(image)
    try:
        turns, mirrored = ORIENTATIONS.get(opened.getexif().get(ORIENTATION), (0, False))
    except Exception:  # whatever damaged EXIF data raise: the pixels are whole
        return pixels
    turned: np.ndarray = np.rot90(pixels[:, ::-1] if mirrored else pixels, turns)
    return turned

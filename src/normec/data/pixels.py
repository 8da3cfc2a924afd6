"""Encoded images as arrays of pixels: every depth and colour that is read keeps its values, and everything else is refused."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from normec.data.checks import sizes_alone
from normec.data.limits import check_size, regular_file
from normec.data.orientation import upright
from normec.errors import BadInput, plural
from normec.settings import Positive, Settings

T = TypeVar("T")
Encoded = Path | bytes | np.ndarray
"""An image: its file, what is in it, or (height, width, 3) of uint8."""
FORMATS = ("PNG", "JPEG", "MPO", "BMP", "GIF", "WEBP", "TIFF")
"""Those of Pillow that are read. PostScript would start another program, others lose depth in silence."""
GREY = ("1", "L", "LA")
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV")
"""Pillow's modes of 8 bits a channel, of one channel and of three."""
FOREIGN = "B" if sys.byteorder == "little" else "L"
OTHER_HALF = {
    f"{bands};16{order}": f"{bands};16{other}" for bands in ("RGB", "RGBA") for order, other in (("B", "L"), ("L", "B"), ("N", FOREIGN))
}
"""16 bits a channel, as Pillow calls them, and the same with the bytes in the other order."""
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)[:, None, None]
"""ITU-R 601, as Pillow weighs red, green and blue."""
DECODED_AT_ONCE = 256
"""Images that a core decodes before it takes the next ones."""

Side = Annotated[int, Field(ge=1, le=10**5, strict=True)]
Sides = Annotated[
    Side | Annotated[tuple[Side, Side], Field(strict=False)], Field(description="a side in pixels, such as 32, or [height, width]")
]


class ImageSettings(Settings):
    """Settings of how images become arrays.

    resize: the side, or [height, width], in pixels that each gets. channels: 1 for grey, 3 for colour; as they are by default.
    pixel_max: of images of more than 8 bits, the value that is white; by default 65535 for 16 bits.
    """

    resize: Sides | None = None
    channels: Annotated[Literal[1, 3], Field(description="1 for grey or 3 for colour")] | None = None
    pixel_max: Positive | None = None


class Look(NamedTuple):
    """How images become arrays.

    size_limit: bytes of memory. resize: (height, width). section: where its settings stand, in errors.
    """

    size_limit: int
    resize: tuple[int, int] | None = None
    channels: int | None = None
    pixel_max: float | None = None
    section: str = "data."

    @classmethod
    def of(cls, settings: ImageSettings, size_limit: int, section: str = "data.") -> Look:
        """The look that settings ask for."""
        sides = settings.resize
        return cls(size_limit, (sides, sides) if isinstance(sides, int) else sides, settings.channels, settings.pixel_max, section)


class Pixels(NamedTuple):
    """Decoded images (n, channels, height, width), uint8, uint16 or float32, the value that is white, what was left out."""

    values: np.ndarray
    white: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return sizes_alone(self)

    def scaled(self) -> np.ndarray:
        """The images as float32 in [−1, 1], scaled by constants and not by the data."""
        scaled = self.values.astype(np.float32)
        scaled /= self.white / 2
        scaled -= 1
        return scaled


class _Image(NamedTuple):
    """One decoded image, (channels, height, width). pages: how many its file holds. clear: whether some of it is transparent."""

    values: np.ndarray
    white: float
    pages: int
    clear: bool

    @property
    def kind(self) -> tuple[Any, ...]:
        return self.values.shape, self.values.dtype, self.white


def decode(images: Sequence[T], source: Callable[[T], Encoded], name: Callable[[T], str], look: Look, setting: str) -> Pixels:
    """Images, decoded on all cores: grey ones as one channel, all others as three. source: the file of an image, or its content.

    Raises:
        BadInput: naming the first image that cannot be decoded, is too large, or is unlike the first of all.
    """
    with _headers_first():
        first = _one(source(images[0]), name(images[0]), look, setting)
        check_size(Path(name(images[0])).parent, len(images) * (first.values.nbytes + 4 * first.values.size), look.size_limit)
        values = np.empty((len(images), *first.values.shape), dtype=first.values.dtype)
        pages, clear = np.ones(len(images), dtype=np.int64), np.zeros(len(images), dtype=bool)

        def fill(start: int) -> None:
            for position in range(start, min(start + DECODED_AT_ONCE, len(images))):
                image = _one(source(images[position]), name(images[position]), look, setting)
                if image.kind != first.kind:
                    raise _unlike(setting, name(images[position]), image, name(images[0]), first, look.section)
                values[position], pages[position], clear[position] = image.values, image.pages, image.clear

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(fill, range(0, len(images), DECODED_AT_ONCE)):
                pass
    return Pixels(values, first.white, tuple(_notes([name(image) for image in images], pages, clear, first, look)))


def _notes(names: list[str], pages: np.ndarray, clear: np.ndarray, first: _Image, look: Look) -> Iterator[str]:
    """What was left out, and the scale where it could be another."""
    if len(more := np.flatnonzero(pages > 1)):
        held = f"{plural(int((pages[more] - 1).sum()), 'page')} or frames after the first"
        yield f"left out: {held} of {plural(len(more), 'image')} (first: {names[more[0]]})"
    if len(see_through := np.flatnonzero(clear)):
        yield f"left out: the transparency of {plural(len(see_through), 'image')} (first: {names[see_through[0]]})"
    if first.white == 65535 and look.pixel_max is None:
        yield f"the images have 16 bits: 0 … 65535 becomes −1 … 1; {look.section}pixel_max=4095 is right for 12 bits in 16"


def _unlike(setting: str, name: str, image: _Image, first_name: str, first: _Image, section: str) -> BadInput:
    """The problem of two images of different kinds, and what to do."""

    def shown(image: _Image) -> str:
        channels, height, width = image.values.shape
        depth = "8 bits" if image.values.dtype == np.uint8 else f"values up to {image.white:g}"
        return f"{height}×{width} pixels, {plural(channels, 'channel')} of {depth}"

    if image.values.shape[1:] != first.values.shape[1:]:
        height, width = first.values.shape[1:]
        remedy = f"Set {section}resize, such as {section}resize=[{height}, {width}], or give images of one size."
    elif len(image.values) != len(first.values):
        remedy = f"Set {section}channels=3 for colour, or {section}channels=1 for grey."
    else:
        remedy = _one_depth(image, first, section)
    return BadInput(setting, f": {name} has {shown(image)}, {first_name} {shown(first)}", remedy=remedy)


def _one_depth(image: _Image, first: _Image, section: str) -> str:
    """How images of several depths become alike."""
    deep = image if first.values.dtype == np.uint8 else first
    if image.values.dtype == first.values.dtype:
        return f"Set {section}pixel_max to the value that is white in all of them, or leave one kind out."
    kind = "16" if deep.values.dtype == np.uint16 else "32 as a TIFF"
    if np.uint8 not in (image.values.dtype, first.values.dtype):
        return "Save all with 16 bits, or leave one kind out."
    return f"Save those of 8 bits with {kind}, each value times {deep.white / 255:.5g}, or leave one kind out."


@contextlib.contextmanager
def _headers_first() -> Iterator[None]:
    """Our own limit, which a setting raises, in place of Pillow's."""
    from PIL import Image

    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _open(source: Encoded) -> Any:
    """An image, of which nothing but the header is decoded yet."""
    from PIL import Image

    if isinstance(source, np.ndarray):
        return Image.fromarray(source)
    Image.init()
    known = [each for each in FORMATS if each in Image.OPEN]
    image: Any = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=known)
    image.filename = ""  # with a name, Pillow maps a plain TIFF into memory, and turns it after it has mixed up its sides
    return image


def _one(source: Encoded, name: str, look: Look, setting: str) -> _Image:
    from PIL import UnidentifiedImageError

    try:
        if isinstance(source, Path):
            regular_file(source, setting, "an image")
        with _open(source) as opened:
            check_size(Path(name), opened.width * opened.height * max(4 * len(opened.getbands()), 8), look.size_limit)
            values, white = _values(source, opened, name, look, setting)
            clear = "A" in opened.getbands() or "transparency" in opened.info
            clear = clear and opened.convert("RGBA").getextrema()[3][0] < 255
            return _Image(np.ascontiguousarray(values), white, int(getattr(opened, "n_frames", 1)), clear)
    except BadInput:
        raise
    except UnidentifiedImageError:
        problem = f": {name} cannot be decoded: it is no PNG, JPEG, BMP, GIF, WebP or TIFF"
        raise BadInput(setting, problem, remedy="Remove it, or save it as one of these") from None
    except Exception as error:  # whatever a damaged image raises
        problem = f": {name} cannot be decoded ({' '.join(str(error).split()).rstrip('.')})"
        raise BadInput(setting, problem, remedy="Remove or replace it") from None


def _values(source: Encoded, opened: Any, name: str, look: Look, setting: str) -> tuple[np.ndarray, float]:
    """The pixels (channels, height, width) as `look` wants them, and which value is white."""
    raw = _raw(opened)
    if opened.mode in (*GREY, *COLOUR) and ";16" not in raw:
        if look.pixel_max is not None:
            held = f"acts only with images of more than 8 bits, and {name} has 8"
            more = f"or, where others have more, save those of 8 bits with more, each value times {look.pixel_max / 255:.5g}"
            raise BadInput(f"{look.section}pixel_max", held, value=look.pixel_max, remedy=f"Leave it out; {more}")
        return _shallow(opened, look), 255.0
    values, white = _deep(source, opened, raw, name, setting)
    white = look.pixel_max or white
    if not white:
        problem, such = f": {name} holds {values.dtype} numbers, and no format says which of them is white", f"{look.section}pixel_max"
        raise BadInput(such, problem, remedy=f"Set it to that number, such as {such}=4095 for 12 bits")
    low, high = float(values.min()), float(values.max())
    if not 0 <= low <= high <= white:
        above = f"Set {look.section}pixel_max to the largest number that the device gives"
        remedy = "Give numbers below 0 as they are, as arrays x and y in an .npz file" if low < 0 else above
        raise BadInput(f"{look.section}pixel_max", f": {name} holds numbers from {low:g} to {high:g}", value=white, remedy=remedy)
    return _as_wanted(values, look), white


def _shallow(opened: Any, look: Look) -> np.ndarray:
    """(channels, height, width), uint8."""
    from PIL import Image

    grey = look.channels == 1 or (look.channels is None and opened.mode in GREY)
    image = opened.convert("RGB") if not grey or opened.mode in COLOUR else opened
    pixels = upright(image.convert("L") if grey else image, opened)
    if look.resize:
        pixels = np.asarray(Image.fromarray(pixels).resize((look.resize[1], look.resize[0]), Image.Resampling.BILINEAR))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _deep(source: Encoded, opened: Any, raw: str, name: str, setting: str) -> tuple[np.ndarray, float]:
    """(channels, height, width) of more than 8 bits, and which value is white: 0 where no format says so.

    Raises:
        BadInput: for a kind whose full depth Pillow does not give.
    """
    if opened.mode.startswith("I;16") or (opened.mode == "I" and raw in ("I;16", "I;16B", "I;16N")):
        return upright(opened, opened)[None].astype(np.uint16), 4095.0 if raw == "I;12" else 65535.0
    if opened.mode in ("I", "F"):
        return upright(opened, opened)[None], 0.0
    if raw not in OTHER_HALF:
        problem = f": {name} is of a kind ({opened.mode}, stored as {raw or 'another'}) whose values are not read in full"
        raise BadInput(setting, problem, remedy="Save it as RGB or grey of 8 or 16 bits, or give its values as arrays in an .npz file")
    with _open(source) as twin:  # Pillow keeps the upper byte of two, and of the same bytes in the other order the lower one
        twin.tile = [_reordered(tile, OTHER_HALF[raw]) for tile in twin.tile]
        upper, lower = (upright(image, image)[..., :3].astype(np.uint16) for image in (opened, twin))
    return (upper << 8 | lower).transpose(2, 0, 1), 65535.0


def _reordered(tile: Any, raw: str) -> Any:
    """A piece of an image, stored as `raw` says; older versions of Pillow have plain tuples."""
    arguments = (raw, *tile[3][1:]) if isinstance(tile[3], tuple) else raw
    return tile._replace(args=arguments) if hasattr(tile, "_replace") else (*tile[:3], arguments)


def _as_wanted(values: np.ndarray, look: Look) -> np.ndarray:
    """Deep pixels (channels, height, width) with the wanted channels and size."""
    from PIL import Image

    if look.channels == 1 and len(values) == 3:
        values = (values * LUMA).sum(0, dtype=np.float32, keepdims=True)
    if look.channels == 3 and len(values) == 1:
        values = np.repeat(values, 3, axis=0)
    if look.resize:
        size = (look.resize[1], look.resize[0])
        planes = [Image.fromarray(plane.astype(np.float32)).resize(size, Image.Resampling.BILINEAR) for plane in values]
        values = np.stack([np.asarray(plane) for plane in planes])
    return values if values.dtype == np.uint16 else values.astype(np.float32)


def _raw(opened: Any) -> str:
    """How the pixels are stored, in Pillow's words."""
    tile = getattr(opened, "tile", ())
    arguments = tile[0][3] if tile else ""
    first = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return first if isinstance(first, str) else ""

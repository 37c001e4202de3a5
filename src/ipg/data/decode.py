"""Image files to pixels: any common format, upright, in 8-bit RGB, square, of one size. Needs no torch."""

from __future__ import annotations

import io
import logging
import threading
from contextlib import nullcontext, suppress
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ipg.data.errors import DataError

__all__ = ["FORMATS", "MOST_PIXELS", "Fit", "check_size", "decode"]

Fit = Literal["squeeze", "crop", "zoom"]
"""How an image becomes square.

- `squeeze`: resized as it is, whatever its shape (GALS on Waterbirds-100);
- `crop`: the largest square in its middle, resized (CelebA);
- `zoom`: squeezed to 8/7 of the size, of which the middle is kept (group DRO and WILDS on Waterbirds: 256, then 224).
"""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MOST_PIXELS = 89_478_485
"""Larger images are refused, since a small file can unpack to any size; the limit is the one Pillow warns from."""
MANY_PIXELS = 1 << 24
"""Larger images are decoded one at a time, however many threads there are: each takes up to a gigabyte."""
STRIP = 256
"""Rows of an image that are laid over white together, to have no second and third copy of a large one."""
_LARGE = threading.Lock()
logging.getLogger("PIL").addHandler(logging.NullHandler())  # what it finds wrong it also raises


def decode(data: bytes, *, size: int, fit: Fit = "squeeze") -> NDArray[np.uint8]:
    """The image in `data` as RGB, (3, size, size).

    Rotated as its EXIF says; 16 bits are brought to 8, transparency is laid over white, of animations the first frame
    is taken, and grey, palette and CMYK images become RGB. Bilinear, as the published protocols resize.

    Raises:
        DataError: it is no image, is damaged or too large; the message is the reason alone.
    """
    check_size(size)
    if fit not in get_args(Fit):
        raise ValueError(f"fit={fit!r} is unknown; there are {', '.join(get_args(Fit))}")
    try:
        return _pixels(data, size, fit)
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"it has more than {MOST_PIXELS:,} pixels") from None
    except MemoryError:
        raise DataError("there is not enough memory for it") from None
    except Exception as error:  # on damaged files Pillow raises whatever its parsers stumble over
        raise DataError(_reason(data, error)) from error


def check_size(size: int) -> None:
    """ValueError where no image can have this side."""
    if not 1 <= size <= 4096:
        raise ValueError(f"size={size} is out of range: expected 1 to 4096 pixels")


def _pixels(data: bytes, size: int, fit: Fit) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
        width, height = opened.size
        if width * height > MOST_PIXELS:
            raise DataError(f"it has {width} x {height} pixels, more than {MOST_PIXELS:,}")
        opened.draft("RGB", (2 * size, 2 * size))  # large JPEGs are decoded at a fraction, still twice the size
        with _LARGE if opened.width * opened.height > MANY_PIXELS else nullcontext():
            return _square(_rgb(_upright(opened)), size, fit)


def _square(image: Image.Image, size: int, fit: Fit) -> NDArray[np.uint8]:
    if fit == "crop":
        image = _middle(image, min(image.size))
    side = round(size * 8 / 7) if fit == "zoom" else size
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(_middle(image, size)).transpose(2, 0, 1))


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    with suppress(Exception):  # damaged EXIF says nothing about the rotation
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    laid = Image.new("RGB", image.size)
    for top in range(0, image.height, STRIP):
        colors = image.crop((0, top, image.width, min(top + STRIP, image.height))).convert("RGBA")
        laid.paste(Image.alpha_composite(Image.new("RGBA", colors.size, "white"), colors).convert("RGB"), (0, top))
    return laid


def _eight_bits(image: Image.Image) -> Image.Image:
    """A grey image of 16 bits with 8; Pillow would cut off all that is brighter than 255."""
    values = np.asarray(image)
    if values.dtype.kind == "f" or values.min() < 0 or values.max() > 65535:
        raise DataError(f"its pixels are of mode {image.mode}, beyond 16 bits; save it with 8 or 16 bits a channel")
    return Image.fromarray((values.astype(np.uint32) // 257).astype(np.uint8))


def _middle(image: Image.Image, side: int) -> Image.Image:
    """The square in the middle, as torchvision finds it."""
    left, top = round((image.width - side) / 2), round((image.height - side) / 2)
    return image if image.size == (side, side) else image.crop((left, top, left + side, top + side))


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "it is empty"
    if isinstance(error, UnidentifiedImageError):
        return f"it is no image of a known format ({', '.join(FORMATS)})"
    return str(error) or type(error).__name__

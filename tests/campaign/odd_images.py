"""Image files that are damaged, odd, or larger than they look."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import cache
from random import Random

import numpy as np
from campaign.mutate import spoil_bytes
from PIL import Image

__all__ = ["MAKERS", "odd_image"]

JUST_ALLOWED = 9_400
"""Side of the largest image that is decoded."""


def odd_image(draw: Random, data: bytes) -> bytes:
    """Something in the place of the image `data`."""
    if draw.random() < 0.5:
        with Image.open(io.BytesIO(data)) as image:
            whole = _saved(image.convert("RGB"), draw.choice(("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")))
        return spoil_bytes(draw, whole)
    return MAKERS[draw.choice(list(MAKERS))](draw)


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def _noise(draw: Random, *shape: int, high: int = 256, kind: type = np.uint8) -> Image.Image:
    values = np.random.default_rng(draw.randrange(2**32)).integers(0, high, shape)
    return Image.fromarray(values.astype(kind))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, *chunks: bytes, bits: int = 8, color: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + b"".join(chunks) + _chunk(b"IEND", b"")


@cache
def _black(side: int, mode: str) -> bytes:
    """A large image of nothing: a few hundred kilobytes that unpack to any size."""
    return _saved(Image.new(mode, (side, side)), "PNG")


def _zero(draw: Random) -> bytes:
    return draw.choice((_png(0, 0), _png(0, 8), b"GIF89a\0\0\0\0\0\0\0;", b"P6 0 0 255\n", b"BM" + bytes(60)))


def _bomb(draw: Random) -> bytes:
    body = _chunk(b"IDAT", zlib.compress(bytes(1_000_000)))
    side = draw.choice((10_000, 60_000, 2**31 - 1))
    return draw.choice((_png(side, side, body), _black(9_500, "L"), _png(1, 2**31 - 1, body)))


def _text_bomb(draw: Random) -> bytes:
    body = _chunk(b"IDAT", zlib.compress(bytes(9 * 8)))
    return _png(8, 8, _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200_000_000))), body)


def _animated(draw: Random) -> bytes:
    frames = [_noise(draw, 8, 8, 3) for _ in range(3)]
    kind = draw.choice(("GIF", "WEBP", "TIFF", "PNG"))
    return _saved(frames[0], kind, save_all=True, append_images=frames[1:])


def _bad_exif(draw: Random) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = draw.choice((0, 6, 9, 65535))
    return _saved(_noise(draw, 8, 12, 3), "JPEG", exif=exif.tobytes()[: draw.choice((10, 20, 10_000))])


MAKERS: dict[str, Callable[[Random], bytes]] = {
    "empty": lambda draw: b"",
    "text": lambda draw: draw.choice(
        (b"<svg/>", b"<html></html>", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"/etc/passwd", b"\0")
    ),
    "zero by zero": _zero,
    "bomb": _bomb,
    "large and allowed": lambda draw: _black(JUST_ALLOWED, draw.choice(("1", "L", "LA", "P"))),
    "text bomb": _text_bomb,
    "16 bits": lambda draw: _saved(_noise(draw, 8, 8, high=65536, kind=np.uint16), draw.choice(("PNG", "TIFF"))),
    "32 bits": lambda draw: _saved(_noise(draw, 8, 8, high=2**31, kind=np.int32), "TIFF"),
    "float": lambda draw: _saved(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF"),
    "CMYK": lambda draw: _saved(_noise(draw, 8, 8, 4).convert("CMYK"), draw.choice(("JPEG", "TIFF"))),
    "one bit": lambda draw: _saved(_noise(draw, 8, 8).convert("1"), draw.choice(("PNG", "TIFF", "BMP"))),
    "transparent": lambda draw: _saved(_noise(draw, 8, 8, 4), draw.choice(("PNG", "WEBP"))),
    "palette": lambda draw: _saved(_noise(draw, 8, 8, 3).convert("P"), "PNG", transparency=draw.randrange(256)),
    "animated": _animated,
    "EXIF": _bad_exif,
    "narrow": lambda draw: _saved(Image.new("RGB", draw.choice(((1, 20_000), (20_000, 1), (1, 1)))), "PNG"),
    "icon": lambda draw: _saved(_noise(draw, 16, 16, 3), draw.choice(("ICO", "PDF", "JPEG2000", "TGA"))),
}
"""Kinds of odd images."""

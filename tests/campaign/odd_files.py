"""Archives and weights that are damaged, or made to mislead whoever reads them."""

from __future__ import annotations

import io
import json
import stat
import struct
import warnings
import zipfile
from random import Random

from campaign.mutate import ODD_TEXTS, spoil_bytes, spoil_json
from campaign.odd_images import odd_image

__all__ = ["odd_safetensors", "odd_zip"]

NAMES = (
    "../x.png", "../../x.png", "/tmp/ipg-climbed.png", "cat/../../x.png", "cat\\..\\..\\x.png", "C:\\x.png", "cat/",
    "cat/\x1b[31m.png", "cat/a\nb.png", "cat/.png", "./cat/x.png", "cat//x.png", "cat/\ud800.png",
    "cat/" + "x" * 5000 + ".png",
    "__MACOSX/cat/x.png", "cat/x.png/y.png", "=1+1/x.png", "train/cat/x.png",
)  # fmt: skip
"""What a file in an archive may be called."""


def odd_zip(draw: Random, data: bytes) -> bytes:
    """Something in the place of the archive `data`."""
    if draw.random() < 0.4:
        return spoil_bytes(draw, data)
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        warnings.simplefilter("ignore")  # of names that come twice
        entries = [(info.filename, old.read(info)) for info in old.infolist()]
        for name, content in entries:
            new.writestr(name, content, draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
        picture = entries[-1][1]
        for _ in range(draw.choice((1, 1, 3))):
            _add(draw, new, entries[draw.randrange(len(entries))][0], picture)
    found = bytearray(made.getvalue())
    if draw.random() < 0.3:  # encrypted, packed in another way, of another size: as its directory says
        place = found.rfind(b"PK\x01\x02")
        offset, value = draw.choice(
            ((8, 1), (10, 12), (10, 14), (10, 99), (24, 2**31), (24, 5), (20, 2**31), (42, 2**31))
        )
        struct.pack_into("<H" if offset < 20 else "<I", found, place + offset, value)
    return bytes(found)


def _add(draw: Random, archive: zipfile.ZipFile, taken: str, picture: bytes) -> None:
    match draw.randrange(6):
        case 0:
            info = zipfile.ZipInfo("cat/link.png")
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, draw.choice(("/etc/passwd", "../../x", "/dev/zero")))
        case 1:
            archive.writestr(taken, picture)
        case 2:
            archive.writestr("cat/bomb.png", bytes(draw.choice((50, 300)) << 20), zipfile.ZIP_DEFLATED, 1)
        case 3:
            archive.writestr("cat/odd.png", odd_image(draw, picture))
        case _:
            name = draw.choice((*NAMES, draw.choice(ODD_TEXTS))) or "x"
            archive.writestr(name.encode("utf-8", "replace").decode()[:60_000], picture)


def odd_safetensors(draw: Random, data: bytes) -> bytes:
    """Something in the place of the weights `data`."""
    if draw.random() < 0.4:
        return spoil_bytes(draw, data)
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    chosen = draw.choice(names)
    match draw.randrange(10):
        case 0:
            return draw.choice((2**63, 2**64 - 1, 10**8, length + 1, length - 1, 0)).to_bytes(8, "little") + data[8:]
        case 1:
            header[chosen]["shape"] = draw.choice(([], [0], [-1], [2**40, 2**40], [1, *header[chosen]["shape"]], [3]))
        case 2:
            header[chosen]["dtype"] = draw.choice(("F64", "I8", "BOOL", "F8_E4M3", "U64", "BF16", "X", ""))
        case 3:
            header[chosen]["data_offsets"] = draw.choice(([0, 4], [4, 0], [0, 2**62], [len(body), len(body)]))
        case 4:
            header[draw.choice(ODD_TEXTS)] = header.pop(chosen)
        case 5:
            start, stop = header[chosen]["data_offsets"]
            body = body[:start] + draw.choice((b"\xff", b"\x7f\x80", b"\0")) * (stop - start) + body[stop:]
            body = body[: len(data) - 8 - length]
        case 6:
            header[chosen]["shape"] = header[chosen]["shape"][::-1]
        case 7:
            header["__metadata__"] = spoil_json(draw, header.get("__metadata__", {"format": "pt"}))
        case 8 if "structure" in header.get("__metadata__", {}):
            kept = json.loads(header["__metadata__"]["structure"])
            for _ in range(3):
                kept = spoil_json(draw, kept)
            header["__metadata__"]["structure"] = json.dumps(kept)
        case _:
            header = spoil_json(draw, header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body

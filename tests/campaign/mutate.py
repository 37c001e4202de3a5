"""Valid bytes, text and JSON made invalid, or odd and still valid. Everything is drawn from a generator."""

from __future__ import annotations

import json
import math
import re
from random import Random
from typing import Any

__all__ = ["ODD_TEXTS", "spoil_bytes", "spoil_json", "spoil_jsonl", "spoil_text"]

ODD_TEXTS = (
    "", " ", "0", "-1", "1e999", "nan", "-inf", "9" * 30, "9" * 5000, "0x10", "1_000", "٣", "true", "null", "[]", "{}",
    "[" * 3000, '{"a":' * 2000, "x" * 300, "x" * 100_000, "../../../etc/passwd", "/etc/passwd", "/dev/zero",
    "/dev/null", "C:\\windows\\x", "a\0b", "\x1b[31mred", "\r\n", '"', "'", "`", "=1+1", '"><script>alert(1)</script>',
    "%s%n{0}", "𝕏", "\ufeff", "\u202e", "data:", "data:x", "python:os:getcwd", "hf:x/y", "timm:resnet18",
    "1979-05-27T07:32:00Z", "https://127.0.0.1:9/x", "~", "~nobody/x", ".", "..", "//", "nan.png", "label", "path",
)  # fmt: skip
"""What stands in the place of a word."""

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e308, math.nan, math.inf,
    "", [], {}, [[]], [None], {"": {}}, [0, 1, 2], {"a": 1}, [[[[[[]]]]]],
)  # fmt: skip
"""What stands in the place of a value of JSON."""


def spoil_bytes(draw: Random, data: bytes) -> bytes:
    """One to four accidents: cut, flipped, filled, moved, doubled, inserted or overwritten."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        size = len(found)
        start = draw.randrange(size + 1)
        stop = min(size, start + draw.choice((1, 2, 4, 8, 64, 1024)))
        match draw.randrange(9):
            case 0:
                del found[start:]
            case 1:
                del found[start:stop]
            case 2:
                for place in range(start, stop):
                    found[place] ^= 1 << draw.randrange(8)
            case 3:
                found[start:stop] = bytes([draw.choice((0, 0x20, 0x7F, 0xFF))]) * (stop - start)
            case 4:
                found[start:stop] = found[start:stop] * draw.choice((2, 100))
            case 5:
                found[start:start] = draw.randbytes(draw.choice((1, 4, 100)))
            case 6:
                found[start:stop] = draw.randbytes(stop - start)
            case 7:
                number = draw.choice((0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1))
                width = draw.choice((2, 4, 8))
                found[start : start + width] = (number % 256**width).to_bytes(width, draw.choice(("big", "little")))
            case _:
                found = found[stop:] + found[:start]
    return bytes(found)


def spoil_text(draw: Random, text: str) -> str:
    """One to three accidents to words or lines; some are still valid."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        words = re.findall(r"[\w.+-]+|\s+|.", text)
        lines = text.splitlines(keepends=True) or [""]
        place, line = draw.randrange(len(words) + 1), draw.randrange(len(lines))
        match draw.randrange(7):
            case 0 | 1:
                words[place : place + 1] = [draw.choice(ODD_TEXTS)]
                text = "".join(words)
            case 2:
                del words[place : place + 1]
                text = "".join(words)
            case 3:
                lines.insert(line, draw.choice(lines))
                text = "".join(lines)
            case 4:
                del lines[line]
                text = "".join(lines)
            case 5:
                lines.insert(line, draw.choice(ODD_TEXTS) + draw.choice(("\n", " = 1\n", ",,,\n", "")))
                text = "".join(lines)
            case _:
                other = draw.randrange(len(words) + 1)
                words[place : place + 1], words[other : other + 1] = words[other : other + 1], words[place : place + 1]
                text = "".join(words)
    return text


def spoil_json(draw: Random, value: Any) -> Any:
    """A value of it odd, missing, doubled into a list, or under another name."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        match draw.randrange(8):
            case 0:
                return {key: item for key, item in value.items() if key != name}
            case 1:
                return {draw.choice(ODD_TEXTS) if key == name else key: item for key, item in value.items()}
            case _:
                return {key: spoil_json(draw, item) if key == name else item for key, item in value.items()}
    if isinstance(value, list) and value and draw.random() < 0.7:
        place = draw.randrange(len(value))
        return [spoil_json(draw, item) if number == place else item for number, item in enumerate(value)]
    return draw.choice((*ODD_VALUES, draw.choice(ODD_TEXTS), [value], str(value)))


def spoil_jsonl(draw: Random, text: str) -> str:
    """One of its rows spoilt, by value or as text, or rows doubled, lost or cut."""
    lines = text.splitlines()
    place = draw.randrange(len(lines))
    match draw.randrange(6):
        case 0:
            lines[place] = spoil_text(draw, lines[place])
        case 1:
            lines.insert(place, draw.choice((lines[place], "[1, 2]", "7", "[" * 100_000, "{}", "")))
        case _:
            lines[place] = json.dumps(spoil_json(draw, json.loads(lines[place])))
    return "\n".join(lines) + "\n"

"""What is captured of runs with 120 images in batches of 32: three full ones an epoch, and one of 24."""

from __future__ import annotations

from typing import Any

__all__ = ["CASES"]

CASES: list[tuple[dict[str, Any], set[tuple[int, bool]]]] = [
    ({"method": "erm"}, {(32, False), (24, False)}),
    ({"method": "ipg", "every": 1}, {(32, True), (24, True)}),
    ({"method": "ipg", "every": 2}, {(32, True), (32, False), (24, False)}),
    ({"method": "ipg", "every": 3, "epochs": 12}, {(32, True), (32, False), (24, True), (24, False)}),
]
"""Settings of runs of six epochs or more, and the kinds of graphs: lengths, and whether there is a correction."""

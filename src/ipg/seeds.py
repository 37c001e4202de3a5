"""One seed a run, and from it an independent one for everything that is random."""

from __future__ import annotations

import hashlib

__all__ = ["derive_seed"]


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed for `purpose`, the same on every machine: `derive_seed(0, "order", 3)`."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1  # 63 bits

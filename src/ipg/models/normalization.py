"""What a network subtracts from images in [0, 1] and divides them by: the statistics its weights were trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["NORMALIZATIONS", "Normalization"]


@dataclass(frozen=True)
class Normalization:
    """`(image - mean) / std`, a number a channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        good = all(map(math.isfinite, self.mean + self.std)) and all(value > 0 for value in self.std)
        if not good or not len(self.mean) == len(self.std) > 0:
            raise ValueError(f"a normalisation needs as many means as positive standard deviations, got {self}")

    def __str__(self) -> str:
        """The form that `parse` reads."""
        return "/".join(",".join(f"{value:.9g}" for value in values) for values in (self.mean, self.std))

    @classmethod
    def parse(cls, text: str, *, channels: int) -> Normalization:
        """From a name of `NORMALIZATIONS` or numbers, "0.485,0.456,0.406/0.229,0.224,0.225", for so many channels."""
        if text in NORMALIZATIONS:
            return NORMALIZATIONS[text].over(channels)
        mean, _, std = text.partition("/")
        try:
            found = cls(_numbers(mean), _numbers(std))
        except ValueError:
            raise ValueError(
                f"normalization={text!r} is neither one of {', '.join(NORMALIZATIONS)} nor means and positive standard "
                f"deviations such as {NORMALIZATIONS['imagenet']}"
            ) from None
        if len(found.mean) not in (1, channels):
            raise ValueError(f"normalization={text!r} has {len(found.mean)} means, the images {channels} channels")
        return found.over(channels)

    @classmethod
    def found_in(cls, described: Mapping[str, Any], mean: str = "mean", std: str = "std") -> Normalization | None:
        """What a file or a model's configuration says, as numbers or as text; None where it says nothing usable."""
        try:
            return cls(_numbers(described[mean]), _numbers(described[std]))
        except (KeyError, TypeError, ValueError):
            return None

    @classmethod
    def of(cls, mean: Tensor, std: Tensor) -> Normalization:
        """From tensors, with the shortest numbers that they stand for: 0.485 and not 0.48500001."""
        return cls(*(tuple(float(str(value)) for value in values.flatten().cpu().numpy()) for values in (mean, std)))

    def over(self, channels: int) -> Normalization:
        """The same over so many channels; where they are others, the averages in each."""
        if len(self.mean) == channels:
            return self
        return Normalization(*((sum(values) / len(values),) * channels for values in (self.mean, self.std)))


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in (values.split(",") if isinstance(values, str) else values))


NORMALIZATIONS: dict[str, Normalization] = {
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": Normalization((0.5,) * 3, (0.5,) * 3),
    "none": Normalization((0.0,) * 3, (1.0,) * 3),
}
"""Those that have a name: ImageNet's statistics; images scaled to [-1, 1]; images as they are."""

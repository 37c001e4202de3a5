"""The grayscale oracle: plain training on images without colour, the most that colour-blind learning can reach.

    x → x_1 + x_2,    the two colour channels summed, then plain training

Arjovsky et al., "Invariant Risk Minimization", 2019.

Differs from the paper: in the network and the images, which are the run's, and in the class weights
(`ipg.methods.erm`).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ipg.data.coloring import gray
from ipg.methods.base import Need
from ipg.methods.erm import Erm

__all__ = ["Oracle"]


class Oracle(Erm):
    """Plain training without the shortcut: possible only where it can be taken out of every image."""

    name: ClassVar[str] = "oracle"
    summary: ClassVar[str] = "Plain training on grayscale images: what is possible without the colour."
    needs: ClassVar[frozenset[Need]] = frozenset({"shortcut rule"})

    @staticmethod
    def transform(images: Tensor) -> Tensor:
        """All colour taken out."""
        return gray(images)

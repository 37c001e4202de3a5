"""Shape-only: plain training on the shape of what is lit, which has no colour.

    x → (mask, contour, distance to the outside, skeleton · distance),    mask = [largest channel ≥ ½]

A stand-in for Shock Graph (Narayanan, Rajendran and Kimia, "Shape-Biased Domain Generalization via Shock Graph
Embeddings", ICCV 2021), whose code is not public: there the medial axis of the contour, with the radii along it,
becomes a graph for a graph network. Here the same quantities are four images for the run's own network. It is not Shock
Graph, and its figures are not Shock Graph's.

The skeleton is thinned as in Zhang and Suen, "A Fast Parallel Algorithm for Thinning Digital Patterns", Communications
of the ACM 1984.

Differs from Shock Graph: no graph, no graph network, no flow along the axis.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ipg.data.shape import shape_channels
from ipg.methods.base import Need
from ipg.methods.erm import Erm

__all__ = ["ShapeOnly"]


class ShapeOnly(Erm):
    """Plain training on shapes: possible only where what is lit is the thing itself."""

    name: ClassVar[str] = "shape_only"
    summary: ClassVar[str] = "Plain training on the shape alone: a stand-in for Shock Graph."
    needs: ClassVar[frozenset[Need]] = frozenset({"shortcut rule"})
    cost: ClassVar[str] = "1, and the shapes once"

    @staticmethod
    def transform(images: Tensor) -> Tensor:
        """Mask, contour, distances and skeleton in place of colours."""
        return shape_channels(images)

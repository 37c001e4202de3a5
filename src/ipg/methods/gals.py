"""GALS, guiding attention with language: the loss shall not change with what CLIP does not look at.

    L = L_T + λ · mean |G − G ⊙ A|,    G = ∂L_T/∂x

A is where CLIP looks when told what to look for: Grad-CAM of its ResNet's last feature map towards the embeddings of
the prompts, averaged over those that find something, less its minimum and over its (original) maximum. Images in which
no prompt finds anything take part in L_T alone.

Petryk, Dunlap, Nasseri, Gonzalez, Darrell and Rohrbach, "On Guiding Visual Attention with Language Specification", CVPR
2022. CLIP: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021, through
open_clip, the extra `clip`; its weights are the user's to give.

    -o clip=RN50.pt -o "prompts=an image of a bird; a photo of a bird"

Prompts are separated by a semicolon; where classes have their own, by a bar between the classes, in their order.

Differs from the paper: L_T is the run's own loss (`ipg.methods.masked`). A is kept in 256 steps, and at the size of the
run's images, which CLIP is given enlarged or reduced to its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.methods.base import Need
from ipg.methods.gals_mask import GalsMask
from ipg.methods.masked import is_reversed
from ipg.methods.options import option, parse_options
from ipg.methods.space import LogUniform, Range
from ipg.models.clip_attention import ClipAttention, cached_attention

__all__ = ["Gals", "class_prompts"]


@dataclass(frozen=True)
class GalsOptions:
    """λ; CLIP's weights (a file, or what open_clip fetches) and architecture; what to look for, and whether not to."""

    weight: float = option(1e4, least=0)
    clip: str = ""
    network: str = "RN50-quickgelu"
    prompts: str = "an image of a bird; a photo of a bird"
    outside: bool = False


class Gals(GalsMask):
    """Task loss plus the gradient by the pixels that CLIP does not look at."""

    name: ClassVar[str] = "gals"
    summary: ClassVar[str] = "GALS: the loss shall not depend on pixels that CLIP, told by words, does not look at."
    needs: ClassVar[frozenset[Need]] = frozenset({"attention"})
    remedy: ClassVar[str] = "name CLIP's weights with -o clip=FILE, or take gals_mask, which needs masks alone"
    Options: ClassVar[type] = GalsOptions
    space: ClassVar[Mapping[str, Range]] = {"weight": LogUniform(1e2, 1e6)}

    @classmethod
    def regions(cls, config: RunConfig, table: ImageTable) -> Tensor | None:
        """Where CLIP looks in the training images of `table`."""
        options: GalsOptions = parse_options(cls, config.options)
        if not options.clip:
            return None  # refused when the method is made
        part = table.part("train")
        if part.images.shape[1] != 3:
            raise ValueError(f"CLIP looks at images of three channels, and those of {table.name} have others")
        prompts = class_prompts(options.prompts, table.num_classes)
        cuda = torch.cuda.is_available() and config.device in ("auto", "cuda")
        clip = ClipAttention(options.network, options.clip, device=torch.device("cuda" if cuda else "cpu"))
        if "prompts" not in config.options and (not table.name.startswith("waterbirds") or is_reversed(table)):
            raise ValueError(
                f"method 'gals' has CLIP look for birds unless told otherwise: say what matters in {table.name} with "
                f'-o prompts="a photo of …"'
            )
        return cached_attention(clip, part.images, part.label, prompts)


def class_prompts(text: str, classes: int) -> list[list[str]]:
    """What to look for in images of each class, from `one; another | one of the second class`."""
    parts = [[prompt.strip() for prompt in part.split(";") if prompt.strip()] for part in text.split("|")]
    if not all(parts) or len(parts) not in (1, classes):
        raise ValueError(
            f"option prompts={text!r}: expected prompts separated by semicolons, for all classes or, between bars, "
            f"for each of the {classes}"
        )
    return parts * classes if len(parts) == 1 else parts

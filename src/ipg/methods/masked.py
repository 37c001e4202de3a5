"""The task loss plus a weighted penalty on where the network looks: the frame of EPG and GALS.

    L = L_T + λ · penalty

The penalty is of a gradient by the images, so that its own gradient takes a second pass back. Masks say where the
object is; they come from files named by the run (`masks`), or from what the method makes of the images.

An image without a mask, or whose random crop shows nothing of it, takes part in L_T alone.

Differs from the papers: L_T is plain training's loss, weighted by class if the run says so. A compiled network has no
gradients of gradients, and several processes would each have a part of the batch: both are refused.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ipg.config import RunConfig
from ipg.data.batches import Batch
from ipg.data.load import list_files
from ipg.data.reading import Reading
from ipg.data.table import ImageTable
from ipg.methods.base import NEEDS, Method, Need, Setup
from ipg.methods.options import parse_options
from ipg.models.convolutions import as_before, differentiable_twice
from ipg.models.image_model import ImageModel
from ipg.pairs.masks import Masks
from ipg.rationale import unwrap

__all__ = ["Masked", "is_reversed", "normalization", "present"]


class Masked(Method):
    """Base of the methods that look at gradients by the images under masks; a subclass says how."""

    needs: ClassVar[frozenset[Need]] = frozenset({"masks"})
    cost: ClassVar[str] = "about 2.5, for a pass back through a pass back"
    alone: ClassVar[str] = "looks at whole batches of masks"
    compiles: ClassVar[bool] = False
    remedy: ClassVar[str] = "say with --masks which folder or zip holds them"
    """What to do where there are no masks."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.masks is None:
            (need,) = self.needs
            raise ValueError(f"method {self.name!r} needs {NEEDS[need]}, and there are none: {self.remedy}")
        if setup.config.engine == "compiled":
            raise ValueError(
                f"method {self.name!r} takes gradients of gradients, which a compiled network has not: use --engine "
                f"captured or eager"
            )
        differentiable_twice(unwrap(setup.model))

    @classmethod
    def regions(cls, config: RunConfig, table: ImageTable) -> Tensor | None:
        """The masks of the training images of `table`, from where the run says they are."""
        if config.masks is None:
            return None  # refused when the method is made
        listing = list_files(config.data, path=config.data_path, reading=Reading.of(config))
        if listing is None or listing.files != table.names:
            raise ValueError(
                f"--masks {config.masks}: masks go by the names of image files, and {table.name} has none; take data "
                f"that are files"
            )
        masks = Masks(config.masks, listing, size=int(table.images.shape[-1]))
        return masks.tensor(table.indices("train").tolist())

    @classmethod
    def remark(cls, config: RunConfig, table: ImageTable) -> str | None:
        """Whether masks show what must not matter, and are taken for the object all the same."""
        if "masks" not in cls.needs or not is_reversed(table) or parse_options(cls, config.options).outside:
            return None
        return f"in {table.name} masks show what must not matter; give {cls.name} -o outside=true"

    def penalty(self, image: Tensor, logits: Tensor, loss: Tensor, batch: Batch) -> Tensor:
        """The penalty of a batch, a scalar with its graph; `image` is what `logits` and `loss` can be derived by."""
        raise TypeError(f"{type(self).__name__} does not say what it penalises")

    def inputs(self, image: Tensor) -> Tensor:
        """What the network is given, and derivatives are taken by."""
        return image.detach().requires_grad_()

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step on the task loss and the penalty."""
        setup = self.setup
        setup.optimizer.zero_grad()
        image = self.inputs(batch.image)
        logits = setup.logits(image)
        loss = setup.criterion(logits, batch.label)
        penalty = self.penalty(image, logits, loss, batch)
        (loss + self.options.weight * penalty).backward()
        setup.optimizer.step()
        return {"task_loss": loss.detach(), "penalty": penalty.detach()}

    def close(self) -> None:
        """Have convolutions run as they did."""
        as_before(unwrap(self.setup.model))


def is_reversed(table: ImageTable) -> bool:
    """Whether the label is the background, as in `waterbirds100_reverse`, and not what masks show."""
    return table.name.endswith("_reverse")


def normalization(setup: Setup) -> tuple[Tensor, Tensor]:
    """Mean and spread by which the network normalises images in [0, 1], (1, C, 1, 1) each; 0 and 1 for most."""
    model = unwrap(setup.model)
    if isinstance(model, ImageModel):
        return model.mean, model.std
    one = next(model.parameters()).detach().new_ones(1, 1, 1, 1)
    return torch.zeros_like(one), one


def present(mask: Tensor) -> Tensor:
    """Which of the masks (B, 1, H, W) show anything, (B,)."""
    return mask.flatten(start_dim=1).amax(dim=1) > 0

"""Where a model looks: which places of an image speak for the class it gives, through captum.

Grad-CAM (Selvaraju and others, "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV
2017) on the last feature map: the map's channels, weighted by the mean gradient of the class's logit, less the mean
logit, as far as they speak for the class. A network without such a map, like a vision transformer, gets integrated
gradients (Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", ICML 2017) from the mean colour of the
images, smoothed over a few pixels. Maps are brought to [0, 1], each by its own largest values: they say where, not how
much in all.

Captum is the extra `report`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.evaluation.groups import logits_of
from ipg.modes import unchanged
from ipg.rationale import unwrap

__all__ = ["INSTALL", "available", "last_map", "look"]

INSTALL = "pip install 'invariance-pair-guidance[report]'"
STEPS = 24
"""Gradients that are summed up for an image where there is no feature map."""
BATCH = 32
SMOOTHING = 1 / 24
"""Standard deviation of the smoothing, as a share of the image's side."""
BRIGHTEST = 0.99
"""Share of pixels below full heat, so that one pixel does not dim all others."""


def available() -> bool:
    """Whether captum is there."""
    return find_spec("captum") is not None


def look(model: nn.Module, images: Tensor) -> Tensor:
    """How much each pixel of the uint8 `images` (N, C, H, W) speaks for the class they are given: (N, H, W), 0 to 1."""
    bare = unwrap(model)
    x = images.to(next(bare.parameters(), images).device).float() / 255

    def margins(batch: Tensor) -> Tensor:
        logits = logits_of(bare(batch)).float()
        logits = logits if logits.shape[1] > 1 else torch.cat([-logits, logits], dim=1)
        return logits - logits.mean(dim=1, keepdim=True)

    with _at_rest(bare):
        layer = last_map(bare, x[:1])
        plain = x.mean(dim=(0, 2, 3), keepdim=True)
        maps = [
            _integrated(margins, part, plain) if layer is None else _cam(margins, part, layer)
            for part in torch.split(x, BATCH)
        ]
    found = torch.cat(maps).relu()
    top = found.flatten(1).quantile(BRIGHTEST, dim=1)[:, None, None]
    return (found / top.clamp_min(torch.finfo(found.dtype).tiny)).clamp(0, 1)


def last_map(model: nn.Module, image: Tensor) -> nn.Module | None:
    """The module whose output is the last with places in it, if it is a feature map in the image's own proportions.

    None where that output is something else: a row of tokens, or a map whose channels come last.
    """
    height, width = image.shape[2:]
    found: list[nn.Module | None] = []

    def note(module: nn.Module, inputs: object, output: object) -> None:
        if not isinstance(output, Tensor) or output.ndim < 3 or output.shape[2:].numel() == 1:
            return
        rows, columns = output.shape[2:] if output.ndim == 4 else (1, 1)
        alike = min(rows, columns) > 1 and abs(rows * width - columns * height) < max(width, height)
        found.append(module if alike else None)

    hooks = [module.register_forward_hook(note) for module in model.modules() if module is not model]
    try:
        with torch.no_grad():
            model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return found[-1] if found else None


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Eval mode, and no gradients but that of the images; all is as before afterwards."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with unchanged(model):
        model.eval()
        for parameter in wanted:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in wanted:
                parameter.requires_grad_(True)


def _captum() -> Any:
    """Captum's methods, imported when they are needed; that its progress bars want widgets is nobody's concern."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        return importlib.import_module("captum.attr")


def _given(margins: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    with torch.no_grad():
        return margins(batch).argmax(dim=1)


def _cam(margins: Callable[[Tensor], Tensor], batch: Tensor, layer: nn.Module) -> Tensor:
    """Grad-CAM at `layer`, at the size of the images, (n, H, W)."""
    method = _captum().LayerGradCam(margins, layer)
    parts: Tensor = method.attribute(batch.clone(), target=_given(margins, batch), relu_attributions=True)
    sized = F.interpolate(parts.detach().float(), batch.shape[2:], mode="bilinear", align_corners=False)
    return sized[:, 0].cpu()


def _integrated(margins: Callable[[Tensor], Tensor], batch: Tensor, plain: Tensor) -> Tensor:
    """Integrated gradients from the colour `plain`, smoothed, (n, H, W)."""
    parts: Tensor = (
        _captum()
        .IntegratedGradients(margins)
        .attribute(
            batch,
            plain.expand_as(batch).contiguous(),
            target=_given(margins, batch),
            n_steps=STEPS,
            internal_batch_size=max(BATCH, len(batch)),
        )
    )
    return _smooth(parts.detach().sum(dim=1).relu().float().cpu())


def _smooth(maps: Tensor) -> Tensor:
    sigma = max(0.5, SMOOTHING * max(maps.shape[1:]))
    reach = int(3 * sigma)
    bell = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    bell = bell / bell.sum()
    padded = F.pad(maps[:, None], [reach] * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, bell[None, None, None]), bell[None, None, :, None])[:, 0]

"""Where CLIP looks when it is told what to look for, through open_clip, the extra `clip`.

Grad-CAM (Selvaraju and others, ICCV 2017) as GALS makes it: the last feature map F of CLIP's ResNet, its channels
weighted by the mean gradient of the image's embedding towards t̂ ‖e‖, the unit embedding of a prompt at the length of
the image's own:

    map = max(0, Σ_c F_c · mean_p (∂⟨e, t̂ ‖e‖⟩/∂F)_cp)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ipg.data.locations import cache_folder
from ipg.files import replacing
from ipg.models.extras import import_extra

__all__ = ["ClipAttention", "cached_attention", "combine"]

BATCH = 32


class ClipAttention:
    """CLIP with a ResNet for images.

    Args:
        network: its architecture, as open_clip calls it.
        weights: a file, or the name of weights that open_clip can fetch.
        device: where it works.
    """

    def __init__(self, network: str, weights: str, *, device: torch.device) -> None:
        open_clip = import_extra("open_clip", needed_for="attention by CLIP")
        if network not in open_clip.list_models():
            raise ValueError(f"open_clip knows no network {network!r}; for weights of OpenAI name RN50-quickgelu")
        released = open_clip.list_pretrained_tags_by_model(network)
        if not Path(weights).is_file() and weights not in released:
            raise ValueError(
                f"there are no CLIP weights {weights!r}: expected a file"
                + (f", or one of {', '.join(released)}, which open_clip fetches" if released else "")
            )
        try:
            model = open_clip.create_model(network, pretrained=weights, device=device)
        except Exception as error:  # on weights that are damaged, or more than weights, it raises anything
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"the CLIP weights {weights} cannot be loaded as {network}: {reason}") from None
        if not isinstance(getattr(model.visual, "layer4", None), nn.Module):
            raise ValueError(f"attention is read off a ResNet, and CLIP {network} has none; name RN50-quickgelu")
        self.model, self.device = model.eval().requires_grad_(False), device
        self.identity = [network, _digest(weights)]
        """What its maps depend on besides images and prompts."""
        self._tokens = open_clip.get_tokenizer(network)
        self._mean, self._std = (
            torch.tensor(values, device=device).view(1, -1, 1, 1)
            for values in (model.visual.image_mean, model.visual.image_std)
        )

    def embed(self, prompts: Sequence[str]) -> Tensor:
        """Unit embeddings of prompts, (P, E)."""
        with torch.no_grad():
            found: Tensor = F.normalize(self.model.encode_text(self._tokens(list(prompts)).to(self.device)), dim=1)
        return found

    def look(self, images: Tensor, towards: Tensor) -> Tensor:
        """Maps of where uint8 `images` (n, 3, H, W) show what has the embeddings `towards` (P, E), (n, P, h, w)."""
        maps: list[Tensor] = []

        def begin(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            maps.append(output.detach().requires_grad_())
            return maps[-1]

        size = self.model.visual.image_size
        x = F.interpolate(images.to(self.device).float() / 255, size, mode="bilinear", antialias=True)
        hook = self.model.visual.layer4.register_forward_hook(begin)
        try:
            embedding = self.model.encode_image((x - self._mean) / self._std)  # (n, E)
        finally:
            hook.remove()
        length = embedding.detach().norm(dim=1, keepdim=True)
        found = []
        for prompt in towards:
            (slope,) = torch.autograd.grad(embedding, maps[0], prompt * length, retain_graph=True)
            found.append((maps[0].detach() * slope.mean(dim=(2, 3), keepdim=True)).sum(dim=1).relu())
        return torch.stack(found, dim=1)


def combine(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """One map in [0, 1] of the maps (n, P, h, w) of several prompts, (n, 1, H, W); empty where all are.

    The mean over those that are not zero everywhere, less its minimum, over what its maximum was before that.
    """
    shown = (maps.flatten(start_dim=2).amax(dim=2) > 0).to(maps.dtype)  # (n, P)
    mean = maps.sum(dim=1) / shown.sum(dim=1).clamp_min(1)[:, None, None]  # (n, h, w)
    least, most = mean.amin(dim=(1, 2), keepdim=True), mean.amax(dim=(1, 2), keepdim=True)
    normal = (mean - least) / torch.where(most > 0, most, 1)
    return F.interpolate(normal[:, None], size, mode="bilinear", align_corners=False)


def cached_attention(clip: ClipAttention, images: Tensor, label: Tensor, prompts: Sequence[Sequence[str]]) -> Tensor:
    """Where CLIP looks in uint8 `images` (n, 3, H, W), told by the prompts of their class, (n, 1, H, W) of uint8.

    Kept in the cache: the same images, weights and prompts are looked at once.
    """
    told = [*clip.identity, [list(part) for part in prompts], tuple(images.shape)]
    digest = hashlib.sha256(repr(told).encode())
    for column in (images, label):
        digest.update(column.cpu().contiguous().numpy().tobytes())
    path = cache_folder() / "attention" / f"{digest.hexdigest()[:32]}.npy"
    if path.is_file():
        return torch.from_numpy(np.load(path, allow_pickle=False))
    found = torch.empty(len(images), 1, *images.shape[2:], dtype=torch.uint8)
    height, width = images.shape[2:]
    for number, words in enumerate(prompts):
        towards = clip.embed(words)
        for rows in torch.split(torch.nonzero(label == number).flatten(), BATCH):
            maps = combine(clip.look(images[rows], towards), (height, width))
            found[rows] = (maps * 255).round().to(torch.uint8).cpu()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, found.numpy())
    return found


def _digest(weights: str) -> str:
    """What tells these weights from others: the checksum of a file, or a name."""
    if not Path(weights).is_file():
        return weights
    with Path(weights).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

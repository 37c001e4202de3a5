"""Networks by name: the convolutional network of the ColoredMNIST benchmark, a small sister for laptops, and those of
the rivals' own protocols.

- `mnist_cnn` is DomainBed's MNIST_CNN (Gulrajani and Lopez-Paz, "In Search of Lost Domain Generalization", ICLR 2021):
  four 3×3 convolutions, each followed by ReLU and then GroupNorm, global average pooling, a linear head.
- `irm_mlp` is the network of Arjovsky et al., "Invariant Risk Minimization", 2019: pixels, two hidden layers of 390
  units, Xavier-uniform weights, zero biases. `irm_mlp_256` and `irm_mlp_83` are its widths for plain training and for
  the grayscale oracle.
- `dair_cnn` is the LeNet in the code of Huang et al., "Robustness through Data Augmentation Loss Consistency", TMLR
  2022, for images of 28 pixels.
- `linear` is a linear head on the pixels.
- `small_vit` is ours, a vision transformer of the size of the small sister: a network with LayerNorm.

The rivals tell two classes apart by one logit o. Theirs here do, too, and give the logits (0, o): the cross-entropy of
those is the binary cross-entropy of o.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["MODELS", "ConvNet", "FirstConv2d", "SmallNet", "build_small", "rebuild_small"]


class FirstConv2d(nn.Conv2d):
    """A first convolution, whose few input channels tensor cores would mostly idle on."""

    def forward(self, images: Tensor) -> Tensor:
        """The convolution of `images` (B, C, H, W)."""
        return _convolved(self, images, self.bias) if _in_half(images) else super().forward(images)


class SmallNet(nn.Module):
    """A network of our own: a body whose output (B, D) enters a linear head."""

    name: str | None = None
    """What it is called in `MODELS`."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.head(self.body(images))
        return F.pad(logits, (1, 0)) if logits.shape[1] == 1 else logits


class ConvNet(SmallNet):
    """Convolution, ReLU, GroupNorm, as often as there are widths; then the mean over positions and a linear head."""

    def __init__(
        self, channels: int, classes: int, size: int | None = None, *, widths: Sequence[int], strides: Sequence[int]
    ) -> None:
        del size  # any will do
        layers: list[nn.Module] = []
        for (before, after), stride in zip(pairwise([channels, *widths]), strides, strict=True):
            kind = nn.Conv2d if layers else FirstConv2d
            layers += [kind(before, after, 3, stride=stride, padding=1), nn.ReLU(), nn.GroupNorm(8, after)]
        super().__init__(nn.Sequential(*layers), nn.Linear(widths[-1], classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.head(self._fused(images) if _in_half(images) else self.body(images).mean(dim=(2, 3)))
        return logits

    def _fused(self, images: Tensor) -> Tensor:
        """The features (B, D), but for rounding, in fewer passes over memory."""
        from ipg.models.fused import relu_group_norm

        layers: Any = list(self.body.children())
        for convolution, norm in zip(layers[0::3], layers[2::3], strict=True):
            images = relu_group_norm(
                _convolved(convolution, images, None), convolution.bias, norm.weight, norm.bias,
                groups=norm.num_groups, eps=norm.eps, pooled=norm is layers[-1],
            )  # fmt: skip
        return images


def _in_half(images: Tensor) -> bool:
    """Whether `images` meet a network that computes in half precision on a GPU."""
    return images.is_cuda and torch.is_autocast_enabled("cuda")


def _convolved(layer: nn.Conv2d, images: Tensor, bias: Tensor | None) -> Tensor:
    """What `layer` makes of `images`, with this `bias`.

    Where it has few input channels, it is a product with the patches that it sees: a fraction of the time.
    """
    entries = layer.weight[0].numel()
    if entries > PATCH:
        return F.conv2d(images, layer.weight, bias, layer.stride, layer.padding)
    (high, wide), (down, right) = layer.kernel_size, layer.stride
    above, beside = (int(side) for side in layer.padding)
    patches = F.pad(images, (beside, beside, above, above)).unfold(2, high, down).unfold(3, wide, right)
    count, _, *size = patches.shape[:4]
    fill = (0, -entries % 8)  # tensor cores want eight at a time
    rows = F.pad(patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, entries), fill)
    maps = F.linear(rows, F.pad(layer.weight.flatten(1), fill), bias)
    return maps.view(count, *size, -1).permute(0, 3, 1, 2)


PATCH = 32
"""Entries of a patch up to which a convolution is done by patches."""


class Perceptron(SmallNet):
    """Two hidden layers on the pixels."""

    def __init__(self, channels: int, classes: int, size: int | None = None, *, width: int) -> None:
        inputs = channels * (size or 14) ** 2
        first, second = nn.Linear(inputs, width), nn.Linear(width, width)
        body = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU())
        super().__init__(body, nn.Linear(width, _outputs(classes)))
        for layer in (first, second, self.head):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


class LeNet(SmallNet):
    """Three 4×4 convolutions, the first two with pooling, and a hidden layer; for images of 28 pixels."""

    def __init__(self, channels: int, classes: int, size: int | None = None) -> None:
        if size not in (None, 28):
            raise ValueError(f"dair_cnn takes images of 28x28, these have {size}x{size}: leave --size out")
        body = nn.Sequential(
            *(nn.Conv2d(channels, 6, 4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 96, 4), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(96, 64), nn.ReLU()),
        )
        super().__init__(body, nn.Linear(64, _outputs(classes)))


class Transformer(SmallNet):
    """Patches of 2×2 pixels with attention and LayerNorm, their mean, and a linear head.

    Where a patch lies it is told by sines and cosines, so that images of any size will do.
    """

    def __init__(
        self, channels: int, classes: int, size: int | None = None, *, width: int, depth: int, heads: int
    ) -> None:
        del size  # any will do
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        super().__init__(encoder, nn.Linear(width, classes))
        self.patches = nn.Conv2d(channels, width, 2, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        maps = self.patches(images)  # (B, D, h, w)
        tokens = (maps + _places(*maps.shape[1:]).to(maps)).flatten(2).transpose(1, 2)  # (B, hw, D)
        logits: Tensor = self.head(self.body(tokens).mean(dim=1))
        return logits


def _places(width: int, high: int, wide: int) -> Tensor:
    """Sines and cosines of both coordinates at `width` / 4 frequencies each, (D, h, w)."""
    rates = 100.0 ** -torch.linspace(0, 1, width // 4)  # (D / 4,)
    rows, columns = (torch.arange(side)[None] * rates[:, None] for side in (high, wide))
    waves = [rows.sin(), rows.cos(), columns.sin(), columns.cos()]
    down = [wave[:, :, None].expand(-1, -1, wide) for wave in waves[:2]]
    return torch.cat([*down, *(wave[:, None].expand(-1, high, -1) for wave in waves[2:])])


class Pixels(SmallNet):
    """A linear head on the pixels."""

    def __init__(self, channels: int, classes: int, size: int | None = None) -> None:
        super().__init__(nn.Flatten(), nn.Linear(channels * (size or 14) ** 2, classes))


def _outputs(classes: int) -> int:
    return 1 if classes == 2 else classes


MODELS: dict[str, Callable[[int, int, int | None], SmallNet]] = {
    "mnist_cnn": partial(ConvNet, widths=(64, 128, 128, 128), strides=(1, 2, 1, 1)),
    "small_cnn": partial(ConvNet, widths=(16, 32, 32, 32), strides=(1, 2, 1, 2)),
    "small_vit": partial(Transformer, width=64, depth=3, heads=4),
    "irm_mlp": partial(Perceptron, width=390),
    "irm_mlp_256": partial(Perceptron, width=256),
    "irm_mlp_83": partial(Perceptron, width=83),
    "dair_cnn": LeNet,
    "linear": Pixels,
}
"""The networks that can be asked for by name; each is made from channels, classes and the side of the images."""


def build_small(name: str, *, channels: int, classes: int, size: int | None = None) -> SmallNet:
    """A freshly initialised network of `MODELS`; its weights come from torch's default generator.

    Args:
        name: which.
        channels: of the images.
        classes: to tell apart.
        size: side of the images, for those that are made for one; 14 or 28 where not given, as their papers have it.
    """
    model = MODELS[name](channels, classes, size)
    model.name = name
    return model


def rebuild_small(name: str | None, tensors: Mapping[str, Tensor]) -> SmallNet | None:
    """The network whose weights have the shapes of `tensors`, freshly initialised; None where none of `MODELS` has.

    Without a name every network is tried.
    """
    weights = sorted(key for key in tensors if key.endswith("weight") and tensors[key].ndim > 1)
    if "head.weight" not in weights:
        return None
    first = tensors.get("patches.weight", tensors[weights[0]])  # of the layer that sees the images
    size = 1 if first.ndim == 2 else None  # flattened, they are as one pixel of many channels
    outputs = len(tensors["head.weight"])
    given = {key: value.shape for key, value in tensors.items()}
    for known in MODELS if name is None else (name,):
        model = build_small(known, channels=first.shape[1], classes=2 if outputs == 1 else outputs, size=size)
        if {key: value.shape for key, value in model.state_dict().items()} == given:
            return model
    return None

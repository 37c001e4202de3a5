"""Trained networks, ready for images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ipg.classifier import Classifier, fit_of, open_classifier, seen
from ipg.data.coloring import gray
from ipg.data.shape import shape_channels


class Constant(nn.Module):
    """The same logits for every image."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, images: Tensor) -> Tensor:
        return self.logits.expand(len(images), -1)


IMAGES = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)


def test_probabilities_are_the_softmax_of_logits() -> None:
    model = Classifier(Constant(0.0, 1.0986123), (3, 4, 4))
    torch.testing.assert_close(model.probabilities(IMAGES), torch.tensor([[0.25, 0.75]] * 2))


def test_a_single_logit_tells_two_classes_apart() -> None:
    model = Classifier(Constant(1.0986123), (3, 4, 4))
    torch.testing.assert_close(model.probabilities(IMAGES), torch.tensor([[0.25, 0.75]] * 2))


def test_channels_are_fewer_as_the_network_wants_them() -> None:
    images = torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2)
    assert seen(images, 3) is images
    assert torch.equal(seen(images, 2), images[:, :2])
    assert torch.equal(seen(images, 1), images[:, :1] + images[:, 1:2])
    with pytest.raises(ValueError, match="takes images of 3 channels; these have 2"):
        seen(images[:, :2], 3)


def test_a_run_sees_images_as_its_method_turns_them() -> None:
    images = torch.randint(256, (5, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)

    def made(channels: int, **config: str) -> Classifier:
        return Classifier(Constant(0.0, 1.0), (channels, 8, 8), config=config)

    shapes = shape_channels(images[:, :2])
    assert torch.equal(made(4, method="shape_only").seen(images), shapes)
    assert torch.equal(made(4, method="shape_only").seen(images[:, :2]), shapes)
    assert made(4, method="shape_only").seen(shapes) is shapes
    assert torch.equal(made(1, method="oracle").seen(images), gray(images[:, :2]))
    for other in (made(4), made(4, method="erm")):  # whose four channels are nobody knows what
        with pytest.raises(ValueError, match="takes images of 4 channels; these have 3"):
            other.seen(images)


@pytest.mark.parametrize(
    ("data", "fit"),
    [
        ("photos.csv", "crop"),
        ("celeba:Smiling/Male", "crop"),
        ("waterbirds100", "squeeze"),
        ("waterbirds100-reverse", "squeeze"),
        ("waterbirds95_reverse", "zoom"),
    ],
)
def test_how_images_become_square(data: str, fit: str) -> None:
    assert fit_of(data) == fit


def test_the_channels_of_any_network(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grey.py").write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(2))\n"
    )
    assert open_classifier("python:grey.py:make", size=8, device="cpu").shape == (1, 8, 8)
    with pytest.raises(ValueError, match="there is no device"):
        open_classifier("python:grey.py:make", device="abacus")

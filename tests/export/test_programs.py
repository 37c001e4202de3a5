"""Programs, and how far they may be from their network."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ipg.export.programs import ExportError, export_onnx, export_torch, largest_difference
from ipg.models import build_model

pytestmark = pytest.mark.usefixtures("one_thread")


class Double(nn.Module):
    """Twice the image's two pixels, so that logits are known."""

    def forward(self, images: Tensor) -> Tensor:
        return 2 * images.flatten(1)


IMAGES = torch.arange(10.0).view(5, 1, 1, 2) / 10


def test_the_largest_difference_over_all_sizes_of_batches() -> None:
    assert largest_difference(Double(), lambda part: 2 * part.flatten(1), IMAGES) == 0
    one_off = torch.zeros(5, 2)
    one_off[4, 1] = 5e-5
    found = largest_difference(Double(), lambda part: 2 * part.flatten(1) + one_off[: len(part)], IMAGES)
    assert found == pytest.approx(5e-5, rel=0.01)


def test_logits_above_one_widen_the_tolerance_in_proportion() -> None:
    large = 1000 * IMAGES
    assert largest_difference(Double(), lambda part: 2 * part.flatten(1) + 0.01, large[1:]) > 0.009
    with pytest.raises(ExportError, match=r"off by 0\.01"):
        largest_difference(Double(), lambda part: 2 * part.flatten(1) + 0.01, IMAGES)


def test_nan_and_other_shapes_are_refused() -> None:
    with pytest.raises(ExportError, match="off by nan"):
        largest_difference(Double(), lambda part: part.flatten(1) * float("nan"), IMAGES)
    with pytest.raises(ExportError, match="shape"):
        largest_difference(Double(), lambda part: part.flatten(1)[:, :1], IMAGES)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_networks_of_timm(name: str, tmp_path: Path, own_random_state: None) -> None:
    model = build_model(name, channels=3, classes=3, size=160).eval()
    images = torch.rand(4, 3, 160, 160)
    assert export_torch(tmp_path / "model.pt2", model, images, about="{}") < 1e-5
    program = torch.export.load(tmp_path / "model.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(program(images[:3]), model(images[:3]), rtol=0, atol=1e-5)  # normalised inside


def test_onnx_normalises_inside_too(tmp_path: Path, own_random_state: None) -> None:
    model = build_model("test_resnet", channels=3, classes=3).eval()
    assert export_onnx(tmp_path / "model.onnx", model, torch.rand(1, 3, 64, 64), about="{}") < 1e-4
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]  # weights and all


def test_a_network_that_cannot_be_followed(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1) * (2 if float(images.sum()) > 1 else 3)

    with pytest.raises(ExportError, match=r"torch\.export cannot follow this network"):
        export_torch(tmp_path / "model.pt2", Odd(), IMAGES, about="{}")


def test_a_disk_that_is_full_is_an_error_that_says_so(tmp_path: Path) -> None:
    """In a process of its own, as torch's writer of files ends the process where a file cannot grow."""
    code = (
        "import resource, sys, torch\nfrom pathlib import Path\nfrom torch import nn\n"
        "from ipg.export.programs import export_torch\n"
        "model = nn.Sequential(nn.Flatten(), nn.Linear(192, 100)).eval()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n    export_torch(Path(sys.argv[1]), model, torch.rand(2, 3, 8, 8), about='{}')\n"
        "except OSError as error:\n    sys.exit(error.errno)\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "model.pt2")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == errno.EFBIG, done.stderr

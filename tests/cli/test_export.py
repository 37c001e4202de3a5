"""`ipg export`, as its user meets it and as other programs load what it writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open

from ipg.classifier import open_run
from ipg.evaluation.statistics import wilson
from ipg.models import load_model


@pytest.fixture(scope="session")
def exported(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was exported of the run on photos; not to be changed."""
    from typer.testing import CliRunner

    from ipg.cli import app

    folder = tmp_path_factory.mktemp("out") / "exported"
    done = CliRunner().invoke(app, ["export", str(photos / "plain"), "--output", str(folder)])
    assert done.exit_code == 0, done.output
    assert "model.pt2: logits of 16 images differ by" in done.output
    assert "model.onnx: logits of 16 images differ by" in done.output
    return folder


@pytest.fixture(scope="session")
def expected(photos: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Five images, and the logits that the network of the run gives them."""
    images = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits: Any = open_run(photos / "plain", device="cpu").model(images)
    return images, logits


def test_the_folder_is_complete(exported: Path) -> None:
    names = sorted(entry.name for entry in exported.iterdir())
    assert names == ["README.md", "model.json", "model.onnx", "model.pt2", "weights.safetensors"]
    assert [entry.name for entry in exported.parent.iterdir()] == ["exported"]
    about = json.loads((exported / "model.json").read_text())
    assert about["classes"] == ["above", "below"]
    assert about["input"]["shape"] == ["batch", 3, 16, 16]


def test_torch_loads_it_and_takes_any_number_of_images(exported: Path, expected) -> None:
    images, logits = expected
    about = {"ipg.json": ""}
    model = torch.export.load(exported / "model.pt2", extra_files=about).module()
    for count in (1, 2, 5):
        torch.testing.assert_close(model(images[:count]), logits[:count], rtol=0, atol=1e-5)
    assert json.loads(about["ipg.json"])["classes"] == ["above", "below"]


def test_onnx_loads_it_and_takes_any_number_of_images(exported: Path, expected) -> None:
    images, logits = expected
    session = onnxruntime.InferenceSession(str(exported / "model.onnx"))
    for count in (1, 2, 5):
        (found,) = session.run(None, {"images": images[:count].numpy()})
        np.testing.assert_allclose(found, logits[:count].numpy(), rtol=0, atol=1e-5)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["ipg.json"])["classes"] == ["above", "below"]


def test_the_weights_name_their_network(exported: Path, expected) -> None:
    images, logits = expected
    with torch.no_grad():
        assert torch.equal(load_model(exported / "weights.safetensors", classes=2)(images), logits)
    with safe_open(exported / "weights.safetensors", framework="pt") as file:
        assert file.metadata() == {"architecture": "small_cnn"}


def test_the_card_says_what_it_is(exported: Path, photos: Path) -> None:
    card = (exported / "README.md").read_text(encoding="utf-8")
    result = json.loads((photos / "plain" / "result.json").read_text())
    assert card.startswith("# plain\n\nAn image classifier that tells above and below apart")
    for part in (
        "float32 images in [0, 1]",
        "do not normalise",
        "0 = above, 1 = below",
        "`photos.csv`, 16 pixels",
        "`erm`",
    ):
        assert part in card
    for name, group in result["metrics"]["groups"].items():
        low, high = wilson(round(group["accuracy"] * group["count"]), group["count"])
        line = f"| {name} | {100 * group['accuracy']:.1f} | {100 * low:.1f} to {100 * high:.1f} | {group['count']} |"
        assert line in card
    low, high = wilson(round(4 * result["metrics"]["pair_disagreement"]), 4)
    assert f"{100 * low:.1f} to {100 * high:.1f} | 4 |" in card
    assert result["commit"] in card
    assert f"torch {torch.__version__}" in card
    assert "fewer than 100 test images" in card
    assert str(photos) not in card  # nothing of where it was made


def test_one_format_checked_on_images_of_ones_own(ipg, photos: Path, tmp_path: Path) -> None:
    moved = tmp_path / "run"
    shutil.copytree(photos / "plain", moved)
    stored = json.loads((moved / "config.json").read_text())
    stored["config"]["data"] = "gone.csv"
    (moved / "config.json").write_text(json.dumps(stored))
    (moved / "done").write_text("")  # without digests, or this would be damage
    done = ipg("export", moved, "--format", "torch", "--output", "out", "--images", photos / "pairs")
    assert done.code == 0, done
    assert sorted(p.name for p in Path("out").iterdir()) == [
        "README.md",
        "model.json",
        "model.pt2",
        "weights.safetensors",
    ]
    assert "onnx" not in Path("out/README.md").read_text()


def test_checked_on_the_images_of_a_table(ipg, assert_refused, photos: Path) -> None:
    named = ("export", photos / "plain", "--format", "torch", "--path-column", "file")
    assert_refused(*named, says=("--path-column is for a table of --images",))
    shutil.copytree(photos / "images", "images")
    Path("few.csv").write_text("file\nimages/test0.png\nimages/test1.png\n")
    done = ipg(*named, "--output", "out", "--images", "few.csv")
    assert done.code == 0, done
    assert "logits of 2 images" in done.out


def test_without_its_data_it_asks_for_images(assert_refused, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipg.data.load import DATASETS

    monkeypatch.delitem(DATASETS, "bars")
    assert_refused("export", finished, "--format", "torch", says=("unknown data set 'bars'", "--images"))
    assert not Path("exported").exists()


def test_what_cannot_be_is_said(assert_refused, photos: Path, tmp_path: Path) -> None:
    run = photos / "plain"
    assert_refused("export", "nowhere", says=("nowhere is not the folder of a run",))
    assert_refused("export", run, "--format", "tflite", says=("no format 'tflite'", "torch, onnx, both"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert_refused("export", run, "--output", "full", says=("full exists and is not empty", "--output"))
    assert_refused("export", run, "--output", "full/mine.txt", says=("full/mine.txt exists",))
    assert [entry.name for entry in tmp_path.iterdir()] == ["full"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that takes no files")
def test_a_place_that_cannot_be_written_is_named_as_it_was_asked_for(assert_refused, photos: Path) -> None:
    line = ("export", photos / "plain", "--format", "torch", "--output", "/proc/mine")
    assert assert_refused(*line, says=("/proc/mine: ",)).startswith("ipg: /proc/mine: ")


def test_without_onnx_one_sentence_says_so(assert_refused, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipg.export import programs

    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    said = assert_refused("export", photos / "plain", says=("[export]", "--format torch"))
    assert "onnx and onnxscript and onnxruntime" in said


def test_a_program_that_computes_something_else_is_not_kept(
    assert_refused, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ipg.export import programs

    class Other(programs.Program):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) + 0.1

    monkeypatch.setattr(programs, "Program", Other)
    assert_refused("export", photos / "plain", "--format", "torch", says=("off by 0.1", "not kept"))
    assert list(tmp_path.iterdir()) == []


def test_damaged_weights_are_named(assert_refused, finished: Path) -> None:
    (finished / "model.safetensors").write_bytes(b"junk")
    assert_refused("export", finished, "--format", "torch", says=("model.safetensors is damaged",))

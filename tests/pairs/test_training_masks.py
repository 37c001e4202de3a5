"""Masks on their way from files into a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from ipg.config import RunConfig
from ipg.data.cache import list_cache
from ipg.data.errors import DataError, ProblemsError
from ipg.methods import method_class
from ipg.notebook import Run
from ipg.pairs.masks import Masks
from ipg.training.loop import train
from ipg.training.materials import gather


@pytest.fixture
def config(shapes: Any) -> RunConfig:
    return RunConfig(
        data=str(shapes.home / "labels.csv"),
        data_path=str(shapes.home / "images"),
        size=48,
        method="epg",
        model="small_cnn",
        masks=str(shapes.home / "masks"),
        device="cpu",
        epochs=1,
        batch=8,
        held_out_pairs=0,
        options={"annotated": 0.5},
    )


def test_all_masks_as_one_tensor(shapes: Any) -> None:
    rows = [3, 0, 11]
    masks = Masks(shapes.masks, shapes.listing, size=48)
    found = masks.tensor(rows)
    assert found.shape == (3, 1, 48, 48)
    assert found.dtype == torch.uint8
    for mask, row in zip(found, rows, strict=True):
        assert torch.equal(mask[0] / 255, masks(row))


def test_they_are_decoded_once(shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(list_cache())
    first = Masks(shapes.masks, shapes.listing, size=48).tensor(range(6))
    (entry,) = [entry for entry in list_cache() if str(entry.facts["data"]).startswith("masks of")]
    assert len(list_cache()) == before + 1
    assert entry.bytes == 6 * 48 * 48  # one channel alone
    monkeypatch.setattr("ipg.data.cache.decode", None)
    monkeypatch.setattr(Masks, "check", None)
    again = Masks(shapes.masks, shapes.listing, size=48).tensor(range(6))
    assert torch.equal(first, again)


def test_a_row_without_a_mask_has_an_empty_one(shapes: Any) -> None:
    (shapes.masks / shapes.name(2)).unlink()
    found = Masks(shapes.masks, shapes.listing, size=48).tensor(range(5))
    assert found.amax(dim=(1, 2, 3)).gt(0).tolist() == [True, True, False, True, True]
    assert torch.equal(found[3, 0] / 255, Masks(shapes.masks, shapes.listing, size=48)(3))


def test_masks_that_do_not_fit_are_all_named(shapes: Any) -> None:
    Image.new("1", (48, 48), 0).save(shapes.masks / shapes.name(2))
    Image.new("1", (30, 48), 1).save(shapes.masks / shapes.name(4))
    with pytest.raises(ProblemsError) as caught:
        Masks(shapes.masks, shapes.listing, size=48).tensor(range(6))
    black, small = caught.value.problems
    assert "is black" in black
    assert "has 30 x 48 pixels" in small


def test_masks_are_compared_again_with_images_that_have_changed(shapes: Any) -> None:
    masks = Masks(shapes.masks, shapes.listing, size=48)
    before = masks.tensor(range(6))
    image = shapes.home / "images" / shapes.name(4)
    kept = image.read_bytes()
    Image.new("RGB", (30, 48)).save(image)
    with pytest.raises(ProblemsError, match=r"has 48 x 48 pixels, its image 30 x 48; bring it to the size"):
        masks.tensor(range(6))
    assert torch.equal(masks.tensor(range(4)), before[:4])  # the others fit as they did
    image.write_bytes(kept)
    assert torch.equal(masks.tensor(range(6)), before)


def test_no_mask_for_any_image(shapes: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no mask for any of 6 images of labels; masks are called as the images"):
        Masks(tmp_path / "empty", shapes.listing, size=48).tensor(range(6))


@pytest.mark.parametrize("name", ["epg", "gals_mask"])
def test_a_run_reads_the_masks_of_its_training_images(shapes: Any, config: RunConfig, name: str) -> None:
    options = config.options if name == "epg" else {}
    config = config.with_changes(method=name, options=options, crop=0.7, flip=True)
    materials = gather(config)
    rows = shapes.rows("train")
    expected = Masks(shapes.masks, shapes.listing, size=48)
    assert materials.masks is not None
    for mask, row in zip(materials.masks, rows, strict=True):
        assert torch.equal(mask[0] / 255, expected(row))
    train_row = train(config, materials).rows[0]["train"]
    assert train_row["penalty"] > 0


def test_masks_may_be_named_beside_the_data(shapes: Any, config: RunConfig) -> None:
    (shapes.home / "images" / "masks").symlink_to(shapes.masks)
    beside = gather(config.with_changes(masks="masks"))
    assert torch.equal(beside.masks, gather(config).masks)  # type: ignore[arg-type]


def test_how_many_images_have_a_mask_is_kept(shapes: Any, config: RunConfig, tmp_path: Path) -> None:
    import json

    for row in shapes.rows("train")[:3]:
        (shapes.masks / shapes.name(row)).unlink()
    train(config, gather(config), folder=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["origin"]["masks"] == len(shapes.rows("train")) - 3
    assert "masks" in stored["data"]


def test_a_finished_run_is_read_back_without_its_masks(shapes: Any, config: RunConfig, tmp_path: Path) -> None:
    outcome = train(config, gather(config), folder=tmp_path / "run")
    shapes.masks.rename(tmp_path / "elsewhere")
    run = Run.load(tmp_path / "run", device="cpu")
    assert run.materials.masks is None
    assert run.evaluate()["average"] == outcome.result["metrics"]["average"]


def test_methods_without_masks_read_none(config: RunConfig) -> None:
    assert gather(config.with_changes(method="erm", options={}, masks="nowhere")).masks is None


def test_masks_of_other_data(shapes: Any, config: RunConfig) -> None:
    other = replace(shapes.table, names=tuple(f"x{n}" for n in range(len(shapes.table))))
    with pytest.raises(ValueError, match=r"--masks .*: masks go by the names of image files, and labels has none"):
        method_class("epg").regions(config, other)

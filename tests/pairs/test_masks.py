from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from ipg.data.errors import DataError, ProblemsError
from ipg.pairs.masks import Masks, agreed
from ipg.pairs.rows import Pair


def test_masks_by_the_names_of_their_images(shapes) -> None:
    masks = Masks(shapes.masks, shapes.listing)
    assert masks.size == 224
    masks = Masks(shapes.masks, shapes.listing, size=48)
    for row in (0, 7):
        expected = np.asarray(Image.open(shapes.masks / shapes.name(row)).convert("L")) > 0
        assert np.array_equal(masks(row).numpy() > 0.5, expected)
        assert masks(row).shape == (48, 48)
    assert Masks(shapes.masks, shapes.listing, size=20)(0).shape == (20, 20)
    masks.check(range(10))


def test_masks_in_a_zip_with_another_suffix(shapes, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "masks.zip", "w") as archive:
        for path in shapes.masks.rglob("*.png"):
            name = path.relative_to(shapes.masks).with_suffix(".webp").as_posix()
            with Image.open(path) as mask, archive.open(name, "w") as file:
                mask.convert("RGB").save(file, format="WEBP", lossless=True)
    zipped, plain = Masks(tmp_path / "masks.zip", shapes.listing, size=48), Masks(shapes.masks, shapes.listing, size=48)
    assert torch.equal(zipped(3) > 0.5, plain(3) > 0.5)


def test_all_masks_that_do_not_fit_are_named(shapes) -> None:
    (shapes.masks / shapes.name(0)).unlink()
    Image.new("1", (30, 48), 1).save(shapes.masks / shapes.name(1))
    Image.new("1", (48, 48), 0).save(shapes.masks / shapes.name(2))
    (shapes.masks / shapes.name(3)).write_bytes(b"no image")
    with pytest.raises(ProblemsError) as caught:
        Masks(shapes.masks, shapes.listing, size=48).check([0, 1, 2, 3, 4, 0])
    said = caught.value.problems
    assert len(said) == 4
    assert f"has no mask for {shapes.name(0)}: expected {shapes.masks / shapes.name(0)}, with any suffix" in said[0]
    assert "has 30 x 48 pixels, its image 48 x 48; bring it to the size of the image" in said[1]
    assert "is black: it shows no object" in said[2]
    assert "cannot be read" in said[3]


def test_a_mask_is_of_the_image_as_exif_turns_it(shapes) -> None:
    """Which lies on its side in the file: a mask of the pixels in the file would cut out something else."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (60, 40)).save(shapes.listing.source.place / shapes.name(0), exif=exif)
    upright = np.zeros((60, 40), dtype=np.uint8)
    upright[10:20] = 255  # above the middle
    Image.fromarray(upright).save(shapes.masks / shapes.name(0))
    masks = Masks(shapes.masks, shapes.listing, size=40)
    assert (masks(0) > 0.5).any(dim=1).nonzero().flatten().tolist() == list(range(10))
    Image.fromarray(upright.T).save(shapes.masks / shapes.name(0))
    with pytest.raises(DataError, match="has 60 x 40 pixels, its image 40 x 60 when turned as its EXIF says; turn the"):
        masks(0)
    Image.new("L", (9, 9), 255).save(shapes.masks / shapes.name(0))
    with pytest.raises(DataError, match="has 9 x 9 pixels, its image 40 x 60 when turned as its EXIF says; bring it"):
        masks(0)


def test_no_masks_at_all(shapes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there are no masks at .*none; give the folder or zip"):
        Masks(tmp_path / "none", shapes.listing)


def test_where_pairs_should_agree(shapes) -> None:
    masks = Masks(shapes.masks, shapes.listing, size=48)
    one, other = (masks(row) > 0.5 for row in (0, 1))
    pair = Pair(f"data:{shapes.name(0)}", "a.png", "disc", "train", made_of=(shapes.name(0), shapes.name(1)))
    kept, scene = agreed(masks, "object")(pair), agreed(masks, "scene")(pair)
    assert kept is not None
    assert scene is not None
    assert not (kept & ~one).any()
    assert 0.5 < int(kept.sum()) / int(one.sum()) < 1
    assert not (scene & (one | other)).any()
    assert agreed(masks, "object")(Pair("a.png", "b.png", "disc", "train")) is None
    with pytest.raises(ValueError, match="keep='bird' is unknown; there are object, scene"):
        agreed(masks, "bird")

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ipg.data.errors import DataError, ProblemsError
from ipg.pairs.background import paste, plan
from ipg.pairs.inpaint import grow
from ipg.pairs.manifest import load_pairs
from ipg.pairs.masks import Masks
from ipg.pairs.plan import Plan, write


def build(shapes, count: int = 8, **options) -> Plan:
    masks = Masks(shapes.masks, shapes.listing, size=shapes.table.images.shape[-1])
    return plan(shapes.table, count, masks=masks, **options)


def chosen(made: Plan) -> list[tuple[int, int]]:
    """Rows of images and donors."""
    assert made.table.names is not None
    rows = [[made.table.names.index(name) for name in pair.made_of] for pair in made.pairs]
    return [(row, donor) for row, donor in rows]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_donors_are_of_the_split_and_of_another_attribute(shapes, split: str) -> None:
    table = shapes.table
    made = build(shapes, 8, split=split)
    assert {pair.split for pair in made.pairs} == {split}
    for pair, (row, donor) in zip(made.pairs, chosen(made), strict=True):
        assert pair.first == f"data:{shapes.name(row)}"
        assert pair.label == table.classes[int(table.label[row])]
        assert {table.splits[int(table.split[number])] for number in (row, donor)} == {split}
        assert int(table.attribute[row]) != int(table.attribute[donor])
    assert len({row for row, _ in chosen(made)}) == 8


def test_groups_give_equally_and_donors_are_spread(shapes) -> None:
    table = shapes.table
    rows = [row for row, _ in chosen(build(shapes, 12))]
    assert table.group[rows].bincount(minlength=4).tolist() == [0, 6, 6, 0]  # cross on sea, disc on grass
    rows = [row for row, _ in chosen(build(shapes, 8, split="validation"))]
    assert table.group[rows].bincount(minlength=4).tolist() == [2, 2, 2, 2]
    donors = [donor for _, donor in chosen(build(shapes, 12, split="validation"))]
    assert len(set(donors)) == 12  # twelve images, each a donor once


def test_a_group_that_runs_out_leaves_its_donors_to_the_others(shapes) -> None:
    """Of the six validation images on grass five are of one class: still each of the six on the sea is a donor once."""
    table = shapes.table
    grass = (table.split == table.splits.index("validation")) & (table.attribute == 0)
    label = table.label.clone()
    label[grass] = 0
    label[grass.nonzero()[0]] = 1
    uneven = replace(shapes, table=replace(table, label=label))
    pairs = chosen(build(uneven, 12, split="validation"))
    donors = [donor for row, donor in pairs if bool(grass[row])]
    assert len(donors) == len(set(donors)) == 6
    assert pairs[:5] == chosen(build(uneven, 5, split="validation"))


def test_one_seed_one_choice_and_fewer_begin_more(shapes) -> None:
    assert chosen(build(shapes, 4)) == chosen(build(shapes, 12))[:4]
    assert chosen(build(shapes, 8, seed=1)) != chosen(build(shapes, 8, seed=2))
    one, same = build(shapes, 4).pair_set(), build(shapes, 4).pair_set()
    assert torch.equal(one.second, same.second)


def far(one: torch.Tensor, other: torch.Tensor, where: torch.Tensor) -> float:
    return float((one.float() - other.float()).abs()[:, where].mean())


def test_the_object_stays_and_the_background_is_the_donors(shapes) -> None:
    table, made = shapes.table, build(shapes)
    masks = Masks(shapes.masks, shapes.listing, size=48)
    pairs = made.pair_set()
    for number, (row, donor) in enumerate(chosen(made)):
        own, other = masks(row) > 0.5, masks(donor) > 0.5
        assert torch.equal(pairs.first[number], table.images[row])
        assert far(pairs.second[number], table.images[row], grow(own, -1)) < 1
        outside = ~grow(own | other, 4)
        assert far(pairs.second[number], table.images[donor], outside) < 1
        assert far(pairs.second[number], table.images[row], outside) > 20
        gone = grow(other, -1) & ~grow(own, 4)  # where the donor's object was, its scene goes on
        if gone.any():
            red = pairs.second[number][0].float()[gone].mean()
            assert float(red) < 120 < float(table.images[donor][0].float()[gone].mean())


def test_the_scene_stays_and_the_object_is_the_donors(shapes) -> None:
    table, made = shapes.table, build(shapes, keep="scene")
    masks = Masks(shapes.masks, shapes.listing, size=48)
    pairs = made.pair_set()
    for number, (row, donor) in enumerate(chosen(made)):
        own, other = masks(row) > 0.5, masks(donor) > 0.5
        assert torch.equal(pairs.first[number], table.images[row])
        assert far(pairs.second[number], table.images[row], ~grow(own | other, 4)) == 0
        assert far(pairs.second[number], table.images[donor], grow(other, -2)) < 1


@pytest.mark.parametrize("keep", ["object", "scene"])
def test_with_traces_in_both_the_same_hole_is_filled(shapes, keep: str) -> None:
    table, made = shapes.table, build(shapes, keep=keep, traces="both")
    masks = Masks(shapes.masks, shapes.listing, size=48)
    pairs = made.pair_set()
    assert [pair.first for pair in made.pairs] == [f"images/train-{n:05d}-first.png" for n in range(8)]
    for number, (row, donor) in enumerate(chosen(made)):
        own, other = masks(row) > 0.5, masks(donor) > 0.5
        assert far(pairs.first[number], table.images[row], grow(own, -1)) < 1
        assert far(pairs.first[number], table.images[row], ~grow(own | other, 4)) == 0
        hole = other & ~grow(own, 4)
        if keep == "object" and hole.any():  # filled in the first member as well, though nothing stood there
            assert far(pairs.first[number], table.images[row], hole) > 0
        if keep == "scene":  # but for the objects the two are one image
            assert far(pairs.first[number], pairs.second[number], ~grow(own | other, 4)) == 0


def test_masks_of_the_manifest_say_where_members_agree(shapes, tmp_path: Path) -> None:
    for keep in ("object", "scene"):
        made = build(shapes, 4, keep=keep)
        for number in range(4):
            files = made.make(number)
            kept = files[made.pairs[number].mask]
            first = shapes.table.images[chosen(made)[number][0]]
            assert kept.dtype == torch.bool
            assert kept.any()
            assert far(first, files[made.pairs[number].second], kept) < 1
    manifest = write(build(shapes, 4), tmp_path / "pairs", settings={})
    assert len(list((tmp_path / "pairs" / "masks").iterdir())) == 4
    assert torch.equal(load_pairs(manifest.path, shapes.table).second, build(shapes, 4).pair_set().second)


def test_paste_has_soft_edges_and_brings_no_rim_along() -> None:
    mask = torch.zeros(32, 32)
    mask[8:24, 8:24] = 1
    image = torch.where(mask > 0, torch.tensor(0.9), torch.tensor(0.0)).expand(3, 32, 32).clone()
    image[:, 8, 8:24] = 0.4  # an edge that is half background
    scene = torch.full((3, 32, 32), 0.5)
    pasted = paste(image, mask, scene, 0.8)
    torch.testing.assert_close(pasted[:, 12:20, 12:20], image[:, 12:20, 12:20])
    torch.testing.assert_close(pasted[:, :4], scene[:, :4])
    column = pasted[0, :, 16]
    assert float(column.min()) >= 0.5 - 1e-4  # neither the dark edge nor the old background
    assert 0.55 < float(column[8]) < 0.88


def test_what_cannot_be_made(shapes) -> None:
    with pytest.raises(ValueError, match="25 pairs were asked for, but only 24 can be made"):
        build(shapes, 25)
    with pytest.raises(ValueError, match="keep='bird' is unknown; there are object, scene"):
        build(shapes, 4, keep="bird")
    with pytest.raises(ValueError, match="traces='none' is unknown; there are second, both"):
        build(shapes, 4, traces="none")
    only = torch.tensor([row for row in range(len(shapes.table)) if int(shapes.table.attribute[row]) == 0])
    masks = Masks(shapes.masks, shapes.listing, size=48)
    with pytest.raises(ValueError, match="no train image that is not 'grass': there is nothing to swap"):
        plan(shapes.table.take(only), 4, masks=masks)


def test_masks_that_are_missing_are_named_before_anything_is_made(shapes) -> None:
    for path in sorted(shapes.masks.rglob("train/*.png"))[:5]:
        path.unlink()
    with pytest.raises(ProblemsError, match=r"has no mask for train/cross-01.png") as caught:
        build(shapes, 24)
    assert len(caught.value.problems) == 5


def without_attributes(shapes, *, of: int | None = None):
    """The same images with no attribute, all of one class if asked for."""
    table = shapes.table
    plain = replace(table, attribute=torch.zeros_like(table.attribute), attributes=("all",))
    if of is not None:
        plain = replace(plain, label=torch.full_like(table.label, of))
    return replace(shapes, table=plain)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_without_attributes_donors_are_of_another_class(shapes, split: str) -> None:
    plain = without_attributes(shapes)
    made = build(plain, 12, split=split)
    for row, donor in chosen(made):
        assert int(plain.table.label[row]) != int(plain.table.label[donor])
        assert plain.table.splits[int(plain.table.split[donor])] == split
    assert len({donor for _, donor in chosen(made)}) == 12
    assert made.settings == {"donors": "images of another class"}
    assert made.notes == ("labels has no attribute: what is pasted comes from images of another class",)
    assert chosen(build(plain, 4, split=split)) == chosen(made)[:4]


def test_without_attributes_and_classes_donors_are_any_other_image(shapes) -> None:
    plain = without_attributes(shapes, of=0)
    made = build(plain, 24)
    assert all(row != donor for row, donor in chosen(made))
    assert {row for row, _ in chosen(made)} == {donor for _, donor in chosen(made)} == set(shapes.rows("train"))
    assert made.settings == {"donors": "any other image"}


@pytest.mark.parametrize("of", [None, 0])
def test_without_attributes_the_ground_changes_where_it_can(make_shapes, of: int | None) -> None:
    """In validation images grass and sea come equally with both classes: half of all donors have the same ground."""
    shapes = make_shapes(validation=40)
    made = build(without_attributes(shapes, of=of), 20, split="validation")
    attribute = shapes.table.attribute
    assert all(int(attribute[row]) != int(attribute[donor]) for row, donor in chosen(made))
    assert len({donor for _, donor in chosen(made)}) == 20
    assert chosen(build(without_attributes(shapes, of=of), 7, split="validation")) == chosen(made)[:7]
    every = build(without_attributes(shapes, of=of), 40, split="validation")
    assert len({donor for _, donor in chosen(every)}) == 40


def test_without_attributes_objects_that_are_swapped_differ_in_colour(make_shapes) -> None:
    """Objects are red or grey, whatever they stand on."""
    shapes = make_shapes(validation=40)
    grey = torch.arange(len(shapes.table)) // 4 % 2
    for row in range(len(shapes.table)):
        if grey[row]:
            mask = Masks(shapes.masks, shapes.listing, size=48)(row) > 0.5
            shapes.table.images[row][:, mask] = 128
    made = build(without_attributes(shapes), 20, split="validation", keep="scene")
    assert all(int(grey[row]) != int(grey[donor]) for row, donor in chosen(made))


def test_a_donor_that_is_not_chosen_needs_no_mask(shapes) -> None:
    plain = without_attributes(shapes)
    used = {shapes.name(row) for pair in chosen(build(plain, 2)) for row in pair}
    unused = [row for row in shapes.rows("train") if shapes.name(row) not in used]
    (shapes.masks / shapes.name(unused[0])).unlink()
    assert len(build(plain, 2)) == 2


@pytest.mark.parametrize("keep", ["object", "scene"])
def test_photographs_in_place_of_masks_are_named(shapes, keep: str) -> None:
    row, donor = chosen(build(shapes, 1, keep=keep))[0]
    name = shapes.name(donor if keep == "object" else row)
    Image.fromarray(np.full((48, 48), 200, dtype=np.uint8)).save(shapes.masks / name)
    made = build(shapes, 1, keep=keep)
    with pytest.raises(
        DataError, match=rf"the mask {name} in .*masks is white all over.*is --masks the folder of masks"
    ):
        made.make(0)


def test_with_attributes_nothing_is_said_of_donors(shapes) -> None:
    assert (build(shapes).settings, build(shapes).notes) == ({}, ())


def test_one_image_has_no_other(make_shapes) -> None:
    shapes = make_shapes(validation=1)
    with pytest.raises(ValueError, match="has 1 validation image: there is nothing to swap"):
        build(without_attributes(shapes), 1, split="validation")

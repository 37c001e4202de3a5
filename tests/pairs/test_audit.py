import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ipg.data.errors import DataError
from ipg.pairs.audit import audit, summary
from ipg.pairs.background import plan as background
from ipg.pairs.by_eye import BY_EYE, accept
from ipg.pairs.checks import UNREADABLE
from ipg.pairs.findings import Limits
from ipg.pairs.masks import Masks, agreed
from ipg.pairs.plan import of_pair_set, write
from ipg.pairs.recolored import build as recolored
from ipg.pairs.rows import Manifest, Pair


@pytest.fixture
def good(shapes, tmp_path: Path) -> Manifest:
    """Eight pairs with which nothing is wrong."""
    masks = Masks(shapes.masks, shapes.listing, size=48)
    return write(background(shapes.table, 8, masks=masks), tmp_path / "pairs", settings={})


def reason(manifest: Manifest, shapes, row: int = 0, **options) -> str:
    judged = audit(manifest, shapes.table, **options)
    return judged.pairs[row].reason


def with_pair(manifest: Manifest, row: int = 0, **changes) -> Manifest:
    pairs = list(manifest.pairs)
    pairs[row] = replace(pairs[row], **changes)
    return manifest.with_pairs(pairs)


def save(manifest: Manifest, name: str, pixels: Tensor) -> str:
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(manifest.folder / name)
    return name


def redness(images: Tensor) -> Tensor:
    """Whether an image is of sea, by its colour."""
    return (images[:, 2].float().mean(dim=(1, 2)) > images[:, 1].float().mean(dim=(1, 2))).long()


def test_good_pairs_are_accepted_and_scored(good: Manifest, shapes) -> None:
    told: list[tuple[int, int]] = []
    judged = audit(good, shapes.table, progress=lambda *values: told.append(values))
    assert summary(judged) == {"ok": 8}
    assert told == [(8, 8)]
    for pair in judged.pairs:
        assert (pair.status, pair.reason) == ("ok", "")
        assert pair.score is not None
        assert pair.score > 0.95
        assert float(pair.extra["distance_inside"]) < 0.05 < 0.3 < float(pair.extra["distance_outside"])
    assert Manifest.read(good.folder).pairs == good.pairs  # nothing was written


def test_what_is_written_down_is_checked(good: Manifest, shapes) -> None:
    other = next(name for name in shapes.table.classes if name != good.pairs[0].label)
    assert reason(with_pair(good, label=other), shapes).startswith("labels differ: ")
    assert reason(with_pair(good, label="9"), shapes).startswith("unknown label: ")
    tested = shapes.name(shapes.rows("test")[0])
    assert f"another split: {tested} is of test" in reason(with_pair(good, made_of=(tested,)), shapes)
    assert "another split" in reason(with_pair(good, split="validation"), shapes)
    assert reason(with_pair(good, second="none.png"), shapes).startswith("image missing or unreadable: none.png")
    assert "is not inside" in reason(with_pair(good, second="../x.png"), shapes)
    assert reason(with_pair(good, mask="none.png"), shapes).startswith("image missing or unreadable")


def test_a_copy_of_a_test_image(good: Manifest, shapes) -> None:
    row = shapes.rows("test")[3]
    name = save(good, "mine.png", shapes.table.images[row])
    assert reason(with_pair(good, second=name, mask=""), shapes) == (
        f"another split: a member is a copy of {shapes.name(row)}, of test"
    )
    own = save(good, "own.png", shapes.table.images[shapes.rows("train")[0]])
    assert "another split" not in reason(with_pair(good, second=own, mask=""), shapes)


def test_the_shortcut_has_not_changed(good: Manifest, shapes) -> None:
    first = shapes.table.images[shapes.table.names.index(good.pairs[0].made_of[0])]
    same = save(good, "same.png", first)
    assert reason(with_pair(good, second=same, mask=""), shapes) == "shortcut not changed: the members look the same"
    assert "shortcut not changed: the members look the same" in reason(with_pair(good, second=same), shapes)
    both = [f"data:{shapes.name(row)}" for row in shapes.rows("train", label=0)[:2]]
    pair = with_pair(good, first=both[0], second=both[1], label=shapes.table.classes[0], made_of=(), mask="")
    assert "shortcut not changed: both are sea" in reason(pair, shapes)
    assert reason(good, shapes, limits=Limits(changed=0.99)).startswith("shortcut not changed: distance 0.")


def test_a_ground_of_the_same_colour_has_not_changed(good: Manifest, shapes) -> None:
    """Noise on a plain ground is enough for SSIM to see a difference; a mark in one place is one."""
    mask = np.asarray(Image.open(good.folder / good.pairs[0].mask).convert("L")) > 0
    generator = np.random.default_rng(0)

    def ground(*color: int) -> str:
        pixels = np.array(color) + generator.normal(0, 4, (48, 48, 1))
        pixels[mask] = (200, 60, 60)
        return save(good, f"{color}.png", torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)).permute(2, 0, 1))

    def said(second: str) -> str:
        return reason(with_pair(good, first=ground(150, 60, 60), second=second, made_of=()), shapes)

    assert said(ground(60, 60, 150)) == ""
    other = ground(140, 80, 70)
    judged = audit(with_pair(good, first=ground(150, 60, 60), second=other, made_of=()), shapes.table).pairs[0]
    assert 0.1 < float(judged.extra["distance_outside"]) < 0.45
    assert re.fullmatch(r"shortcut not changed: colours differ by 1\d of 255 at most where they should", judged.reason)
    marked = np.asarray(Image.open(good.folder / other)).copy()
    marked[:6, :6] = 255
    assert said(save(good, "marked.png", torch.from_numpy(marked).permute(2, 0, 1))) == ""


def test_too_much_else_has_changed(good: Manifest, shapes) -> None:
    second = np.asarray(Image.open(good.folder / good.pairs[0].second)).copy()
    mask = np.asarray(Image.open(good.folder / good.pairs[0].mask).convert("L")) > 0
    second[mask] = np.random.default_rng(0).integers(0, 256, (int(mask.sum()), 3))
    Image.fromarray(second).save(good.folder / "noise.png")
    judged = audit(with_pair(good, second="noise.png"), shapes.table)
    assert judged.pairs[0].reason.startswith("too much else changed: distance")
    assert judged.pairs[0].score is not None
    assert judged.pairs[0].score < 0.5
    assert summary(judged) == {"ok": 7, "too much else changed": 1}


def test_masks_of_the_data_serve_where_a_pair_has_none(good: Manifest, shapes) -> None:
    bare = good.with_pairs([replace(pair, mask="") for pair in good.pairs])
    assert "distance" in audit(bare, shapes.table).pairs[0].extra
    masks = Masks(shapes.masks, shapes.listing, size=48)
    judged = audit(bare, shapes.table, mask_of=agreed(masks, "object"))
    assert summary(judged) == {"ok": 8}
    assert "distance_inside" in judged.pairs[0].extra
    turned = audit(bare, shapes.table, mask_of=agreed(masks, "scene"))
    assert summary(turned) == {"too much else changed": 8}
    again = audit(judged, shapes.table).pairs[0].extra
    assert set(again) == {"distance"}  # distances of an earlier audit do not stay


def test_opinions(good: Manifest, shapes) -> None:
    """Whoever sees the sea for the label says it changed; whoever sees nothing says the shortcut did not."""
    assert reason(good, shapes, label_of=redness) == "label changed: its members are taken for two classes"
    assert reason(good, shapes, attribute_of=redness) == ""
    nothing = torch.zeros
    assert reason(good, shapes, label_of=lambda images: nothing(len(images))) == ""
    says = reason(good, shapes, attribute_of=lambda images: nothing(len(images)))
    assert says == "shortcut not changed: its members are taken for the same kind"
    half = lambda images: torch.stack([redness(images), torch.zeros(len(images)).long()], dim=1)  # noqa: E731
    assert reason(good, shapes, others_of=half) == "too much else changed: 50% of the other attributes differ"
    assert reason(good, shapes, others_of=half, limits=Limits(others=0.5)) == ""


def test_opinions_from_a_file_may_be_incomplete(good: Manifest, shapes) -> None:
    pair = good.pairs[0]
    known = {pair.first: torch.tensor(0), pair.second: torch.tensor(1), good.pairs[1].first: torch.tensor(0)}
    judged = audit(good, shapes.table, label_of=known)
    assert summary(judged) == {"ok": 7, "label changed": 1}


def test_distances_in_features(good: Manifest, shapes) -> None:
    judged = audit(good, shapes.table, features_of=lambda images: images.float().mean(dim=(2, 3)))
    inside, outside = (
        [float(pair.extra[name]) for pair in judged.pairs] for name in ("features_inside", "features_outside")
    )
    assert max(inside) < 0.2
    assert min(outside) > 2 * max(inside)
    bare = good.with_pairs([replace(pair, mask="") for pair in good.pairs])
    generator = torch.Generator().manual_seed(0)
    judged = audit(bare, shapes.table, features_of=lambda images: torch.randn(len(images), 50, generator=generator))
    assert {float(pair.extra["features"]) > 0.5 for pair in judged.pairs} == {True}
    assert set(summary(judged)) <= {"ok", "too much else changed"}
    known = {name: torch.zeros(4) for pair in good.pairs for name in (pair.first, pair.second)}
    known[good.pairs[2].second] = torch.ones(4)
    known |= {pair.first: torch.full((4,), 0.1 * row) for row, pair in enumerate(good.pairs)}
    known |= {pair.second: known[pair.first] for row, pair in enumerate(good.pairs) if row != 2}
    judged = audit(bare, shapes.table, features_of=known)
    assert judged.pairs[2].reason.startswith("too much else changed: its members are ")
    assert summary(judged)["ok"] == 7


def test_pairs_that_come_twice(good: Manifest, shapes) -> None:
    judged = audit(good.with_pairs([*good.pairs, good.pairs[3]]), shapes.table)
    assert judged.pairs[8].reason == "pair comes twice: it looks like pair 4"
    turned = replace(good.pairs[3], first=good.pairs[3].second, second=good.pairs[3].first)
    assert audit(good.with_pairs([*good.pairs, turned]), shapes.table).pairs[8].reason.startswith("pair comes twice")


def test_pairs_that_were_saved_anew(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1), ("c", 2)):
        noise = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        picture = Image.fromarray(noise).resize((64, 64), Image.Resampling.BILINEAR)
        picture.save(tmp_path / f"{name}.png")
        picture.save(tmp_path / f"{name}.jpg", quality=90)
    pairs = [("a.png", "b.png"), ("a.png", "c.png"), ("b.jpg", "a.jpg"), ("b.png", "c.png"), ("a.jpg", "c.png")]
    manifest = Manifest(tmp_path / "m.csv", tuple(Pair(first, second, "x", "train") for first, second in pairs))
    reasons = [pair.reason for pair in audit(manifest, size=64).pairs]
    twice = "pair comes twice: it looks like pair"
    assert reasons == ["", "", f"{twice} 1", "", f"{twice} 2"]


def test_of_candidates_the_best_is_kept(good: Manifest, shapes) -> None:
    pair = replace(good.pairs[0], builder="edited")
    second = np.asarray(Image.open(good.folder / pair.second)).astype(float)
    names = []
    for number, much in enumerate((25, 5, 60)):
        noisy = second + np.random.default_rng(number).normal(0, much, second.shape)
        names.append(f"candidate-{number}.png")
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(good.folder / names[-1])
    candidates = [replace(pair, second=name) for name in names]
    judged = audit(good.with_pairs(candidates), shapes.table, limits=Limits(kept=2))
    assert [one.status for one in judged.pairs] == ["rejected", "ok", "rejected"]
    assert judged.pairs[0].reason == judged.pairs[2].reason == "a better candidate is kept"


def test_what_a_person_rejected_stays_rejected(good: Manifest, shapes) -> None:
    by_hand = with_pair(good, status="rejected", reason="two heads")
    judged = audit(by_hand, shapes.table)
    assert (judged.pairs[0].status, judged.pairs[0].reason) == ("rejected", "two heads")
    before = with_pair(good, status="rejected", reason="label changed: under another model")
    assert summary(audit(before, shapes.table)) == {"ok": 8}


def test_what_a_person_accepted_stays_accepted_if_it_can_be_used(good: Manifest, shapes) -> None:
    """The first comes twice, which a person may overrule; the second shows an image that is not there."""
    twice = good.with_pairs([*good.pairs, good.pairs[0], replace(good.pairs[1], second="gone.png")])
    last = len(good)
    plain = audit(twice, shapes.table).pairs
    assert [pair.status for pair in plain[last:]] == ["rejected", "rejected"]
    judged = audit(accept(twice, [last + 1, last + 2]), shapes.table).pairs
    assert (judged[last].status, judged[last].reason) == ("ok", BY_EYE)
    assert judged[last].score == plain[last].score
    assert judged[last + 1].status == "rejected"
    assert judged[last + 1].reason.startswith(UNREADABLE)
    again = audit(good.with_pairs(judged), shapes.table).pairs
    assert [(pair.status, pair.reason) for pair in again] == [(pair.status, pair.reason) for pair in judged]


def test_recoloured_pairs_are_no_copies_of_themselves(fashion, tmp_path: Path) -> None:
    manifest = write(of_pair_set(fashion, recolored(fashion, 40)), tmp_path, settings={})
    assert summary(audit(manifest, fashion)) == {"ok": 40}


def test_without_a_data_set(good: Manifest) -> None:
    files = Manifest(good.path, (Pair(good.pairs[0].second, good.pairs[1].second, "x", "train"),))
    assert summary(audit(files, size=48)) == {"ok": 1}
    assert "say which with --data" in audit(good).pairs[0].reason


def test_numbers_that_are_of_no_member(good: Manifest, shapes) -> None:
    with pytest.raises(DataError, match=r"label_of knows no member of .*manifest\.csv: it has 'x', the pairs 'data:"):
        audit(good, shapes.table, label_of={"x": torch.tensor(0)})

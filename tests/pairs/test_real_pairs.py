"""Pairs of the published images, which are too large to carry: $IPG_DATA, or shared/data beside the project."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ipg.data.columns import read_columns
from ipg.data.load import list_files
from ipg.methods.epg import boxes
from ipg.pairs import background, counterparts, matched
from ipg.pairs.audit import audit, summary
from ipg.pairs.features import read_attributes
from ipg.pairs.manifest import load_pairs
from ipg.pairs.masks import Masks, agreed
from ipg.pairs.plan import write

DATA = os.environ.get("IPG_DATA")
"""As it was before the tests got places of their own."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Images are decoded once for all tests here."""
    folder = tmp_path_factory.mktemp("decoded")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def home(repo_root: Path, request: pytest.FixtureRequest, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(DATA) if DATA else repo_root.parent / "shared" / "data"
    if not (folder / request.param).is_dir():
        pytest.skip(f"needs {request.param} (set IPG_DATA)")
    monkeypatch.setenv("IPG_CACHE", str(cache))
    return folder / request.param


@pytest.mark.parametrize("home", ["waterbirds100"], indirect=True)
def test_the_pairs_that_exist(home: Path, tmp_path: Path) -> None:
    counts = {}
    for name, table_name in (("waterbirds100", "pairs-standard.csv"), ("waterbirds100_reverse", "pairs-reverse.csv")):
        listing = list_files(name, path=home)
        assert listing is not None
        table = listing.table(64)
        plan = counterparts.plan(table, listing, home / table_name)
        manifest = write(plan, tmp_path / name, settings={})
        found = load_pairs(manifest.path, table)
        counts[name] = found.label.bincount().tolist()
        if name == "waterbirds100":
            region = agreed(Masks(home / "masks.zip", listing, size=64), "object")
            assert summary(audit(manifest, table, mask_of=region))["ok"] >= 680
    assert counts["waterbirds100"] == [536, 157]
    assert sum(counts["waterbirds100_reverse"]) == 122


@pytest.mark.parametrize("home", ["waterbirds100"], indirect=True)
@pytest.mark.parametrize("reverse", [False, True])
def test_as_many_background_pairs_as_the_paper_has(home: Path, reverse: bool) -> None:
    listing = list_files("waterbirds100_reverse" if reverse else "waterbirds100", path=home)
    assert listing is not None
    table = listing.table(64)
    masks = Masks(home / "masks.zip", listing, size=64)
    keep = "scene" if reverse else "object"
    small, large = (background.plan(table, count, masks=masks, keep=keep) for count in (388, 1208))
    assert (len(small), len(large)) == (388, 1208)
    assert large.pairs[:388] == small.pairs
    held_out = background.plan(table, 200, masks=masks, keep=keep, split="validation")
    used = {name for pair in (*large.pairs, *held_out.pairs) for name in pair.originals}
    assert table.names is not None
    splits = {table.splits[int(table.split[row])] for row, name in enumerate(table.names) if name in used}
    assert splits == {"train", "validation"}
    pairs = background.plan(table, 8, masks=masks, keep=keep).pair_set()
    assert pairs.label.bincount().tolist() == [4, 4]


@pytest.mark.parametrize("home", ["waterbirds100"], indirect=True)
def test_boxes_around_masks_are_those_that_people_drew(home: Path) -> None:
    listing = list_files("waterbirds100", path=home)
    assert listing is not None
    rows = (listing.split == 0).nonzero().flatten().tolist()[::40]
    masks = Masks(home / "masks.zip", listing, size=112).tensor(rows)
    drawn = read_columns(home / "boxes.csv")
    places = {name: row for row, name in enumerate(drawn["img_filename"])}
    agreement = []
    for mask, row in zip(boxes(masks / 255), rows, strict=True):
        x, y, width, height = (
            112 * float(drawn[side][places[listing.files[row]]]) for side in ("x", "y", "width", "height")
        )
        expected = torch.zeros(112, 112)
        expected[round(y) : round(y + height), round(x) : round(x + width)] = 1
        both, either = torch.minimum(mask[0], expected).sum(), torch.maximum(mask[0], expected).sum()
        agreement.append(float(both / either))
    assert len(agreement) == 120
    assert torch.tensor(agreement).median() > 0.9


@pytest.mark.parametrize("home", ["celeba-subset"], indirect=True)
def test_matched_faces(home: Path) -> None:
    listing = list_files("celeba_subset", path=home)
    assert listing is not None
    table = listing.table(8)
    others, names = read_attributes(home / "attributes.csv.gz", table)
    assert len(names) == 38
    assert not {"Blond_Hair", "Male", "partition", "identity"} & set(names)
    pairs = matched.matched(table, others, 1208)
    assert pairs.label.bincount().tolist() == [922, 286]  # all blond men of the training split
    agree = (others[pairs.source[:, 0]] == others[pairs.source[:, 1]]).double().mean()
    assert float(agree) > 0.9
    assert len(torch.unique(pairs.source)) == 2 * 1208

"""The published images, which are too large to carry: $IPG_DATA, or shared/data beside the project."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
import torch

from ipg.data.cache import clear_cache
from ipg.data.check import check_files
from ipg.data.load import list_files, load
from ipg.data.prepare_waterbirds import WATERBIRDS
from ipg.data.table import ImageTable

DATA = os.environ.get("IPG_DATA")
"""As it was before the tests got places of their own."""
pytestmark = pytest.mark.slow


@pytest.fixture
def home(repo_root: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = Path(DATA) if DATA else repo_root.parent / "shared" / "data"
    if not (folder / request.param).is_dir():
        pytest.skip(f"needs {request.param} (set IPG_DATA)")
    monkeypatch.setenv("IPG_DATA", str(folder))
    yield folder / request.param
    clear_cache()  # gigabytes


def counts(table: ImageTable) -> list[list[int]]:
    return [torch.bincount(table.part(split).group, minlength=4).tolist() for split in table.splits]


@pytest.mark.parametrize("home", ["waterbirds100"], indirect=True)
def test_waterbirds100(home: Path) -> None:
    table, reverse = load("waterbirds100"), load("waterbirds100_reverse")
    assert counts(table) == [[3694, 0, 0, 1101], [461, 460, 139, 139], [2255, 2255, 642, 642]]
    assert counts(reverse) == [[3694, 0, 0, 1101], [461, 139, 460, 139], [2255, 642, 2255, 642]]
    assert table.images.shape == (11_788, 3, 224, 224)
    assert len(set(table.content.tolist())) == 200
    assert table.names is not None
    species = [PurePosixPath(name).parent.name.partition(".")[2].lower() for name in table.names]
    assert table.label.tolist() == [int(any(bird in name for bird in WATERBIRDS)) for name in species]


@pytest.mark.parametrize("home", ["celeba-subset"], indirect=True)
def test_celeba_subset(home: Path) -> None:
    table = load("celeba_subset")
    assert counts(table) == [[12665, 13060, 3989, 286], [1836, 2038, 617, 44], [2195, 1892, 509, 44]]
    assert table.images.shape == (39_175, 3, 128, 128)
    smiling = load("celeba_subset:Smiling/Male")
    assert torch.equal(smiling.images[:100], table.images[:100])
    assert not torch.equal(smiling.label, table.label)


@pytest.mark.parametrize("home", ["celeba-subset"], indirect=True)
def test_copies_in_celeba(home: Path) -> None:
    listing = list_files("celeba_subset")
    assert listing is not None
    report = check_files(listing)
    assert not report.broken
    found = {finding.name: len(finding.items) for finding in report.findings}
    assert found["images in two splits"] == 3
    assert found["images alike in two splits"] == 5

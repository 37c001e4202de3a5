from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ipg.data.errors import DataError, ProblemsError
from ipg.data.listing import Listing, RowsError
from ipg.data.waterbirds import RELEASES, read

HEADER = ("img_id", "img_filename", "y", "split", "place", "place_filename")
Rows = list[list[object]]


def rows(*, misplaced: int = 0, suffix: str = ".jpg") -> Rows:
    """40 training birds of which some stand where they do not belong, 8 of validation and 8 of test, interleaved."""
    made: Rows = []
    for number in range(56):
        split = 0 if number < 40 else 1 + number % 2
        y = number // 2 % 2
        place = (y if number >= misplaced else 1 - y) if split == 0 else number // 4 % 2
        folder = ("044.Frigatebird", "014.Indigo_Bunting")[1 - y]
        made.append([number + 1, f"{folder}/{number:04d}{suffix}", y, split, place, "/o/ocean/1.jpg"])
    return sorted(made, key=lambda row: int(str(row[0])) * 31 % 56)


@pytest.fixture
def release(tmp_path: Path, picture, put, write_csv) -> Callable[..., Path]:
    """Writes a release as a folder."""

    def write(
        name: str = "birds", *, kind: str = "JPEG", suffix: str = ".jpg", metadata: Rows | None = None, **options
    ) -> Path:
        table = rows(suffix=suffix, **options) if metadata is None else metadata
        for row in table:
            put(tmp_path / name / str(row[1]), picture(int(str(row[0])), kind=kind))
        write_csv(tmp_path / name / "metadata.csv", HEADER, table)
        return tmp_path / name

    return write


def counts(listing: Listing) -> dict[tuple[int, int, int], int]:
    keys = zip(listing.split.tolist(), listing.label.tolist(), listing.attribute.tolist(), strict=True)
    found: dict[tuple[int, int, int], int] = {}
    for key in keys:
        found[key] = found.get(key, 0) + 1
    return found


def test_standard_and_reverse_task(release) -> None:
    folder = release()
    listing, reverse = read("waterbirds100", folder), read("waterbirds100", folder, reverse=True)
    assert (listing.name, reverse.name) == ("waterbirds100", "waterbirds100_reverse")
    assert (listing.classes, listing.attributes) == (("landbird", "waterbird"), ("on land", "on water"))
    assert (reverse.classes, reverse.attributes) == (listing.attributes, listing.classes)
    assert torch.equal(listing.label, reverse.attribute)
    assert torch.equal(listing.attribute, reverse.label)
    assert counts(listing)[0, 0, 0] == counts(listing)[0, 1, 1] == 20
    assert set(listing.content.tolist()) == {0, 1}
    assert torch.equal(reverse.content, reverse.label)


def test_a_row_keeps_its_file_and_splits_follow_one_another(release) -> None:
    listing = read("waterbirds100", release())
    truth = {str(row[1]): row for row in rows()}
    for file, y, split, place in zip(
        listing.files, listing.label.tolist(), listing.split.tolist(), listing.attribute.tolist(), strict=True
    ):
        assert [y, split, place] == truth[file][2:5]
    assert listing.split.tolist() == sorted(listing.split.tolist())
    table = listing.table(16)
    assert table.names == listing.files
    part = table.part("validation")
    assert part.images.data_ptr() == table.images[int(table.indices("validation")[0])].data_ptr()  # not a copy


@pytest.mark.parametrize("inner", ["metadata.csv", "waterbird_complete95/metadata.csv"])
def test_all_in_one_zip(release, tmp_path: Path, zipped, inner: str) -> None:
    folder = release(misplaced=2)
    top = inner.removesuffix("metadata.csv")
    files = {top + str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    zip_, plain = read("waterbirds95", zipped(tmp_path / "birds.zip", files)), read("waterbirds95", folder)
    assert zip_.files == plain.files
    assert torch.equal(zip_.table(16).images, plain.table(16).images)


def test_several_zips_beside_the_metadata(release, tmp_path: Path, zipped, write_csv) -> None:
    folder = release(kind="WEBP", suffix=".webp")
    names = [str(row[1]) for row in rows(suffix=".webp")]
    for number in (0, 1):
        files = {name: (folder / name).read_bytes() for name in names[number::2]}
        zipped(tmp_path / "zips" / f"images-{number}.zip", files)
    zipped(tmp_path / "zips" / "counterparts.zip", dict.fromkeys(names, b"another image"))
    write_csv(tmp_path / "zips" / "metadata.csv", HEADER, rows(suffix=".webp"))
    assert torch.equal(
        read("waterbirds", tmp_path / "zips").table(16).images, read("waterbirds", folder).table(16).images
    )


def test_files_in_another_format_than_the_metadata_says(release, write_csv) -> None:
    folder = release(kind="WEBP", suffix=".webp")
    write_csv(folder / "metadata.csv", HEADER, rows(suffix=".jpg"))
    assert all(file.endswith(".webp") for file in read("waterbirds100", folder).files)


def test_by_name_and_in_the_official_folder(release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPG_DATA", str(tmp_path))
    release("waterbirds95/waterbird_complete95_forest2water2", misplaced=2)
    assert len(read("waterbirds95").files) == 56
    with pytest.raises(DataError, match=r"there is no waterbirds100 at .*IPG_DATA.*ipg data prepare waterbirds"):
        read("waterbirds100")


def test_the_published_transforms(release) -> None:
    assert (read("waterbirds100", release()).fit, read("waterbirds100", release()).size) == ("squeeze", 224)
    assert read("waterbirds95", release("95", misplaced=2)).fit == "zoom"


def test_a_release_is_what_it_is_called(release) -> None:
    with pytest.raises(DataError, match=r"is not waterbirds100: 95\.0% .* expected 100%; load it as waterbirds95"):
        read("waterbirds100", release("a", misplaced=2))
    with pytest.raises(DataError, match=r"is not waterbirds95: 100\.0% .*; load it as waterbirds100"):
        read("waterbirds95", release("b"))
    with pytest.raises(DataError, match=r"is not waterbirds95: 75\.0% .*; load it as waterbirds$"):
        read("waterbirds95", release("c", misplaced=10))
    for name, misplaced in (("a", 2), ("b", 0), ("c", 10)):
        assert len(read("waterbirds", release(name, misplaced=misplaced)).files) == 56
    assert set(RELEASES) == {"waterbirds100", "waterbirds95", "waterbirds"}


def test_all_that_is_wrong_is_said_at_once(release) -> None:
    table = rows()
    folder = release(metadata=table)
    files = [str(row[1]) for row in table]
    table[0][2], table[1][3], table[2][4] = 2, "train", ""
    table[3][1], table[4][1], table[5][1] = "../secret.jpg", "044.Frigatebird/none.jpg", files[6]
    (folder / "metadata.csv").write_text("\n".join(",".join(map(str, row)) for row in [HEADER, *table]))
    with pytest.raises(ProblemsError) as error:
        read("waterbirds100", folder)
    said = "\n".join(error.value.problems)
    for part in (
        "line 2: y is '2', expected 0 or 1",
        "line 3: split is 'train', expected 0 or 1 or 2",
        "line 4: place is ''",
        "line 5: '../secret.jpg' is not inside",
        "line 6: there is no image '044.Frigatebird/none.jpg'",
        "line 8: ",
    ):
        assert part in said
    assert len(error.value.problems) == 6
    assert isinstance(error.value, RowsError)
    assert error.value.rest is not None
    rest = error.value.rest()
    assert sorted(rest.files) == sorted(files[6:])  # the sixth row names the seventh's
    truth = {str(row[1]): row for row in rows()}
    for file, y, split, place in zip(
        rest.files, rest.label.tolist(), rest.split.tolist(), rest.attribute.tolist(), strict=True
    ):
        assert file == files[6] or [y, split, place] == truth[file][2:5]


def test_another_release_with_a_file_missing_is_told_with_the_file(release) -> None:
    folder = release(misplaced=2)
    (folder / str(rows()[7][1])).unlink()
    with pytest.raises(ProblemsError) as error:
        read("waterbirds100", folder)
    file, other = error.value.problems
    assert "there is no image" in file
    assert "is not waterbirds100: 95.0% of its training birds" in other


def test_what_is_no_release(tmp_path: Path, zipped, write_csv) -> None:
    with pytest.raises(DataError, match=r"has no metadata\.csv: it is no release"):
        read("waterbirds100", tmp_path)
    with pytest.raises(DataError, match=r"has no metadata\.csv in it"):
        read("waterbirds100", zipped(tmp_path / "x.zip", {"a.jpg": b""}))
    write_csv(tmp_path / "metadata.csv", ("img_filename", "y"), [("a.jpg", 0)])
    with pytest.raises(DataError, match="no column split, place"):
        read("waterbirds100", tmp_path)


def test_a_release_without_training_images(release) -> None:
    table = [[*row[:3], 2, *row[4:]] for row in rows()]
    with pytest.raises(DataError, match="has no training image"):
        read("waterbirds", release(metadata=table))

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ipg.data.errors import DataError, ProblemsError
from ipg.data.folder import is_table, read
from ipg.data.listing import Listing
from ipg.data.reading import Reading

HEADER = ("path", "label")


@pytest.fixture
def photos(tmp_path: Path, picture, put) -> Path:
    """20 cats and 20 dogs, a folder each."""
    for number in range(40):
        put(tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number:02d}.jpg", picture(number, kind="JPEG"))
    put(tmp_path / "photos" / "cat" / "notes.txt", b"no image")
    return tmp_path / "photos"


@pytest.fixture
def table(photos: Path, write_csv) -> Callable[..., Path]:
    """Writes a table over the photographs; columns are functions of the number."""

    def write(name: str = "labels.csv", rows: int = 40, **columns: Callable[[int], object]) -> Path:
        given = {
            "path": lambda n: f"{('cat', 'dog')[n % 2]}/{n:02d}.jpg",
            "label": lambda n: ("cat", "dog")[n % 2],
            **columns,
        }
        return write_csv(photos / name, list(given), [[make(n) for make in given.values()] for n in range(rows)])

    return write


def sizes(listing: Listing) -> list[int]:
    return torch.bincount(listing.split, minlength=3).tolist()


def test_a_folder_for_each_class(photos: Path) -> None:
    listing = read(photos)
    assert (listing.name, listing.classes, listing.attributes) == ("photos", ("cat", "dog"), ("all",))
    assert [file.split("/")[0] for file in listing.files] == [listing.classes[k] for k in listing.label.tolist()]
    assert len(listing.files) == 40
    assert sizes(listing) == [28, 6, 6]
    assert listing.notes == ("drawn by --split-seed 0 from the training images: validation (15%) and test (15%)",)
    images = listing.table().images
    assert images.shape == (40, 3, 224, 224)


def test_a_table_beside_the_folders_is_spoken_of(photos: Path) -> None:
    (photos / "labels.csv").write_text("path,label\n")
    (photos / "cat" / "inner.csv").write_text("path,label\n")  # of something else
    assert read(photos).notes[0] == (
        "not read: labels.csv; if it is the table of these images, give its path in place of the folder's"
    )


def test_a_table_inside_a_zip_has_to_come_out_of_it(photos: Path, tmp_path: Path, zipped) -> None:
    files = {str(path.relative_to(photos)): path.read_bytes() for path in photos.rglob("*.*")}
    place = zipped(tmp_path / "photos.zip", {**files, "labels.csv": b"path,label\n"})
    assert read(place).notes[0] == (
        f"not read: labels.csv; if it is the table of these images, unpack it and give its path, with --data-path "
        f"{place}"
    )


def test_the_seed_draws_the_splits_and_not_the_cache(photos: Path) -> None:
    first, second = read(photos, reading=Reading(1)), read(photos, reading=Reading(2))
    assert not torch.equal(first.split, second.split)
    assert torch.equal(first.split, read(photos, reading=Reading(1)).split)
    assert first.files == second.files
    for listing in (first, second):  # stratified
        for label in (0, 1):
            assert torch.bincount(listing.split[listing.label == label]).tolist() == [14, 3, 3]


def test_classes_called_0_and_1_are_no_splits(tmp_path: Path, picture, put) -> None:
    for number in range(8):
        put(tmp_path / "x" / str(number % 2) / "inner" / f"{number}.png", picture(number))
    assert read(tmp_path / "x").classes == ("0", "1")


def test_folders_of_splits_above_those_of_classes(tmp_path: Path, picture, put) -> None:
    for number in range(24):
        split = ("train", "val", "test")[number % 3]
        put(tmp_path / "x" / split / ("cat", "dog")[number // 3 % 2] / f"{number}.png", picture(number))
    listing = read(tmp_path / "x")
    assert (sizes(listing), listing.classes, listing.notes) == ([8, 8, 8], ("cat", "dog"), ())
    assert [file.split("/")[0] for file in listing.files] == ["train"] * 8 + ["val"] * 8 + ["test"] * 8


@pytest.mark.parametrize("top", ["", "photos/"])
def test_all_in_one_zip(photos: Path, tmp_path: Path, zipped, top: str) -> None:
    files = {top + str(path.relative_to(photos)): path.read_bytes() for path in photos.rglob("*.jpg")}
    listing = read(zipped(tmp_path / "photos.zip", files))
    assert (listing.name, listing.classes, len(listing.files)) == ("photos", ("cat", "dog"), 40)
    assert torch.equal(listing.table(8).images, read(photos).table(8).images)


def test_a_table(table) -> None:
    place = table(
        attribute=lambda n: ("grass", "sofa", "street")[n % 3],
        split=lambda n: ("train", "Validation", "2")[n // 2 % 3],
        breed=lambda n: n,
    )
    listing = read(place)
    assert (listing.name, listing.classes, listing.attributes) == (
        "labels",
        ("cat", "dog"),
        ("grass", "sofa", "street"),
    )
    assert sizes(listing) == [14, 14, 12]
    assert listing.notes == ("columns that are not used: breed",)
    for file, label, attribute in zip(listing.files, listing.label.tolist(), listing.attribute.tolist(), strict=True):
        number = int(file[-6:-4])
        assert (label, attribute) == (number % 2, number % 3)


def test_splits_are_drawn_by_label_and_attribute(table) -> None:
    listing = read(table(attribute=lambda n: int(n < 4 or n % 4 < 2)))
    group = listing.label * 2 + listing.attribute
    assert all(set(listing.split[group == name].tolist()) == {0, 1, 2} for name in group.tolist())


def test_only_the_missing_split_is_drawn(table) -> None:
    listing = read(table(split=lambda n: "test" if n < 10 else "train"))
    assert sorted(listing.files[row] for row in torch.nonzero(listing.split == 2).flatten().tolist()) == sorted(
        f"{('cat', 'dog')[n % 2]}/{n:02d}.jpg" for n in range(10)
    )
    assert sizes(listing) == [26, 4, 10]
    assert listing.notes == ("drawn by --split-seed 0 from the training images: validation (15%)",)


def test_copies_of_an_image_are_drawn_into_one_split(table, photos: Path) -> None:
    for number in range(0, 40, 2):
        (photos / "cat" / f"{number:02d}.jpg").write_bytes((photos / "cat" / "00.jpg").read_bytes())
    listing = read(table(), reading=Reading(3))
    assert len(set(listing.split[listing.label == 0].tolist())) == 1


def test_numbers_are_ordered_as_numbers(table) -> None:
    assert read(table(label=lambda n: n % 12)).classes == tuple(str(number) for number in range(12))
    assert read(table(label=lambda n: f"k{n % 12}")).classes[:3] == ("k0", "k1", "k10")


def test_groups_numbered_as_group_dro_does_are_taken_apart(table) -> None:
    listing = read(table(label=lambda n: n % 2, group=lambda n: 3 * (n % 2) + n % 3))
    assert listing.attributes == ("0", "1", "2")
    numbers = torch.tensor([int(file[-6:-4]) for file in listing.files])
    assert torch.equal(listing.attribute, numbers % 3)
    only_diagonal = read(table("other.csv", label=lambda n: n % 2, group=lambda n: 3 * (n % 2)))
    assert torch.equal(only_diagonal.attribute, only_diagonal.label)


def test_other_groups_are_the_attribute(table) -> None:
    listing = read(table(group=lambda n: ("wild", "tame")[n // 2 % 2]))
    assert listing.attributes == ("tame", "wild")


def test_paths_relative_to_another_place(table, tmp_path: Path, photos: Path, zipped) -> None:
    place = table().rename(tmp_path / "labels.csv")
    with pytest.raises(ProblemsError, match="there is no image"):
        read(place)
    assert len(read(place, images=photos).files) == 40
    files = {str(path.relative_to(photos)): path.read_bytes() for path in photos.rglob("*.jpg")}
    assert len(read(place, images=zipped(tmp_path / "x.zip", files)).files) == 40
    with pytest.raises(DataError, match=r"there is no folder .*nowhere for the images of"):
        read(place, images=tmp_path / "nowhere")


def test_paths_relative_to_the_working_directory(table, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = table(path=lambda n: f"photos/{('cat', 'dog')[n % 2]}/{n:02d}.jpg")
    monkeypatch.chdir(photos.parent)
    with pytest.raises(ProblemsError) as error:
        read(place)
    (said,) = error.value.problems
    assert said.startswith(f"{place}: none of its images is in {photos}, but all are found from the working directory")
    assert said.endswith(": say --data-path .")
    assert len(read(place, images=Path()).files) == 40
    (photos / "cat" / "00.jpg").unlink()
    with pytest.raises(ProblemsError) as error:
        read(place)
    assert len(error.value.problems) == 40


def test_all_that_is_wrong_with_a_table_is_said_at_once(table, photos: Path) -> None:
    place = table(attribte=lambda n: n, split=lambda n: "holdout" if n == 5 else "train")
    lines = place.read_text().splitlines()
    lines[1] = "cat/none.jpg,cat,1,train"
    lines[2] = "../../secret.jpg,dog,1,train"
    lines[3] = "dog/01.jpg,,1,train"
    lines[4] = "dog/05.jpg,dog,1,train"
    lines[5] = ",cat,1,train"
    place.write_text("\n".join(lines))
    with pytest.raises(ProblemsError) as error:
        read(place)
    said = error.value.problems
    for part in (
        "column 'attribte'; is attribute meant?",
        "line 2: there is no image 'cat/none.jpg' in",
        "line 3: '../../secret.jpg' is not inside",
        "; paths are relative to the folder of the table, or to --data-path, and may not lead out of it",
        "line 4: no label; fill it in, or leave the row out",
        "line 6: no path",
        "line 7: split is 'holdout', expected train, validation, test",
        "line 7: 'dog/05.jpg' is there already",
    ):
        assert any(part in problem for problem in said), part
    assert len(said) == 7


def test_images_that_are_all_elsewhere(table, photos: Path) -> None:
    place = table(path=lambda n: f"none/{n}.jpg")
    with pytest.raises(ProblemsError) as error:
        read(place)
    first, second, *_ = error.value.problems
    assert first.endswith(
        f"there is no image 'none/0.jpg' in {photos}, nor any other; say where they are with --data-path"
    )
    assert second.endswith(f"there is no image 'none/1.jpg' in {photos}")


def test_splits_by_another_name_are_pointed_out(table) -> None:
    """Or images that are meant for the test would be trained on, and nobody would know."""
    place = table(split=lambda n: ("Train", "val", "test")[n % 3])
    text = place.read_text(encoding="utf-8")
    header, rest = text.split("\n", 1)
    place.write_text(header.replace("split", "Teil") + "\n" + rest, encoding="utf-8")
    assert "the column Teil holds splits (test, train and val): call it split to use it" in read(place).notes


def test_a_thousand_problems_make_a_short_message(table) -> None:
    place = table(rows=40, path=lambda n: f"none/{n}.jpg")
    with pytest.raises(ProblemsError, match=r"; … and 30 more$") as error:
        read(place)
    assert len(error.value.problems) == 40
    assert str(error.value).count("there is no image") == 10


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": lambda n: "cat"}, r"every image has the label 'cat'; a classifier needs two classes or more"),
        ({"split": lambda n: "test"}, "has no training image; give some rows the split train"),
        ({"attribute": lambda n: 1, "group": lambda n: 1}, "has both attribute and group; keep one of them"),
    ],
)
def test_tables_that_cannot_be_trained_on(table, columns, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(table(**columns))


def test_a_table_without_labels(photos: Path, write_csv) -> None:
    place = write_csv(photos / "x.csv", ("path", "lable"), [("cat/00.jpg", "cat")])
    with pytest.raises(
        DataError, match=r"no column label; its first line names path, lable: is it --label-column lable\?"
    ):
        read(place)


def test_what_is_no_data(tmp_path: Path, photos: Path, picture, put, write_csv) -> None:
    with pytest.raises(DataError, match=r"there is nothing at .*nowhere; expected a folder for each class"):
        read(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"there is no table .*none\.csv"):
        read(tmp_path / "none.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no image in it; expected a folder for each class"):
        read(tmp_path / "empty")
    write_csv(tmp_path / "empty" / "labels.csv", HEADER, [("a.jpg", "cat")])
    with pytest.raises(DataError, match=r"has no image in it; is .*labels\.csv meant\?"):
        read(tmp_path / "empty")
    put(tmp_path / "flat" / "1.jpg", picture())
    with pytest.raises(DataError, match="has no folders of classes; expected"):
        read(tmp_path / "flat")
    with pytest.raises(DataError, match=r"1\.jpg is neither a folder nor a zip or table; expected"):
        read(tmp_path / "flat" / "1.jpg")
    put(photos / "stray.jpg", picture())
    with pytest.raises(DataError, match=r"stray\.jpg is in no folder of a class; move it into one, or away"):
        read(photos)


def test_images_of_formats_that_are_not_read_are_counted(photos: Path, tmp_path: Path, put) -> None:
    for name in ("cat/a.HEIC", "dog/b.heic", "dog/c.dng"):
        put(photos / name, b"no image that is read")
    listing = read(photos)
    assert len(listing.files) == 40
    assert listing.notes[0].startswith("3 files are passed over, since images that end in .dng, .heic are not read")
    put(tmp_path / "phone" / "cat" / "a.heic", b"")
    with pytest.raises(DataError, match=r"phone has no image in it; 1 file is passed over"):
        read(tmp_path / "phone")


def test_one_class(tmp_path: Path, picture, put) -> None:
    put(tmp_path / "x" / "cat" / "1.jpg", picture())
    with pytest.raises(DataError, match="every image has the label 'cat'"):
        read(tmp_path / "x")


def test_tables_by_name() -> None:
    assert [is_table(name) for name in ("a.csv", "A.CSV", "a.parquet", "a.csv.gz", "a", "a.zip")] == [True] * 4 + [
        False
    ] * 2


# -- columns of other names -------------------------------------------------------------------------------------------


def renamed(table: Callable[..., Path], header: str, **columns: Callable[[int], object]) -> Path:
    place = table(**columns)
    lines = place.read_text().splitlines()
    place.write_text("\n".join([header, *lines[1:]]))
    return place


def test_columns_may_be_called_otherwise(table) -> None:
    place = renamed(table, "filename,class,background", background=lambda n: ("sea", "land")[n // 2 % 2])
    with pytest.raises(DataError, match="is it --path-column filename --label-column class"):
        read(place)
    listing = read(place, reading=Reading(path_column="filename", label_column="class"))
    assert (listing.classes, listing.attributes) == (("cat", "dog"), ("all",))
    assert listing.label_column == "class"
    hint = "columns that are not used: background (if background is what must not matter, say --attribute-column "
    assert listing.notes[0] == f"{hint}background)"
    listing = read(place, reading=Reading(0, "filename", "class", "background"))
    assert listing.attributes == ("land", "sea")
    assert [file[:3] for file in listing.files] == [listing.classes[k] for k in listing.label.tolist()]


def test_columns_in_capitals(table) -> None:
    columns = {"attribute": lambda n: n // 2 % 2, "split": lambda n: n // 4 % 3}
    plain = read(table(**columns))
    for reading in (
        Reading(),
        Reading(path_column="Path", label_column="Label"),
        Reading(attribute_column="ATTRIBUTE"),
    ):
        listing = read(renamed(table, "Path,Label,Attribute,Split", **columns), reading=reading)
        assert (listing.files, listing.classes, listing.attributes) == (plain.files, plain.classes, plain.attributes)
        assert torch.equal(listing.split, plain.split)
        assert listing.notes == ()


def test_a_column_without_a_name(table) -> None:
    listing = read(renamed(table, "path,label,", index=lambda n: n))
    assert listing.notes[0] == "columns that are not used: one without a name"


def test_a_column_that_is_named_takes_the_place_of_the_usual_one(table) -> None:
    place = table(kind=lambda n: n % 4, place=lambda n: n // 2 % 2, group=lambda n: n, labels=lambda n: 0)
    listing = read(place, reading=Reading(label_column="kind", attribute_column="place"))
    assert (listing.classes, listing.attributes) == (("0", "1", "2", "3"), ("0", "1"))
    assert listing.notes[0] == "columns that are not used: label, group, labels"
    composite = table("g.csv", group=lambda n: f"{('cat', 'dog')[n % 2]}-{n // 2 % 2}")
    assert read(composite, reading=Reading(attribute_column="group")).attributes == ("0", "1")
    assert read(composite).attributes == ("0", "1")


def test_environments(table) -> None:
    sites = {"split": lambda n: n // 4 % 3, "environment": lambda n: ("north", "south", "east")[n % 3]}
    listing = read(table(**sites))
    assert listing.environment is not None
    named = ("east", "north", "south")
    numbers = [int(file.partition("/")[2].partition(".")[0]) for file in listing.files]
    assert [named[n] for n in listing.environment.tolist()] == [sites["environment"](n) for n in numbers]
    assert torch.equal(listing.table(8).environment, listing.environment)
    assert listing.notes == ("3 environments by the column environment: east, north and south",)
    assert listing.attributes == ("all",)
    other = read(renamed(table, "path,label,split,site", **sites), reading=Reading(environment_column="site"))
    assert torch.equal(other.environment, listing.environment)
    shortcut = read(table(**sites), reading=Reading(attribute_column="environment"))
    assert shortcut.attributes == named
    assert not shortcut.table(8).environment.any()  # a column that is named for something else holds that
    both = renamed(table, "path,label,split,site", **sites)
    listing = read(both, reading=Reading(attribute_column="site", environment_column="site"))
    assert torch.equal(listing.environment, listing.attribute)


def test_without_environments_there_is_one(table) -> None:
    assert not read(table()).table(8).environment.any()
    many = read(table(environment=lambda n: n))
    assert many.notes[0] == f"{len(many.files)} environments by the column environment"
    with pytest.raises(DataError, match=r"line 2: no environment"):
        read(table(environment=lambda n: n or ""))
    with pytest.raises(DataError, match=r"has no column sit; .*is it --environment-column site"):
        read(table(site=lambda n: n % 2), reading=Reading(environment_column="sit"))


def test_folders_have_no_columns(photos: Path) -> None:
    with pytest.raises(DataError, match="is no table and has no columns: leave --label-column out"):
        read(photos, reading=Reading(label_column="class"))


def test_the_listing_knows_what_drew_its_split(table, photos: Path) -> None:
    assert read(photos, reading=Reading(4)).drawn == 4
    assert read(photos, reading=Reading(4)).table(8).drawn == 4
    assert read(table(split=lambda n: n // 2 % 3), reading=Reading(4)).drawn is None


def test_groups_within_labels_are_told(table) -> None:
    listing = read(table(group=lambda n: f"g{n % 4}"))
    assert (listing.attributes, listing.nested) == (("group 1", "group 2"), True)
    assert "every group is of one label alone, so groups are taken as they are" in listing.notes[0]

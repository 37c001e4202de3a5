from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ipg.data.errors import DataError, ProblemsError
from ipg.data.prepare_waterbirds import composite, draw, prepare
from ipg.data.waterbirds import read

SPECIES = ("001.Black_footed_Albatross", "014.Indigo_Bunting", "105.Whip_poor_Will", "086.Pacific_Loon")
FOLDERS = ("b/bamboo_forest", "f/forest/broadleaf", "o/ocean", "l/lake/natural")


@pytest.fixture
def cub(tmp_path: Path, put, picture) -> Path:
    """40 birds of two land and two water species, every second one for training, with masks of the left half."""
    home = tmp_path / "CUB_200_2011"
    files = [f"{SPECIES[n % 4]}/bird_{n:04d}.jpg" for n in range(40)]
    left = Image.fromarray(np.tile(np.repeat([255, 0], 15).astype(np.uint8), (20, 1)))
    for n, file in enumerate(files):
        put(home / "images" / file, picture(n, size=(30, 20), kind="JPEG"))
        mask = home / "segmentations" / Path(file).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        left.save(mask)
    put(home / "images.txt", "".join(f"{n + 1} {file}\n" for n, file in enumerate(files)).encode())
    put(home / "train_test_split.txt", "".join(f"{n + 1} {n // 4 % 2}\n" for n in range(40)).encode())
    return home


@pytest.fixture
def places(tmp_path: Path, put, picture) -> Path:
    for number, folder in enumerate(FOLDERS):
        for n in range(20):
            put(
                tmp_path / "places" / folder / f"{n:08d}.jpg",
                picture(1000 * (number + 1) + n, size=(50, 50), kind="JPEG"),
            )
    return tmp_path / "places"


def test_a_release_that_the_reader_takes(cub: Path, places: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    made = prepare(
        cub, places, tmp_path / "out", correlation=1.0, progress=lambda done, total: told.append((done, total))
    )
    listing = read("waterbirds100", made)
    assert len(listing.files) == 40
    assert told == [(n, 40) for n in range(1, 41)]
    assert listing.label.bool().tolist() == ["Albatross" in file or "Loon" in file for file in listing.files]
    train = listing.split == 0
    assert (int(train.sum()), int((listing.split == 1).sum()), int((listing.split == 2).sum())) == (16, 4, 20)
    assert bool((listing.label == listing.attribute)[train].all())
    for label in (0, 1):
        assert int(listing.attribute[(listing.split == 2) & (listing.label == label)].sum()) == 5
    assert listing.table(16).images.shape == (40, 3, 16, 16)
    masks = {str(path.relative_to(made / "masks").with_suffix(".jpg")) for path in (made / "masks").rglob("*.png")}
    assert masks == set(listing.files)


def test_metadata_is_the_official_table(cub: Path, places: Path, tmp_path: Path) -> None:
    lines = (prepare(cub, places, tmp_path / "out") / "metadata.csv").read_text().splitlines()
    assert lines[0] == "img_id,img_filename,y,split,place,place_filename"
    cells = [line.split(",") for line in lines[1:]]
    assert [row[0] for row in cells] == [str(n) for n in range(1, 41)]
    categories = (("/b/bamboo_forest/", "/f/forest/broadleaf/"), ("/o/ocean/", "/l/lake/natural/"))
    assert all(row[5].startswith(categories[int(row[4])]) for row in cells)
    assert len({row[5] for row in cells}) == 40  # each on a background of its own


def birds(count: int = 11_788) -> list[tuple[int, str, bool]]:
    """As many as CUB has: 5,994 for training, of which 4,615 landbirds; 5,794 for test, of which 4,510."""
    made = []
    for n in range(count):
        train = n < 5_994
        land = n < 4_615 if train else n - 5_994 < 4_510
        made.append((n + 1, f"{'014.Indigo_Bunting' if land else '001.Laysan_Albatross'}/{n}.jpg", train))
    return made


BACKGROUNDS = [[f"/b/{n}" for n in range(10_000)], [f"/o/{n}" for n in range(10_000)]]


@pytest.mark.parametrize("strength", [0.0, 0.5, 0.95, 1.0])
def test_counts_of_the_published_releases(strength: float) -> None:
    drawn = draw(birds(), BACKGROUNDS, correlation=strength, seed=1)
    count = {(s, y, p): 0 for s in range(3) for y in range(2) for p in range(2)}
    for bird in drawn:
        count[bird.split, bird.y, bird.place] += 1
    assert [sum(count[s, y, p] for y in range(2) for p in range(2)) for s in range(3)] == [4_795, 1_199, 5_794]
    assert [count[2, y, p] for y in range(2) for p in range(2)] == [2_255, 2_255, 642, 642]
    assert abs(count[1, 0, 0] - count[1, 0, 1]) <= 1
    assert abs(count[1, 1, 0] - count[1, 1, 1]) <= 1
    land, water = (count[0, y, 0] + count[0, y, 1] for y in range(2))
    assert count[0, 0, 1] == round((1 - strength) * land)
    assert count[0, 1, 1] == round(strength * water)


def test_strengths_share_their_splits_and_seeds_differ() -> None:
    first, second = (draw(birds(), BACKGROUNDS, correlation=strength, seed=0) for strength in (0.95, 1.0))
    assert [bird.split for bird in first] == [bird.split for bird in second]
    other = draw(birds(), BACKGROUNDS, correlation=1.0, seed=1)
    assert [bird.split for bird in other] != [bird.split for bird in second]
    assert draw(birds(), BACKGROUNDS, correlation=1.0, seed=1) == other


@pytest.mark.parametrize(
    ("species", "water"),
    [
        ("003.Sooty_Albatross", True),
        ("021.Eastern_Towhee", True),  # the released data's error: it has a "tern" in it
        ("088.Western_Meadowlark", True),
        ("102.Western_Wood_Pewee", True),
        ("087.Mallard", True),
        ("014.Indigo_Bunting", False),
        ("200.Common_Yellowthroat", False),
    ],
)
def test_waterbirds_by_name(species: str, water: bool) -> None:
    (bird,) = draw([(1, f"{species}/1.jpg", True)], [["/b/1"], ["/o/1"]], correlation=1.0, seed=0)
    assert (bird.y, bird.place) == (int(water), int(water))


def test_a_composite_is_the_bird_where_the_mask_is_and_the_background_elsewhere(tmp_path: Path) -> None:
    bird, mask, background = (tmp_path / name for name in ("bird.png", "mask.png", "background.png"))
    Image.new("RGB", (40, 20), (200, 100, 50)).save(bird)
    weights = np.zeros((20, 40), np.uint8)
    weights[:, :10], weights[:, 10:20] = 255, 51
    Image.fromarray(weights).save(mask)
    scene = np.zeros((90, 60, 3), np.uint8)
    scene[30:60] = (10, 20, 30)  # the middle, which is what a 2 : 1 crop of 60 x 30 keeps
    Image.fromarray(scene).save(background)
    image, shape = composite(bird, mask, background)
    pixels = np.asarray(image)
    assert pixels.shape == (20, 40, 3)
    assert (pixels[:, :10] == (200, 100, 50)).all()
    assert (pixels[10, 15] == (40 + 8, 20 + 16, 10 + 24)).all()
    assert (pixels[5:15, 20:] == (10, 20, 30)).all()
    assert np.array_equal(np.asarray(shape), weights)


def test_small_backgrounds_are_enlarged(tmp_path: Path, put, picture) -> None:
    front = put(tmp_path / "a.png", picture(1, size=(60, 40)))
    Image.new("L", (60, 40), 0).save(tmp_path / "m.png")
    image, _ = composite(front, tmp_path / "m.png", put(tmp_path / "b.png", picture(2, size=(10, 30))))
    assert image.size == (60, 40)


class _StopError(Exception):
    pass


def test_an_interrupted_command_goes_on(cub: Path, places: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 10:
            raise _StopError

    with pytest.raises(_StopError):
        prepare(cub, places, tmp_path / "out", progress=stop)
    assert not (tmp_path / "out" / "metadata.csv").exists()
    there = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.jpg")}
    assert 10 <= len(there) < 40
    prepare(cub, places, tmp_path / "out")
    assert len(list((tmp_path / "out").glob("[0-9]*/*.jpg"))) == 40
    assert all(path.stat().st_mtime_ns == time for path, time in there.items())
    assert not list((tmp_path / "out").rglob("*.tmp"))
    whole = prepare(cub, places, tmp_path / "other")
    for path in whole.rglob("*.jpg"):
        assert path.read_bytes() == (tmp_path / "out" / path.relative_to(whole)).read_bytes()


def test_a_folder_with_something_else_in_it(cub: Path, places: Path, tmp_path: Path, put) -> None:
    prepare(cub, places, tmp_path / "out", correlation=0.95)
    for options in ({"correlation": 1.0}, {"correlation": 0.95, "seed": 1}):
        with pytest.raises(DataError, match="made with other settings or files; name another folder"):
            prepare(cub, places, tmp_path / "out", **options)
    put(tmp_path / "mine" / "photo.jpg", b"")
    with pytest.raises(DataError, match="mine is there already and not empty"):
        prepare(cub, places, tmp_path / "mine")


def test_the_small_archive_of_places(cub: Path, places: Path, tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / "small" / "train").mkdir(parents=True, exist_ok=True)
        (places / folder).rename(tmp_path / "small" / "train" / folder[2:].replace("/", "-"))
    lines = (prepare(cub, tmp_path / "small", tmp_path / "out") / "metadata.csv").read_text()
    assert "/f/forest/broadleaf/" in lines


def test_too_few_backgrounds(cub: Path, places: Path, tmp_path: Path) -> None:
    for path in list((places / "o" / "ocean").iterdir()) + list((places / "l" / "lake" / "natural").iterdir())[5:]:
        path.unlink()
    with pytest.raises(DataError, match=r"birds stand on water, each on .* has 5 in ocean and lake/natural"):
        prepare(cub, places, tmp_path / "out")
    assert not (tmp_path / "out").exists()


BREAKS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "no list": (lambda cub, places: (cub / "images.txt").unlink(), "expected the folder CUB_200_2011"),
    "no split": (
        lambda cub, places: (cub / "train_test_split.txt").write_text("1 1\n"),
        "does not say 0 or 1 of image 2",
    ),
    "garbage": (lambda cub, places: (cub / "images.txt").write_text("x y\n"), "is not of CUB"),
    "one word": (lambda cub, places: (cub / "images.txt").write_text("1\n"), "cannot be read"),
    "no masks": (lambda cub, places: (cub / "segmentations").rename(cub / "s"), r"segmentations\.tgz"),
    "no place": (lambda cub, places: (places / "o" / "ocean").rename(places / "sea"), "there is no .*o/ocean"),
    "strength": (lambda cub, places: None, r"correlation=1\.5 is out of range"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_missing_parts(name: str, cub: Path, places: Path, tmp_path: Path) -> None:
    damage, message = BREAKS[name]
    damage(cub, places)
    with pytest.raises(ValueError, match=message):
        prepare(cub, places, tmp_path / "out", correlation=1.5 if name == "strength" else 0.95)


def test_missing_and_damaged_images_are_named_together(cub: Path, places: Path, tmp_path: Path) -> None:
    images = sorted((cub / "images").rglob("*.jpg"))
    images[0].unlink()
    (cub / "segmentations" / images[1].relative_to(cub / "images").with_suffix(".png")).unlink()
    with pytest.raises(ProblemsError) as error:
        prepare(cub, places, tmp_path / "out")
    assert len(error.value.problems) == 2


def test_birds_that_cannot_be_made(cub: Path, places: Path, tmp_path: Path, picture) -> None:
    images = sorted((cub / "images").rglob("*.jpg"))
    images[0].write_bytes(b"no image")
    images[1].write_bytes(picture(1, size=(10, 10), kind="JPEG"))
    with pytest.raises(ProblemsError, match="cannot be laid on") as error:
        prepare(cub, places, tmp_path / "out")
    assert len(error.value.problems) == 2
    assert "the mask has (30, 20) pixels, the bird (10, 10)" in str(error.value)
    assert not (tmp_path / "out" / "metadata.csv").exists()


def test_the_draw_is_pinned() -> None:
    drawn = draw(birds(), BACKGROUNDS, correlation=0.95, seed=0)
    assert [bird.background for bird in drawn[:2]] == ["/b/7955", "/b/9627"]

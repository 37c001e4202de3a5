"""Draw the pictures of the tutorial: cats and rabbits on sand or grass, where the ground gives the animal away.

In training every cat sits on sand and every rabbit on grass; so it is in validation. In the test pictures each animal
sits on either ground, as often on the one as on the other. Beside the pictures come masks of the animals, and pairs:
one animal on both grounds.

Run it with `python examples/make_scenes.py scenes`. `docs/own-images.md` goes on from there.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

SIDE = 64
FINE = 4
"""Everything is drawn this many times larger and then reduced, which smooths its edges."""
ANIMALS, GROUNDS = ("cat", "rabbit"), ("sand", "grass")
FURS = {
    "cat": ((206, 128, 58), (112, 76, 54), (58, 52, 52), (150, 146, 144)),
    "rabbit": ((232, 228, 222), (188, 176, 168), (112, 76, 54), (150, 146, 144)),
}
BASES = {"sand": (214, 186, 134), "grass": (84, 138, 62)}

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Animal:
    """One animal, to be laid on any ground."""

    colours: Image.Image
    mask: Image.Image


@dataclass(frozen=True)
class Scene:
    """A row of the table, and what it is drawn from."""

    name: str
    animal: str
    ground: str
    split: str


def scenes(train: int, validation: int, test: int) -> list[Scene]:
    """All scenes in order: the ground follows the animal, but in the test split, where all four groups are equal."""
    made = []
    for split, count in (("train", train), ("validation", validation), ("test", test)):
        for number in range(count):
            kind = number % 2
            ground = number // 2 % 2 if split == "test" else kind
            made.append(Scene(f"{ANIMALS[kind]}/{split}-{number:04}.jpg", ANIMALS[kind], GROUNDS[ground], split))
    return made


def draw_ground(ground: str, random: Generator) -> Image.Image:
    """A lawn of blades, or sand with ripples."""
    side = SIDE * FINE
    clouds = random.normal(0, 9, (8, 8, 1)) + random.normal(0, 7, 3)
    colours = np.clip(np.array(BASES[ground]) + clouds, 0, 255).astype(np.uint8)
    picture = Image.fromarray(colours).resize((side, side), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(picture)
    for _ in range(300):
        x, y = random.uniform(-10, side + 10, 2)
        shade = tone(np.array(BASES[ground]) + random.normal(0, 30, 3))
        if ground == "grass":
            pen.line((x, y, x + random.normal(0, 6), y - random.uniform(14, 34)), fill=shade, width=3)
        else:
            pen.arc((x, y, x + random.uniform(20, 60), y + random.uniform(6, 14)), 200, 340, fill=shade, width=2)
    return picture


def draw_animal(animal: str, random: Generator) -> Animal:
    """One animal; its fur, place and size are random."""
    side = SIDE * FINE
    fur = random.choice(FURS[animal]) + random.normal(0, 8, 3)
    colours, mask = Image.new("RGB", (side, side)), Image.new("L", (side, side))
    for pen, tones in (
        (ImageDraw.Draw(colours), [tone(fur), tone(0.55 * fur), tone(0.4 * fur + 150)]),
        (ImageDraw.Draw(mask), [255, 255, 255]),
    ):
        (draw_cat if animal == "cat" else draw_rabbit)(pen, *tones)
    scale, mirror = random.uniform(1.0, 1.3), random.choice([-1, 1])
    across, down = random.uniform(-24, 24, 2)
    middle = side / 2
    matrix = (
        mirror / scale, 0, middle - mirror * (middle + across) / scale,
        0, 1 / scale, middle - (middle + down) / scale,
    )  # fmt: skip
    where = ((side, side), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    return Animal(colours.transform(*where), mask.transform(*where))


def tone(colour: NDArray[np.float64]) -> Colour:
    red, green, blue = np.clip(colour, 0, 255).astype(int).tolist()
    return red, green, blue


def draw_cat(pen: ImageDraw.ImageDraw, fur: Colour | int, dark: Colour | int, pale: Colour | int) -> None:
    """A cat has pointed ears, a long tail and stripes."""
    pen.arc((38, 96, 108, 186), 90, 250, fill=dark, width=10)
    pen.polygon([(142, 104), (142, 68), (164, 92)], fill=dark)
    pen.polygon([(166, 92), (187, 68), (188, 106)], fill=dark)
    for box in ((78, 122, 168, 192), (138, 88, 190, 140), (88, 176, 116, 200), (140, 176, 168, 200)):
        pen.ellipse(box, fill=fur)
    for x in (94, 108, 122, 136):
        pen.line((x, 128, x - 4, 172), fill=dark, width=6)
    pen.ellipse((168, 106, 176, 114), fill=dark)


def draw_rabbit(pen: ImageDraw.ImageDraw, fur: Colour | int, dark: Colour | int, pale: Colour | int) -> None:
    """A rabbit has long ears, and a pale tail and belly."""
    for x in (142, 164):
        pen.ellipse((x, 34, x + 18, 108), fill=fur)
        pen.ellipse((x + 6, 46, x + 12, 96), fill=pale)
    pen.ellipse((58, 144, 92, 178), fill=pale)
    for box in ((78, 122, 168, 192), (138, 88, 190, 140), (88, 176, 116, 200), (140, 176, 168, 200)):
        pen.ellipse(box, fill=fur)
    pen.ellipse((104, 150, 152, 190), fill=pale)
    pen.ellipse((168, 106, 176, 114), fill=dark)


def compose(animal: Animal, ground: Image.Image) -> Image.Image:
    """The animal with a soft shadow on the ground, at its final size."""
    shadow = animal.mask.filter(ImageFilter.GaussianBlur(5)).point(lambda value: value // 4)
    under = Image.composite(Image.new("RGB", ground.size), ground, shadow)
    return reduce(Image.composite(animal.colours, under, animal.mask))


def reduce(image: Image.Image) -> Image.Image:
    return image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def write(folder: Path, *, train: int, validation: int, test: int, pairs: int, held_out: int, seed: int) -> None:
    """Write `photos/`, `photos.csv`, `masks/` and `pairs/` to `folder`."""
    rows, paired = [], []
    wanted = {"train": pairs, "validation": held_out, "test": 0}
    for number, scene in enumerate(scenes(train, validation, test)):
        random = np.random.default_rng([seed, number])
        animal, ground = draw_animal(scene.animal, random), draw_ground(scene.ground, random)
        path = Path("photos", scene.name)
        save(compose(animal, ground), folder / path)
        save(reduce(animal.mask), folder / "masks" / path.with_suffix(".png"))
        rows.append((path.as_posix(), scene.animal, scene.ground, scene.split))
        if wanted[scene.split]:
            wanted[scene.split] -= 1
            other = draw_ground(GROUNDS[1 - GROUNDS.index(scene.ground)], random)
            second = Path("images", scene.name)
            save(compose(animal, other), folder / "pairs" / second)
            paired.append((f"data:{path.as_posix()}", second.as_posix(), scene.animal, scene.split, path.as_posix()))
    save_table(folder / "photos.csv", ("path", "label", "attribute", "split"), rows)
    save_table(folder / "pairs" / "manifest.csv", ("first", "second", "label", "split", "made_of"), paired)


def save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=92)


def save_table(path: Path, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw cats and rabbits on sand or grass.")
    parser.add_argument("folder", type=Path, help="where to write them")
    for name, default, what in (
        ("train", 600, "training pictures"),
        ("validation", 160, "validation pictures"),
        ("test", 240, "test pictures"),
        ("pairs", 60, "pairs of training pictures"),
        ("held-out", 100, "pairs of validation pictures"),
        ("seed", 0, "of everything random"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: {default})")
    given = vars(parser.parse_args())
    folder = given.pop("folder")
    write(folder, **given)
    pictures = sum(given[split] for split in ("train", "validation", "test"))
    print(f"{folder}: {pictures} pictures and {given['pairs']} pairs to guide by")


if __name__ == "__main__":
    main()

"""What is read once inside `remembering()`, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipg.data import load as loading
from ipg.data import remembering as module
from ipg.data.load import load
from ipg.data.reading import Reading
from ipg.data.remembering import recalled, remembering


class Reader:
    """Counts how often it reads."""

    def __init__(self, size: int = 1) -> None:
        self.size, self.count = size, 0

    def __call__(self, key: object) -> Any:
        def read() -> list[object]:
            self.count += 1
            return [key]

        return recalled(key, read, lambda found: self.size)


def test_outside_everything_is_read_again() -> None:
    reader = Reader()
    assert reader("a") == reader("a") == ["a"]
    assert reader.count == 2


def test_inside_the_same_is_read_once_and_forgotten_afterwards() -> None:
    reader = Reader()
    with remembering():
        assert reader("a") is reader("a")
        assert reader("b") is not reader("a")
        assert reader.count == 2
    with remembering():
        reader("a")
    assert reader.count == 3


def test_what_was_used_longest_ago_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES", 2)  # beside the last
    reader = Reader()
    with remembering():
        for key in "abcabc":
            reader(key)
        assert reader.count == 3
        reader("d")  # b and c stay beside it
        reader("b")
        reader("c")
        assert reader.count == 4
        reader("a")
        assert reader.count == 5


def test_the_last_is_kept_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES", 0)
    reader = Reader(100)
    with remembering():
        assert reader("a") is reader("a")
    assert reader.count == 1


def test_what_fails_is_tried_again() -> None:
    def fails() -> list[int]:
        raise ValueError("no")

    with remembering():
        with pytest.raises(ValueError, match="no"):
            recalled("a", fails, len)
        assert recalled("a", lambda: [1], len) == [1]


def test_tables_by_all_that_decides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    real = loading._load
    monkeypatch.setattr(loading, "_load", lambda *given: made.append(given) or real(*given))
    with remembering():
        first = load("colored_fashion", seed=1)
        assert load("colored_fashion", seed=1) is first
        assert load("colored_fashion", seed=1, reading=Reading()) is first
        for other in (
            load("colored_fashion", seed=2),
            load("colored_fashion", seed=1, size=28),
            load("colored_fashion_noisy", seed=1),
        ):
            assert other is not first
    assert len(made) == 4
    assert load("colored_fashion", seed=1) is not first


def test_a_file_that_changes_is_read_again_outside(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b"):
        for number in range(4):
            file = tmp_path / "photos" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (40 * number, 0, 0)).save(file)
    before = load(str(tmp_path / "photos"), size=16)
    Image.new("RGB", (16, 16), (0, 0, 255)).save(tmp_path / "photos" / "a" / "0.png")
    after = load(str(tmp_path / "photos"), size=16)
    assert not before.images.equal(after.images)

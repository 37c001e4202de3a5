"""What folders are called after the data in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipg.cli.options import data_name


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("colored_fashion", "colored_fashion"),
        ("photos/", "photos"),
        ("photos.v2/", "photos.v2"),
        ("../photos/photos.csv", "photos"),
        ("a/b/labels.parquet", "labels"),
        ("photos/..", "here"),
        (".", "here"),
        ("celeba:Smiling/Male", "celeba-Smiling-Male"),
        ("/", "data"),
    ],
)
def test_a_name_without_a_path(data: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("photos", "photos.v2"):
        (tmp_path / "here" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert data_name(data) == name
    assert Path(data_name(data)).name == name

from pathlib import Path

import pytest

from ipg.data.errors import DataError
from ipg.data.locations import cache_folder, data_folder, locate


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPG_CACHE", "IPG_DATA"):
        monkeypatch.delenv(name)
    assert cache_folder() == data_folder() == Path.home() / ".cache" / "ipg"


def test_a_given_path_is_taken_as_it_is(tmp_path: Path) -> None:
    assert locate("celeba", tmp_path, "get it") == tmp_path
    with pytest.raises(DataError, match=r"there is no celeba at .*/nowhere; get it"):
        locate("celeba", tmp_path / "nowhere", "get it")


@pytest.mark.parametrize("name", ["celeba_subset", "celeba-subset", "celeba_subset.zip"])
def test_by_name_in_the_folder_of_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("IPG_DATA", str(tmp_path))
    with pytest.raises(DataError, match="--data-path, or set IPG_DATA to the folder that holds it; get it"):
        locate("celeba_subset", None, "get it")
    (tmp_path / name).mkdir()
    assert locate("celeba_subset", None, "get it") == tmp_path / name

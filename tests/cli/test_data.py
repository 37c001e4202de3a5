"""`ipg data`: list, check and fetch."""

from __future__ import annotations

import hashlib
import urllib.error
from pathlib import Path

import pytest

from ipg.cli.data import ABOUT
from ipg.data import mnist
from ipg.data.load import DATASETS


def test_list_names_every_data_set_and_what_it_needs(ipg) -> None:
    done = ipg("data", "list")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert list(ABOUT) == list(DATASETS)
    for name, (_, files) in ABOUT.items():
        assert any(line.startswith(f"│ {name} ") and files in line for line in done.out.splitlines())


def test_check_counts_groups_and_names_the_empty_ones(ipg) -> None:
    done = ipg("data", "check", "colored-fashion")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert done.out.startswith("colored_fashion: 20,000 images of 2×14×14")
    train = next(line for line in done.out.splitlines() if line.startswith("│ train"))
    counts = [int(cell.replace(",", "")) for cell in train.strip("│").split("│")[1:]]
    assert counts[0] == sum(counts[1:]) == 12_000
    assert counts[2:4] == [0, 0]
    assert "No training image at all in: garment, green; footwear or bag, red." in done.out


def test_check_is_silent_where_every_group_has_images(ipg, bars: list[str]) -> None:
    assert "No training image" not in ipg("data", "check", "bars", "--seed", "3").out


def fake_download(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[str]:
    """Stand in for the network; returns the addresses asked for."""
    asked: list[str] = []

    def download(url: str, name: str, progress, timeout: float) -> bytes:
        asked.append(url)
        if fails:
            raise urllib.error.URLError("no route to host")
        progress(name, 3, 6)
        progress(name, 6, 6)
        return name.encode()

    monkeypatch.setattr(mnist, "_download", download)
    monkeypatch.setattr(mnist, "MD5", {name: hashlib.md5(name.encode()).hexdigest() for name in mnist.MD5})
    return asked


def test_fetch_puts_the_four_files_where_it_says(ipg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_download(monkeypatch)
    done = ipg("data", "fetch", "mnist", "--folder", "data/mnist")
    assert (done.code, done.out) == (0, "MNIST is in data/mnist\n")  # no bar where there is no terminal
    assert sorted(path.name for path in (tmp_path / "data" / "mnist").iterdir()) == sorted(mnist.MD5)
    assert len(asked) == 4
    again = ipg("data", "fetch", "mnist", "--folder", "data/mnist")
    assert (again.code, len(asked)) == (0, 4)


def test_fetch_goes_to_the_folder_where_loading_looks(ipg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_download(monkeypatch)
    assert ipg("data", "fetch", "mnist").out == f"MNIST is in {tmp_path / 'no-mnist'}\n"


def test_fetch_without_a_network(refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_download(monkeypatch, fails=True)
    says = ("train-images-idx3-ubyte.gz could not be downloaded", "no route to host", "Check the network", "IPG_MNIST")
    refused("data", "fetch", "mnist", "--folder", "data", says=says)
    assert len(asked) == len(mnist.MIRRORS)
    assert list((tmp_path / "data").iterdir()) == []

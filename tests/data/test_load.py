from pathlib import Path

import numpy as np
import pytest
import torch

from ipg.data import colored_fashion, colored_mnist
from ipg.data import mnist as mnist_files
from ipg.data.load import DATASETS, load
from ipg.data.mnist import read


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mnist_files, "TRAIN", 60)
    monkeypatch.setattr(mnist_files, "TEST", 30)
    generator = np.random.default_rng(0)
    path = tmp_path / "mnist.npz"
    np.savez(
        path,
        x_train=generator.integers(0, 256, (60, 28, 28), dtype=np.uint8),
        y_train=generator.integers(0, 10, 60, dtype=np.uint8),
        x_test=generator.integers(0, 256, (30, 28, 28), dtype=np.uint8),
        y_test=generator.integers(0, 10, 30, dtype=np.uint8),
    )
    return path


def test_every_name_loads_the_table_of_that_name(small_mnist: Path) -> None:
    for name in DATASETS:
        path = small_mnist if "mnist" in name else None
        assert load(name, path=path).name == name


def test_arguments_are_passed_on(small_mnist: Path) -> None:
    mnist = load("colored-mnist-irm", path=small_mnist, size=28, seed=3)
    expected = colored_mnist.load(read(small_mnist), protocol="irm", size=28, seed=3)
    assert torch.equal(mnist.images, expected.images)
    fashion = load("colored-fashion-noisy", size=28, seed=2)
    assert torch.equal(fashion.images, colored_fashion.load(protocol="noisy", size=28, seed=2).images)


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown data set 'cifar'; there are colored_fashion, .*colored_mnist_irm"):
        load("cifar")


def test_embedded_data_takes_no_path() -> None:
    with pytest.raises(ValueError, match="takes no path, got 'somewhere'"):
        load("colored_fashion", path="somewhere")

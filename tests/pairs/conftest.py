import pytest
import torch

from ipg.data import colored_fashion, colored_mnist
from ipg.data.mnist import Digits
from ipg.data.table import ImageTable


@pytest.fixture(scope="session")
def fashion() -> ImageTable:
    """Coloured fashion with a perfect shortcut: two of the four groups have training images."""
    return colored_fashion.load()


@pytest.fixture(scope="session")
def table() -> ImageTable:
    """ColoredMNIST of 6,000 noise images, a tenth of them of every digit; all four groups have training images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (6_000, 28, 28), dtype=torch.uint8, generator=generator)
    return colored_mnist.load(Digits(images, torch.arange(6_000) % 10, train=5_000), size=14)

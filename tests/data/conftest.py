from pathlib import Path

import pytest
import torch

from ipg.data.mnist import Digits, read


@pytest.fixture(scope="session")
def mnist(mnist_path: Path) -> Digits:
    """The real MNIST, where it is at hand."""
    return read(mnist_path)


@pytest.fixture(scope="session")
def digits() -> Digits:
    """As many digits as MNIST has, of noise."""
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(1, 256, (70_000, 28, 28), dtype=torch.uint8, generator=generator)
    return Digits(images, torch.randint(10, (70_000,), generator=generator), train=60_000)

"""Which data sets have a name, and which are somebody's own images. Importing this module is cheap: no torch."""

from __future__ import annotations

__all__ = ["NAMED", "is_own"]

NAMED = (
    *("colored_fashion", "colored_fashion_noisy"),
    *("colored_mnist", "colored_mnist_clean", "colored_mnist_train_noise", "colored_mnist_irm", "colored_mnist_dair"),
    *("colored_mnist_test0", "colored_mnist_test1", "colored_mnist_test2"),
    *("waterbirds100", "waterbirds100_reverse", "waterbirds95", "waterbirds95_reverse"),
    *("waterbirds", "waterbirds_reverse", "celeba", "celeba_subset"),
)
"""The data sets whose columns and splits are settled by whoever published them."""


def is_own(name: str) -> bool:
    """Whether `name`, as --data has it, is somebody's own images: `folder`, or a path."""
    return name.replace("-", "_").partition(":")[0] not in NAMED

"""One of SpuCo's trainers, an epoch whenever asked; run by the Python that has SpuCo (see `against_spuco.py`).

Prints its versions, then for every line it reads the seconds that an epoch took. Nothing of ipg is used but the
network.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from spuco.datasets import BaseSpuCoDataset, GroupLabeledDatasetWrapper, SourceData
from spuco.robust_train import ERM, GroupDRO

from ipg.models import build_model


class Given(BaseSpuCoDataset):  # type: ignore[misc]
    """Images that are there already, held as SpuCoMNIST holds its own: a list of float tensors."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, attributes: torch.Tensor) -> None:
        super().__init__(root="", num_classes=int(labels.max()) + 1)
        self.source = SourceData()
        self.source.X = list(images.float() / 255)
        self.source.labels, self.source.spurious = labels.tolist(), attributes.tolist()
        self.skip_group_validation = True

    def load_data(self) -> tuple[Any, range, range]:
        """The images, the classes and the attributes."""
        return self.source, range(self.num_classes), range(max(self.source.spurious) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=["erm", "groupdro"])
    parser.add_argument("--data", required=True, help="images, labels and attributes as torch saves them")
    parser.add_argument("--network", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    data = Given(*torch.load(given.data))
    data.initialize()
    model = build_model(given.network, channels=data.source.X[0].shape[0], classes=data.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    common = {"model": model, "batch_size": given.batch, "optimizer": optimizer, "num_epochs": 1}
    if given.method == "erm":
        trainer: Any = ERM(trainset=data, **common)
    else:
        trainer = GroupDRO(trainset=GroupLabeledDatasetWrapper(data, data.group_partition), **common)
    print(json.dumps({"spuco": version("spuco"), "torch": str(torch.__version__)}), flush=True)
    for epoch, _ in enumerate(sys.stdin):
        start = time.perf_counter()
        trainer.train_epoch(epoch)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()

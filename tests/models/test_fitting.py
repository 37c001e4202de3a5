"""Weights of a file fitted to a network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ipg.models.fitting import classes_in, load_weights
from ipg.models.weights import Weights

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")


class Net(nn.Module):
    def __init__(self, classes: int = 2, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, classes)


def weights(**options: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return dict(Net(**options).state_dict())


def load(tensors: dict[str, Tensor], **options: Any) -> Net:
    model = Net()
    load_weights(model, Weights(tensors, "file.pth"), name="net", **{"new_head": True, **options})
    return model


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "net.backbone.", "module.model."])
def test_prefixes_of_wrappers(prefix: str) -> None:
    tensors = {prefix + name: tensor for name, tensor in weights().items()}
    if prefix:
        tensors["criterion.weight"] = torch.ones(2)  # as Lightning has it beside the network
    model = load(tensors, new_head=False)
    assert all(torch.equal(value, weights()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("classes", [None, 2, 1000])
def test_a_new_head_does_not_look_at_the_old_one(classes: int | None) -> None:
    tensors = weights(classes=classes or 2)
    if classes is None:
        del tensors["fc.weight"], tensors["fc.bias"]
    torch.manual_seed(5)
    expected = Net().fc.weight
    torch.manual_seed(5)
    model = load(tensors)
    assert torch.equal(model.fc.weight, expected)
    assert torch.equal(model.stem.weight, tensors["stem.weight"])


def test_counters_of_batch_norm_may_be_missing() -> None:
    tensors = weights()
    del tensors["norm.num_batches_tracked"]
    assert torch.equal(load(tensors).norm.weight, tensors["norm.weight"])


def test_missing_and_unknown_names_are_named() -> None:
    tensors = weights()
    tensors["stem.wait"] = tensors.pop("stem.bias")
    with pytest.raises(
        ValueError, match=r"file.pth does not fit net: it lacks stem.bias; it has besides stem.wait\. .*"
    ):
        load(tensors)


def test_only_the_first_few_are_named() -> None:
    with pytest.raises(ValueError, match=r"it lacks stem.weight, stem.bias, norm.weight and 3 more; .*architecture"):
        load({"other": torch.ones(1)})


def test_other_sizes_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"sizes differ in stem.weight \(8, 3, 3, 3\) for \(4, 3, 3, 3\), .* and 3 more"
    ):
        load(weights(width=8))


def test_a_head_of_other_size_where_it_is_to_be_kept() -> None:
    with pytest.raises(ValueError, match=r"sizes differ in fc.weight \(5, 4\) for \(2, 4\)"):
        load(weights(classes=5), new_head=False)


def test_conversion_is_tried_where_weights_do_not_fit() -> None:
    renamed = {name.replace("stem", "conv1"): tensor for name, tensor in weights().items()}

    def convert(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name.replace("conv1", "stem"): tensor for name, tensor in tensors.items()}

    assert torch.equal(load(renamed, convert=convert).stem.weight, weights()["stem.weight"])

    def fail(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        raise KeyError("stem")

    assert torch.equal(load(weights(), convert=fail).stem.weight, weights()["stem.weight"])
    with pytest.raises(ValueError, match=r"it lacks stem.weight"):
        load(renamed, convert=fail)


def test_the_classes_of_a_file() -> None:
    prefixed = {f"module.{name}": tensor for name, tensor in weights(classes=7).items()}
    assert classes_in(Net(), Weights(prefixed, "file.pth")) == 7
    bare = {name: tensor for name, tensor in weights().items() if not name.startswith("fc")}
    with pytest.raises(ValueError, match=r"file.pth has no classifier \(fc.weight\)"):
        classes_in(Net(), Weights(bare, "file.pth"))

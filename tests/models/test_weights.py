"""Weights in files: what is read, what is refused, what is written."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from ipg.models import ImageModel, Normalization, plain_state_dict, save_weights
from ipg.models.weights import read_weights

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")

STATE = {"fc.weight": torch.arange(4.0).view(2, 2), "fc.bias": torch.ones(2)}


class Malicious:
    """Unpickled by a careless program, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    "held",
    [
        STATE,
        {"state_dict": STATE, "epoch": 3},
        {"model": STATE, "args": argparse.Namespace(lr=0.1)},
        {"state_dict": {"x": torch.zeros(1)}, "state_dict_ema": STATE},
        {"model": {"x": torch.zeros(1)}, "model_ema": STATE},
        {"model": {"state_dict": STATE}},
        {"module": STATE},
        {"epoch": 3, "model_state_dict": STATE, "optimizer_state_dict": {"state": {}, "param_groups": []}, "loss": 0.3},
        {"model_state_dict": STATE, "ema_state_dict": {"x": torch.zeros(1)}},
        {"net": STATE, "loss": torch.zeros(())},
        {**STATE, "version": 1},
    ],
)
def test_where_checkpoints_keep_their_weights(held: dict[str, Any], tmp_path: Path) -> None:
    torch.save(held, tmp_path / "weights.pth")
    found = read_weights(tmp_path / "weights.pth")
    assert found.source == "weights.pth"
    assert found.normalization is None
    assert set(found.tensors) == set(STATE)
    assert torch.equal(found.tensors["fc.weight"], STATE["fc.weight"])


def test_of_two_sets_of_weights_none_is_guessed(tmp_path: Path) -> None:
    torch.save({"student": STATE, "teacher": STATE}, tmp_path / "two.pth")
    with pytest.raises(ValueError, match=r"two.pth holds no weights by name, only student, teacher; save"):
        read_weights(tmp_path / "two.pth")


def test_safetensors_with_and_without_statistics(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "plain.safetensors")
    save_file(STATE, tmp_path / "told.safetensors", metadata={"mean": "0.5,0.5,0.5", "std": "0.5,0.5,0.5"})
    assert read_weights(tmp_path / "plain.safetensors").normalization is None
    assert str(read_weights(tmp_path / "told.safetensors").normalization) == "0.5,0.5,0.5/0.5,0.5,0.5"


@pytest.mark.parametrize("nested", [True, False])
def test_statistics_from_timms_configuration_beside_the_file(nested: bool, tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    statistics = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    described = {"architecture": "x", "pretrained_cfg": statistics} if nested else {"architecture": "x", **statistics}
    (tmp_path / "config.json").write_text(json.dumps(described), encoding="utf-8")
    assert str(read_weights(tmp_path / "model.safetensors").normalization) == "0.1,0.2,0.3/0.4,0.5,0.6"


@pytest.mark.parametrize("described", ["", "[]", '{"pretrained_cfg": 3}', '{"config": {"model": null}}'])
def test_other_configurations_beside_the_file_say_nothing(described: str, tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(described, encoding="utf-8")
    assert read_weights(tmp_path / "model.safetensors").normalization is None


@pytest.mark.parametrize("form", ["zip", "legacy", "bare"])
def test_code_in_a_pickle_is_not_run(form: str, tmp_path: Path) -> None:
    trap, path = tmp_path / "trap", tmp_path / "weights.pth"
    if form == "bare":
        path.write_bytes(pickle.dumps({"state_dict": Malicious(trap)}, protocol=2))
    else:
        held = {"state_dict": STATE, "extra": Malicious(trap)}
        torch.save(held, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(ValueError, match=r"weights.pth holds more than weights \(\w+.mkdir\).*could run code"):
        read_weights(path)
    assert not trap.exists()


def test_code_in_a_recent_pickle_is_not_run(tmp_path: Path) -> None:
    trap, path = tmp_path / "trap", tmp_path / "weights.pth"
    path.write_bytes(pickle.dumps(Malicious(trap)))
    with pytest.raises(ValueError, match=r"weights.pth (holds more than weights|is damaged)"):
        read_weights(path)
    assert not trap.exists()


def test_a_whole_pickled_network_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"holds more than weights \(torch.nn.modules.linear.Linear\).*state_dict"):
        read_weights(tmp_path / "net.pt")


def test_a_program_of_torchscript_is_told_from_a_damaged_file(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # recent versions of torch advise against it
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"net.pt is a TorchScript program.*torch.jit.load.*python:file.py:function"):
        read_weights(tmp_path / "net.pt")


@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
def test_cut_files(name: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / name
    large = {"fc.weight": torch.ones(3000)}
    if path.suffix == ".pth":
        torch.save(large, path)
    else:
        save_file(large, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=f"{name} is damaged or no"):
        read_weights(path)


@pytest.mark.parametrize("name", ["page.pth", "page.safetensors"])
def test_a_page_saved_in_place_of_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("<!DOCTYPE html><html>not found</html>", encoding="utf-8")
    with pytest.raises(ValueError, match=f"{name} is damaged or no"):
        read_weights(tmp_path / name)


def test_no_file_a_folder_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none.pth"):
        read_weights(tmp_path / "none.pth")
    with pytest.raises(ValueError, match=r"is a folder; name the file .* such as model.safetensors"):
        read_weights(tmp_path)
    (tmp_path / "empty.pth").touch()
    with pytest.raises(ValueError, match=r"empty.pth is empty"):
        read_weights(tmp_path / "empty.pth")
    with pytest.raises(ValueError, match=r"cannot be read: Not a directory"):
        read_weights(tmp_path / "empty.pth" / "inside.pth")


def test_a_nest_without_end(tmp_path: Path) -> None:
    endless: dict[str, Any] = {}
    endless["model"] = endless
    torch.save(endless, tmp_path / "endless.pth")
    with pytest.raises(ValueError, match=r"endless.pth holds no weights by name, only model"):
        read_weights(tmp_path / "endless.pth")


@pytest.mark.parametrize(
    ("held", "inside"), [({"a": 1, "b": 2}, "a, b"), ({}, "nothing"), (torch.ones(2), "a Tensor"), ([1], "a list")]
)
def test_files_without_weights(held: Any, inside: str, tmp_path: Path) -> None:
    torch.save(held, tmp_path / "odd.pt")
    with pytest.raises(ValueError, match=f"odd.pt holds no weights by name, only {inside}"):
        read_weights(tmp_path / "odd.pt")


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    torch.save({**STATE, "fc.bias": torch.tensor([0.0, torch.nan])}, tmp_path / "nan.pth")
    with pytest.raises(ValueError, match=r"nan.pth has NaN or infinity in fc.bias"):
        read_weights(tmp_path / "nan.pth")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    statistics = Normalization((0.48145467, 0.1, 0.2), (0.229, 0.5, 1.0))
    model = ImageModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), statistics, name="test_net", origin="")
    assert list(plain_state_dict(model)) == ["1.weight", "1.bias"]
    save_weights(tmp_path / "out" / "net.safetensors", model)
    found = read_weights(tmp_path / "out" / "net.safetensors")
    assert (found.normalization, found.architecture) == (statistics, "test_net")
    assert torch.equal(found.tensors["1.weight"], plain_state_dict(model)["1.weight"])


def test_equal_weights_are_equal_files(tmp_path: Path) -> None:
    statistics = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    model = ImageModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), statistics, name="test_net", origin="")
    for number in range(8):
        save_weights(tmp_path / str(number), model)
    assert len({(tmp_path / str(number)).read_bytes() for number in range(8)}) == 1


def test_weights_of_other_networks_are_written_as_they_are(tmp_path: Path) -> None:
    save_weights(tmp_path / "net.safetensors", nn.Linear(3, 2))
    with safe_open(tmp_path / "net.safetensors", framework="pt") as file:
        assert sorted(file.keys()) == ["bias", "weight"]
        assert not file.metadata()

"""Files and folders that bring code along are refused, and the code is not run."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipg.data.errors import DataError
from ipg.models import load_model
from ipg.models.weights import read_weights
from ipg.training.checkpoint import load_checkpoint


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.marker,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What is there when code was run."""
    return tmp_path / "code-was-run"


@pytest.fixture
def evil(marker: Path) -> Evil:
    return Evil(marker)


def test_the_pickle_is_evil_indeed(evil: Evil, marker: Path) -> None:
    pickle.loads(pickle.dumps(evil))
    assert marker.exists()


WRITERS: dict[str, Callable[[Path, Any], object]] = {
    "torch": lambda path, value: torch.save(value, path),
    "legacy torch": lambda path, value: torch.save(value, path, _use_new_zipfile_serialization=False),
    "plain": lambda path, value: path.write_bytes(pickle.dumps(value, protocol=2)),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".ckpt", ".safetensors", ""])
def test_weights(tmp_path: Path, evil: Evil, marker: Path, suffix: str, writer: str) -> None:
    path = tmp_path / f"model{suffix}"
    WRITERS[writer](path, {"state_dict": {"weight": torch.zeros(2)}, "extra": evil})
    with pytest.raises(ValueError, match=path.name):
        read_weights(path)
    assert not marker.exists()


def test_weights_that_hold_code_say_what_to_do(tmp_path: Path, evil: Evil, marker: Path) -> None:
    torch.save(evil, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=r"could run code; it was not read.*safetensors"):
        load_model(f"timm:resnet18@{tmp_path / 'model.pth'}")
    assert not marker.exists()


def test_a_checkpoint(tmp_path: Path, evil: Evil, marker: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(pickle.dumps(evil))
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(tmp_path / "checkpoint.safetensors")
    assert not marker.exists()


def test_an_exported_program(tmp_path: Path, evil: Evil, marker: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(evil))
    with pytest.raises(ValueError, match="could run code"):
        load_model(tmp_path / "model.pt2")
    assert not marker.exists()


def test_arrays(tmp_path: Path, evil: Evil, marker: Path, make_table: Any) -> None:
    from ipg.data.mnist import read
    from ipg.pairs.features import read_features
    from ipg.pairs.opinions import read_opinions

    array = np.array([evil], dtype=object)
    np.savez(tmp_path / "all.npz", image=array, label=array, x_train=array, features=array, names=array)
    np.save(tmp_path / "one.npy", array)
    for reader, name in (
        (read, "all.npz"),
        (read_opinions, "all.npz"),
        (lambda path: read_features(path, make_table()), "one.npy"),
    ):
        with pytest.raises(DataError, match=name):
            reader(tmp_path / name)
        assert not marker.exists()


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A folder as hubs have it, with code of its own in it."""
    folder = tmp_path / "hub"
    folder.mkdir()
    code = f"from pathlib import Path\nPath({str(tmp_path / 'code-was-run')!r}).mkdir()\nclass Net: ...\n"
    (folder / "modeling.py").write_text(code)
    names = {"AutoConfig": "modeling.Net", "AutoModelForImageClassification": "modeling.Net"}
    (folder / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": names}))
    return folder


def test_a_hub_folder_with_its_own_code(hub: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"hf:.*hub"):
        load_model(f"hf:{hub}")
    assert not marker.exists()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_hub_folder_with_pickled_weights(hub: Path, evil: Evil, marker: Path, writer: str) -> None:
    from transformers import ResNetConfig

    ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic").save_pretrained(hub)
    WRITERS[writer](hub / "pytorch_model.bin", {"weight": torch.zeros(2), "extra": evil})
    with pytest.raises(ValueError, match=r"hf:.*hub"):
        load_model(f"hf:{hub}", normalization="imagenet")
    assert not marker.exists()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_of_timm_with_pickled_weights(hub: Path, evil: Evil, marker: Path, writer: str) -> None:
    (hub / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": {"num_classes": 2}}))
    WRITERS[writer](hub / "pytorch_model.bin", {"weight": torch.zeros(2), "extra": evil})
    with pytest.raises(ValueError, match="hub"):
        load_model(f"timm:local-dir:{hub}", normalization="imagenet")
    assert not marker.exists()


def test_a_run_that_names_code(tmp_path: Path, marker: Path) -> None:
    """Only the command line may name code to run: a file that does is refused."""
    from safetensors.torch import save_file

    code = tmp_path / "mine.py"
    code.write_text(f"from pathlib import Path\nPath({str(marker)!r}).mkdir()\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(
        json.dumps({"config": {"model": None}, "origin": {"network": f"python:{code}:net"}})
    )
    save_file({"weight": torch.zeros(2, 2)}, run / "model.safetensors")
    with pytest.raises(ValueError, match="not run because a file says so"):
        load_model(run)
    assert not marker.exists()

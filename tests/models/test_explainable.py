"""B-cos and X-DNN networks as any other: trained from the command line's names, saved, loaded, gone on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ipg.config import RunConfig
from ipg.data.table import ImageTable
from ipg.models import build_model, load_model, save_weights
from ipg.training.loop import train
from ipg.training.materials import gather


@pytest.fixture(autouse=True)
def _seed(own_random_state: None, one_thread: None) -> None:
    """One seed and one thread."""


@pytest.mark.parametrize("name", ["bcos_small_cnn", "xdnn_small_cnn", "bcos_resnet18", "xdnn_resnet18"])
def test_a_file_names_its_network(name: str, tmp_path: Path) -> None:
    model = build_model(name, channels=2, classes=3).eval()
    save_weights(tmp_path / "w.safetensors", model)
    before = torch.get_rng_state()
    again = load_model(tmp_path / "w.safetensors", classes=3)
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.rand(2, 2, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("name", ["bcos_small_cnn", "xdnn_small_cnn"])
def test_a_run_is_trained_read_back_and_gone_on_from(
    name: str, make_table: Callable[..., ImageTable], tmp_path: Path
) -> None:
    table = make_table()
    config = RunConfig(method="erm", model=name, device="cpu", epochs=2, batch=32, held_out_pairs=0)
    outcome = train(config, gather(config, table=table), folder=tmp_path / "run")
    losses = [row["train"]["task_loss"] for row in outcome.rows]
    assert losses[1] < losses[0]
    found = load_model(tmp_path / "run")
    for key, value in outcome.model.state_dict().items():
        assert torch.equal(found.state_dict()[key], value)
    again = config.with_changes(start=str(tmp_path / "run"), model=None, epochs=1)
    train(again, gather(again, table=table), folder=tmp_path / "further")
    further = load_model(tmp_path / "further")
    assert type(further) is type(outcome.model)
    assert further.name == name


def test_weights_of_something_else(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.safetensors", build_model("bcos_small_cnn", channels=3, classes=2))
    with pytest.raises(ValueError, match=r"w\.safetensors does not fit bcos_resnet18"):
        build_model("bcos_resnet18", channels=3, classes=2, weights=str(tmp_path / "w.safetensors"))

"""The whole way with files of images: a table, pairs from a file, a network of timm's, crops and flips."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stopping import stop_at

from ipg.config import RunConfig
from ipg.experiments.arms import arms_of
from ipg.experiments.study import Study, Trial
from ipg.experiments.trial import run_trial
from ipg.training.interrupt import Interrupted
from ipg.training.loop import train
from ipg.training.materials import gather

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")

SIZE = 32
SPLITS = {"train": 24, "validation": 8, "test": 8}


def picture(place: Path, label: int, attribute: int, seed: int) -> str:
    """Stripes across or down, on red or blue."""
    noise = np.random.default_rng(seed).integers(0, 60, (SIZE, SIZE, 3))
    stripes = (np.arange(SIZE) // 4 % 2 * 100)[:, None, None]
    image = noise + (stripes if label else stripes.swapaxes(0, 1))
    image[..., 0 if attribute else 2] += 90
    Image.fromarray(image.astype(np.uint8)).save(place)
    return place.name


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images, a table of them, and pairs of both splits beside it."""
    monkeypatch.setenv("IPG_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "photos"
    (home / "pairs" / "images").mkdir(parents=True)
    lines, pairs, seed = ["path,label,attribute,split"], ["first,second,label,split"], 0
    for split, count in SPLITS.items():
        for number in range(count):
            seed += 1
            label = number % 2
            attribute = label if split == "train" else number // 2 % 2
            name = picture(home / f"{split}{number}.png", label, attribute, seed)
            lines.append(f"{name},{['across', 'down'][label]},{['blue', 'red'][attribute]},{split}")
            if split != "test" and number < 6:
                other = picture(home / "pairs" / "images" / name, label, 1 - attribute, seed)
                pairs.append(f"data:{name},images/{other},{['across', 'down'][label]},{split}")
    (home / "photos.csv").write_text("\n".join(lines) + "\n")
    (home / "pairs" / "manifest.csv").write_text("\n".join(pairs) + "\n")
    return home


@pytest.fixture
def config(photos: Path) -> RunConfig:
    return RunConfig(
        data=str(photos / "photos.csv"), data_path=str(photos), size=SIZE, model="test_resnet", pairs="pairs",
        pair_batch=4, every=2, epochs=2, batch=8, learning_rate=1e-3, crop=0.7, flip=True, device="cpu",
        selection="worst_group",
    )  # fmt: skip


def test_from_files_to_a_model(config: RunConfig) -> None:
    made = gather(config)
    assert made.pairs is not None
    assert made.held_out is not None
    assert (len(made.pairs), len(made.held_out)) == (6, 6)  # of a manifest found beside the data
    assert made.table.names is not None
    outcome = train(config, made)
    assert set(outcome.rows[-1]["test"]["groups"]) == {"across, blue", "across, red", "down, blue", "down, red"}
    assert outcome.rows[-1]["pair_disagreement"] is not None
    assert outcome.rows[-1]["train"]["disagreement"] >= 0


def test_the_same_bits_after_a_stop(config: RunConfig, tmp_path: Path) -> None:
    """Views are drawn from generators whose state is in the checkpoint."""
    expected = train(config, gather(config)).model.state_dict()
    with stop_at(4), pytest.raises(Interrupted):
        train(config, gather(config), folder=tmp_path / "run")
    found = train(config, gather(config), folder=tmp_path / "run").model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_views_change_what_is_learnt(config: RunConfig) -> None:
    plain = config.with_changes(crop=1.0, flip=False)
    one, other = (train(each, gather(each)).model.state_dict() for each in (config, plain))
    assert not all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_row_tells_the_number_of_pairs_and_their_file(config: RunConfig) -> None:
    trial = Trial("photos", "photos", "ipg", "paper", 0, config)
    row = run_trial(trial)
    assert (row["config"]["pairs"], row["config"]["pair_file"]) == (6, "pairs")
    study = Study("photos", (trial,), "test")
    (arm,), unknown = arms_of(study, [row])
    assert len(arm.rows) == 1
    assert unknown == []
    assert arm.config["pairs"] == 6
    (bare,), _ = arms_of(study, [])
    assert bare.config["pairs"] == "pairs"  # until a row tells


def test_photographs_need_a_network_of_their_kind(config: RunConfig) -> None:
    with pytest.raises(ValueError, match=r"images of 64 pixels need a network .* --model resnet50 --weights pre"):
        gather(config.with_changes(model=None, size=64))


def test_pairs_that_are_nowhere(config: RunConfig) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        gather(config.with_changes(pairs="nowhere"))


def test_plain_training_needs_no_pairs(config: RunConfig) -> None:
    made = gather(config.with_changes(method="erm", pairs=40))
    assert made.pairs is None
    assert made.held_out is None
    with pytest.raises(ValueError, match=r"with 3 channels: .* e\.g\. ipg pairs build background"):
        gather(config.with_changes(pairs=40))


@pytest.mark.parametrize("method", ["erm", "ipg", "groupdro"])
def test_statistics_are_kept_by_every_method(config: RunConfig, method: str) -> None:
    """Of a network with BatchNorm, whose `train()` would update them."""
    given = config.with_changes(method=method, batch_norm="eval", epochs=1)
    made = gather(given)
    before = {name: value.clone() for name, value in made.model.state_dict().items() if "running" in name}
    after = train(given, made).model.state_dict()
    assert before
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    moved = train(given.with_changes(batch_norm="train"), gather(given)).model.state_dict()
    assert not all(torch.equal(value, moved[name]) for name, value in before.items())

"""Runs whose network code of the user's makes: they can be used where the user names it, and nowhere else."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from torch import nn

NETWORK = "python:mine.py:make"
CODE = """
from torch import nn

def make():
    open("was_run", "a").close()
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2))

def other():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))
"""


@pytest.fixture
def mine(ipg, photos: Path, tmp_path: Path) -> str:
    """What the training of such a run ends with; the run is in `own run`."""
    (tmp_path / "mine.py").write_text(CODE)
    line = ["train", "--data", photos / "photos.csv", "--size", 16, "--method", "erm", "--epochs", 1, "--batch", 8]
    done = ipg(*line, "--from", NETWORK, "--output", "own run")
    assert done.code == 0, done
    (tmp_path / "was_run").unlink()
    return str(done.out.splitlines()[-1])


def test_training_ends_with_a_command_that_works(ipg, mine: str, tmp_path: Path) -> None:
    assert mine == f"The run is in own run. See it with: ipg report 'own run' --network {NETWORK}"
    done = ipg("evaluate", "own run", "--network", NETWORK, "--json")
    assert done.code == 0, done
    kept = json.loads((tmp_path / "own run" / "result.json").read_text())["metrics"]
    measured = json.loads(done.out)["own run"]["data"]
    assert measured["split"] == "test"
    assert measured["average"]["share"] == kept["average"]
    assert {name: group["share"] for name, group in measured["groups"].items()} == {
        name: group["accuracy"] for name, group in kept["groups"].items()
    }


def test_predictions_are_those_of_the_trained_weights(ipg, mine: str, photos: Path, tmp_path: Path) -> None:
    assert ipg("predict", "own run", photos / "photos.csv", "--network", NETWORK).code == 0
    with (photos / "photos.csv").open(newline="") as truth, Path("predictions.csv").open(newline="") as said:
        both = list(zip(csv.DictReader(truth), csv.DictReader(said), strict=True))
    right = [told["predicted"] == row["label"] for row, told in both if row["split"] == "test"]
    kept = json.loads((tmp_path / "own run" / "result.json").read_text())["metrics"]
    assert sum(right) / len(right) == kept["average"]


def test_it_can_be_exported(ipg, mine: str) -> None:
    done = ipg("export", "own run", "--network", NETWORK, "--output", "there", "--format", "torch")
    assert done.code == 0, done
    assert "model.pt2: logits of 16 images differ by" in done.out
    card = next(Path("there").glob("*.md")).read_text(encoding="utf-8")
    snippet = card.partition("`weights.safetensors` holds")[2].partition("```python\n")[2].partition("```")[0]
    found: dict[str, object] = {}
    exec(snippet.replace('"weights.safetensors"', '"there/weights.safetensors"'), found)
    assert isinstance(found["model"], nn.Sequential)


@pytest.mark.parametrize(
    "line", [["evaluate", "own run"], ["predict", "own run", "."], ["export", "own run"], ["report", "own run"]]
)
def test_code_is_not_run_because_a_folder_says_so(assert_refused, mine: str, line: list[str]) -> None:
    remedy = f"to have it run, add --network {NETWORK}"
    assert_refused(*line, says=("is made by your code, which is not run because a folder says so", remedy))
    assert not Path("was_run").exists()


def test_it_stands_in_a_report_beside_others(ipg, mine: str, photos: Path, tmp_path: Path) -> None:
    done = ipg("report", "own run", "--network", NETWORK)
    assert done.code == 0, done
    kept = json.loads((tmp_path / "own run" / "result.json").read_text())["metrics"]
    assert f"{100 * kept['average']:.1f}" in Path("report.html").read_text(encoding="utf-8")


def test_a_function_that_does_not_fit(assert_refused, mine: str, photos: Path) -> None:
    line = ("predict", "own run", photos / "images", "--network")
    assert_refused(*line, "python:mine.py:other", says=("makes another network than that of own run",))
    assert_refused(*line, "mine.py:make", says=("expected python:FILE:FUNCTION",))
    assert_refused(*line, "python:mine.py:none", says=("has no 'none'",))


def test_a_function_that_is_not_needed(assert_refused, mine: str, photos: Path) -> None:
    says = ("knows how to make its network; leave --network",)
    assert_refused("predict", photos / "plain", photos / "images", "--network", NETWORK, says=says)
    assert_refused("predict", photos, photos / "images", "--network", NETWORK, says=("is not the folder of a run",))
    assert_refused("report", photos / "plain", "--network", NETWORK, says=says)
    both = ("evaluate", "own run", photos / "plain", "--network", NETWORK)
    assert_refused(*both, says=("--network makes the network of one run",))
    assert not Path("was_run").exists()

"""That the benchmarks run and say what they have to; no time is judged here."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ipg.benchmarks.gpu import noise, ours
from ipg.benchmarks.pretrained import CASES
from ipg.benchmarks.run import BENCHMARKS, chosen, place, run
from ipg.benchmarks.steps import Kind
from ipg.models import build_model

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_state")

KEYS = {"benchmark", "case", "value", "unit", "baseline", "ratio", "hardware", "versions", "commit", "date"}
CPU = torch.device("cpu")


def quick(name: str) -> list[dict[str, Any]]:
    """The rows of a benchmark at tiny sizes, after what holds of all of them was checked."""
    rows = list(run(name, CPU, quick=True))
    assert rows
    assert all(row.keys() >= KEYS for row in rows)
    assert all(row["benchmark"].split()[0] == name for row in rows)
    keys = [(row["benchmark"], row["case"], row["baseline"]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert all(row["value"] > 0 for row in rows)
    assert all((row["baseline"] is None) == (row["ratio"] is None) for row in rows)
    cases = {(row["benchmark"], row["case"]) for row in rows}
    assert all((row["benchmark"], row["baseline"]) in cases for row in rows if row["baseline"])
    return rows


def test_distances_naive_ones_hold_every_number_of_every_rationale() -> None:
    memory = {row["case"]: row["value"] * 2**20 for row in quick("distances") if row["unit"] == "MiB"}
    assert memory["B16 D32 K8 naive"] >= 16 * 32 * 8 * 4
    assert memory["B16 D32 K8 scaled features"] < memory["B16 D32 K8 naive"]
    assert "B16 D32 K64 scaled features" in memory
    assert "B16 D32 K64 naive" not in memory


def test_steps_stand_beside_the_papers_estimate() -> None:
    ideals = {row["case"]: row["ideal"] for row in quick("steps") if row["ideal"]}
    expected = {"ipg b8": 3.0, "ipg b2": 1.5, "ipg b2 every4": 1.125}  # 1 + 2 B_I / (k B_D) at B_D = 8
    assert ideals == {
        f"{model} {kind}": ideal for model in ("small_cnn", "mnist_cnn") for kind, ideal in expected.items()
    }


def test_loops_are_compared_method_by_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IPG_MNIST", raising=False)
    baselines = [(row["case"], row["baseline"]) for row in quick("loops") if row["baseline"]]
    name = "colored_fashion_noisy small_cnn"
    assert baselines[:3] == [
        (f"{name} ours erm", f"{name} plain erm, tensors"),
        (f"{name} ours erm", f"{name} plain erm, pictures"),
        (f"{name} ours ipg", f"{name} plain ipg, tensors"),
    ]
    assert len(baselines) == 6


def test_growth_varies_one_size_at_a_time() -> None:
    rows = quick("growth")
    assert {row["case"].split("=")[0] for row in rows} == {
        "batch", "pair_batch", "pairs", "classes", "features", "side",
    }  # fmt: skip
    ideals = {row["case"]: row["ideal"] for row in rows if row["baseline"]}
    assert ideals["batch=32 ipg"] == 1.25  # 1 + 2 · 4 / 32
    assert ideals["pair_batch=16 ipg"] == 5.0
    assert ideals["side=20 ipg"] == 2.0


def test_evaluation_and_startup() -> None:
    assert {row["unit"] for row in quick("evaluation")} == {"images/s"}
    assert {row["case"] for row in quick("startup")} >= {"python", "ipg --help"}


def test_loading_is_compared_with_images_that_are_ready() -> None:
    rows = {row["case"]: row for row in quick("loading")}
    assert rows.keys() == {"small_cnn ready", "small_cnn resident"}  # nothing is streamed to the machine itself
    assert rows["small_cnn resident"]["baseline"] == "small_cnn ready"
    values = [rows[f"small_cnn {case}"]["value"] for case in ("resident", "ready")]
    assert rows["small_cnn resident"]["ratio"] == pytest.approx(values[0] / values[1])


@pytest.mark.slow
def test_threads_are_measured_in_processes_of_their_own_beside_others_and_without() -> None:
    baselines = {row["case"]: row["baseline"] for row in quick("threads")}
    waits = ("sleeping", "one thread")
    assert {case: baseline for case, baseline in baselines.items() if baseline} == {
        f"{state} {wait}": f"{state} spinning" for state in ("idle", "busy") for wait in waits
    }


def test_a_gpu_is_not_measured_where_there_is_none() -> None:
    assert list(run("gpu", CPU, quick=True)) == list(run("pretrained", CPU, quick=True)) == []


@pytest.mark.parametrize("kind", CASES["mobilenetv2_100"], ids=lambda kind: kind.name)
def test_what_a_gpu_is_measured_with_runs(kind: Kind) -> None:
    """Here on a CPU, with a network without norms and images of few pixels."""
    model = build_model("small_cnn", channels=2, classes=2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    ours(kind, model, noise(2, 8), CPU, engine="eager", precision="fp32")(2)
    assert any(not torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))


def test_every_benchmark_is_tested_here() -> None:
    here = {"distances", "steps", "loops", "growth", "gpu", "pretrained", "loading", "evaluation", "startup", "threads"}
    assert set(BENCHMARKS) == here


def test_names_are_those_there_are() -> None:
    assert chosen(None) == chosen([]) == list(BENCHMARKS)
    assert chosen(["steps"]) == ["steps"]
    with pytest.raises(ValueError, match="no benchmark 'step'; there are distances, steps"):
        chosen(["steps", "step"])


@pytest.mark.parametrize("name", ["startup", "threads"])
def test_processes_are_measured_on_the_cpu(name: str) -> None:
    assert place(name, torch.device("meta")) == CPU


def test_others_are_measured_where_they_are_asked_to_be() -> None:
    assert place("steps", torch.device("meta")) == torch.device("meta")

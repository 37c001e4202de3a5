"""Figures in the words of hand-written pages are those that rows give."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from ipg.benchmarks.rows import newest, read
from ipg.evaluation.selection import pairs
from ipg.models import build_model

COMMITS = ("5ccd877", "2abc9ed")
"""Before the kernels of `ipg.models.fused` and after."""


def words(root: Path, name: str) -> str:
    return " ".join((root / "docs" / name).read_text(encoding="utf-8").split())


def rows_of(root: Path, study: str) -> list[dict[str, Any]]:
    lines = (root / "results" / study / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def gigaflops(name: str, size: int, batch: int = 128) -> float:
    """Of the convolutions in a step of plain training; taps on the border are not counted."""
    model, found = build_model(name, channels=2, classes=2, size=size).eval(), []

    def count(layer: nn.Module, given: tuple[Tensor], out: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        assert isinstance(layer.padding, tuple)
        side, stride, padding = given[0].shape[-1], layer.stride[0], layer.padding[0]
        taps = [place * stride - padding + tap for place in range(out.shape[-1]) for tap in range(layer.kernel_size[0])]
        inside = sum(0 <= tap < side for tap in taps)
        found.append(2 * inside**2 * layer.in_channels * layer.out_channels)

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(count)
    model(torch.rand(1, 2, size, size))
    return batch * (3 * sum(found) - found[0]) / 1e9


def test_what_a_core_does_in_a_second_follows_from_the_rows(repo_root: Path) -> None:
    rows = newest(read(repo_root / "results" / "speed.jsonl"), "AMD EPYC, 1 threads")
    values = {case: row["value"] for (benchmark, case, _, _), row in rows.items() if benchmark == "spuco"}
    large, small = gigaflops("mnist_cnn", 28), gigaflops("small_cnn", 14)

    def rate(case: str, work: float) -> str:
        return f"{values[f'colored_mnist {case}'] / 128 * work:.0f}"

    text = words(repo_root, "speed.md")
    assert f"of `mnist_cnn` (28 pixels) take {large:.0f} GFLOP and those of `small_cnn` (14 pixels) {small:.2f}" in text
    whole, half = (rate(f"mnist_cnn ours ERM{more}", round(large)) for more in ("", " bf16"))
    assert f"`mnist_cnn` as written does {whole} GFLOP/s in fp32 and {half} in bf16" in text
    written = [rate(f"small_cnn ours ERM{more}", round(small, 2)) for more in ("", " bf16")]
    compiled = [rate(f"small_cnn ours ERM compiled{more}", round(small, 2)) for more in ("", " bf16")]
    assert f"does only {' and '.join(written)}, and compiled {' and '.join(compiled)}." in text


def test_what_keeps_a_correction_from_the_ideal_follows_from_the_rows(repo_root: Path) -> None:
    rows = newest(read(repo_root / "results" / "speed.jsonl"), "NVIDIA H200")
    step = rows["gpu", "resnet50 erm", "ms", None]["value"]
    few, many = (rows["gpu", f"resnet50 ipg b{n}", "ms", "resnet50 erm"] for n in (32, 128))
    each = (many["value"] - few["value"]) / 192
    fixed = few["value"] - step - 64 * each
    text = words(repo_root, "speed.md")
    assert f"a correction of n images takes {fixed:.1f} + {each:.3f} n ms" in text
    assert f"a plain iteration {step - 128 * each:.1f} + {each:.3f} n" in text
    seldom = rows["gpu", "resnet50 ipg b32 every4", "ms", "resnet50 erm"]["ratio"]
    assert f"32 pairs cost {few['ratio']:.2f} times plain training and not 1.5" in text
    assert f"one correction in four {seldom:.2f} and not 1.125" in text


def test_what_fused_kernels_save_is_in_the_rows_of_two_commits(repo_root: Path) -> None:
    lines = (repo_root / "results" / "speed.jsonl").read_text(encoding="utf-8").splitlines()
    found = {
        (row["commit"][:7], row["case"]): row["value"]
        for row in map(json.loads, lines)
        if row["benchmark"] == "gpu" and row["unit"] == "ms"
    }
    before, after = ([found[commit, f"mnist_cnn {case}"] for case in ("ipg b128", "erm")] for commit in COMMITS)
    text = words(repo_root, "speed.md")
    assert f"from {before[0]:.2f} to {after[0]:.2f} ms (compiled; 384 images)" in text
    assert (
        f"plain training from {before[1]:.2f} to {after[1]:.2f} (rows of commits `{'` and `'.join(COMMITS)}`)" in text
    )


def test_the_two_batch_norm_policies_on_birds_are_those_of_the_rows(repo_root: Path) -> None:
    same = {"pairs": 124, "pair_batch": 124, "alpha": 0.1, "every": 1, "epochs": 6, "learning_rate": 1e-4,
            "margin": "0.85x", "crop": 0.7}  # fmt: skip
    told = []
    for policy in ("eval", "train"):
        rows = [
            row["metrics"]
            for row in rows_of(repo_root, "waterbirds100_tuning")
            if (row["dataset"], row["protocol"]) == ("waterbirds100", "tuning")
            and {**same, "batch_norm": policy}.items() <= row["config"].items()
        ]
        one, two = (f"{100 * row['worst_group']:.1f}" for row in rows)
        told.append((one, two, f"{100 * mean(row['average'] for row in rows):.1f}"))
    (a, b, c), (d, e, f) = told
    text = words(repo_root, "models.md")
    assert (
        f"`eval` has a worst group of {a} and {b} % at an average of {c} %; `train` has {d} and {e} % at {f} %" in text
    )


def test_margins_of_other_networks_are_those_of_the_rows(repo_root: Path) -> None:
    scores: dict[tuple[str, ...], list[float]] = {}
    right: dict[str, list[float]] = {"train": [], "eval": []}
    apart: dict[str, list[float]] = {"train": [], "eval": []}
    for row in rows_of(repo_root, "margin_networks"):
        config, found = row["config"], row["metrics"]
        (score,) = pairs({"validation": found, "pair_disagreement": found["pair_disagreement"]})
        assert score is not None
        kind = (config["model"], row["dataset"] if config["model"] == "small_vit" else config["batch_norm"])
        scores.setdefault((config["margin"], *kind), []).append(100 * score)
        if config["model"] == "test_resnet":
            right[config["batch_norm"]].append(100 * found["average"])
            apart[config["batch_norm"]].append(100 * found["pair_disagreement"])
    text = (repo_root / "docs" / "models.md").read_text(encoding="utf-8")
    lines = text.split("\n| margin | `small_vit`")[1].splitlines()[2:6]
    kinds = [("small_vit", "colored_fashion"), ("small_vit", "colored_fashion_noisy"), ("test_resnet", "train"),
             ("test_resnet", "eval")]  # fmt: skip
    for line in lines:
        margin, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert cells == [f"{mean(scores[margin, *kind]):.1f}" for kind in kinds], margin
    least, most = (f"{min(right[one]):.0f} to {max(right[one]):.0f}" for one in ("train", "eval"))
    plain = words(repo_root, "models.md")
    assert f"({least} % against {most})" in plain
    assert f"but {min(apart['train']):.0f} to {max(apart['train']):.0f} % of held-out pairs still disagree" in plain
    assert f"(`eval`) {min(apart['eval']):.0f} to {max(apart['eval']):g} % do" in plain


def test_what_sleeping_threads_cost_and_save_is_what_the_rows_have(repo_root: Path) -> None:
    rows = newest(read(repo_root / "results" / "speed.jsonl"), "AMD EPYC, 2 threads")
    of = {case: row for (benchmark, case, _, _), row in rows.items() if benchmark == "threads"}
    cost, saved = (of["idle sleeping"]["ratio"] - 1, 1 - of["busy sleeping"]["ratio"])
    high = [of[f"busy {wait}"]["high"] for wait in ("spinning", "sleeping")]
    text = words(repo_root, "speed.md")
    assert f"Sleeping costs {cost:.0%} where nothing else runs and saves {saved:.0%}".replace("%", " %") in text
    assert f"upper quartile falls from {high[0]:.0f} to {high[1]:.0f} ms" in text

"""Every example runs as its user would run it, and shows what it claims to show."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

SCRIPTS = {"plain_loop": None, "own_backward": None, "lightning_module": "lightning", "accelerate_loop": "accelerate"}
"""Each example, and the package it needs beside the project's own."""


IN_FP16 = """
from lightning.pytorch.plugins.precision import MixedPrecision

half = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", plugins=[half], logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
toy = make_toy()
lightning.seed_everything(0, verbose=False)
module = Guided(toy.pairs)
trainer.fit(module, DataLoader(TensorDataset(toy.x, toy.y), batch_size=64, shuffle=True))
show("in fp16", module.model, toy)
"""
AFTERWARDS = {"lightning_module": IN_FP16}
"""What is run with the names of an example once that has run: to import its package takes longer."""


@pytest.fixture(scope="module")
def said(repo_root: Path) -> Callable[[str], str]:
    """What an example prints, and what is run afterwards."""

    @cache
    def run(name: str) -> str:
        package = SCRIPTS[name]
        if package is not None and importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
        script = repo_root / "examples" / f"{name}.py"
        more = AFTERWARDS.get(name)
        done = subprocess.run(
            [sys.executable, "-c", WITH_MORE, str(script), more] if more else [sys.executable, str(script)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # tiny networks: threads only wait for each other
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


WITH_MORE = """
import pathlib, runpy, sys

sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent))
names = runpy.run_path(sys.argv[1], run_name="__main__")
exec(sys.argv[2], names)
"""


def shifted_accuracy(output: str, name: str) -> float:
    """The percentage an example prints for the test in which the shortcut misleads."""
    found = re.search(rf"^{name}\s+training images\s+([\d.]+)%\s+patch moved\s+([\d.]+)%$", output, re.MULTILINE)
    assert found, output
    assert float(found[1]) > 95, "both models learn their training images"
    return float(found[2])


def test_every_example_is_tested(repo_root: Path) -> None:
    scripts = {path.stem for path in (repo_root / "examples").glob("*.py")}
    assert scripts - {"toy", "make_scenes"} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_plain_training_leans_on_the_shortcut_and_guided_training_does_not(
    said: Callable[[str], str], name: str
) -> None:
    output = said(name)
    assert shifted_accuracy(output, "plain") < 20
    assert shifted_accuracy(output, "guided") > 90
    if name == "lightning_module":  # two updates an iteration, one of them counted: 6 epochs of 1024 / 64 batches
        assert "global_step 96, iterations 96" in output


def test_the_lightning_module_trains_in_fp16(said: Callable[[str], str]) -> None:
    """Lightning scales and unscales the task gradient by itself; to give it its length in between taught nothing."""
    assert shifted_accuracy(said("lightning_module"), "in fp16") > 90


def test_the_loop_diff_of_the_plain_example_is_the_code_below_it(repo_root: Path) -> None:
    """The docstring shows a diff; both of its sides must be lines of the two functions."""
    text = (repo_root / "examples" / "plain_loop.py").read_text(encoding="utf-8")
    docstring, code = text.split('"""')[1], text.split('"""')[2]
    plain, guided = code.split("def guided")
    diff = re.findall(r"^ {4}([ +-]) (.+)$", docstring, re.MULTILINE)
    assert len(diff) == 9
    for sign, line in diff:
        for side in {" ": (plain, guided), "-": (plain,), "+": (guided,)}[sign]:
            assert line.strip() in side, f"{sign}{line}"

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

from ipg.experiments.store import read_rows

SCRIPTS = {
    "plain_loop": None,
    "own_backward": None,
    "lightning_module": "lightning",
    "accelerate_loop": "accelerate",
    "hugging_face_trainer": "transformers",
}
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
RESUMED = """
import tempfile
from pathlib import Path

ways = []
with tempfile.TemporaryDirectory() as folder:
    file = str(Path(folder, "half.ckpt"))
    for stop, start in ((2, None), (1, None), (2, file)):
        trainer = lightning.Trainer(
            max_epochs=stop, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )
        lightning.seed_everything(0, verbose=False)
        module = Guided(toy.pairs)
        trainer.fit(module, DataLoader(TensorDataset(toy.x, toy.y), batch_size=48), ckpt_path=start)
        trainer.save_checkpoint(file)
        ways.append(module)
whole, _, resumed = ways
same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
print("resumed at iteration", resumed.saved["guide"]["iteration"], "of", resumed.guide.iteration, "same bits", same)
"""
ACCUMULATED = """
found = []
for size, options in ((128, {}), (32, {"accumulate_grad_batches": 4}), (32, {"accumulate_grad_batches": 4} | CLIPPED)):
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )
    lightning.seed_everything(0, verbose=False)
    module = Guided(toy.pairs).double()
    double = ipg.Pairs(toy.pairs.first.double(), toy.pairs.second.double(), toy.pairs.label)
    module.pairs = double
    trainer.fit(module, DataLoader(TensorDataset(toy.x.double(), toy.y), batch_size=size))
    found.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
    steps = trainer.global_step, module.guide.iteration
whole, parts, clipped = found
same, shorter = torch.allclose(whole, parts, rtol=1e-9), not torch.equal(parts, clipped)
print("in parts", steps, "as a whole", same, "clipped", shorter)
"""
CLIPPED = "CLIPPED = {'gradient_clip_val': 1e-4}"
AFTERWARDS = {"lightning_module": "\n".join([IN_FP16, RESUMED, CLIPPED, ACCUMULATED])}
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
    assert scripts - {"toy", "make_scenes", "own_method"} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_plain_training_leans_on_the_shortcut_and_guided_training_does_not(
    said: Callable[[str], str], name: str
) -> None:
    output = said(name)
    assert shifted_accuracy(output, "plain") < 20
    assert shifted_accuracy(output, "guided") > 90
    if name in ("lightning_module", "hugging_face_trainer"):
        # two updates an iteration, one of them counted: 6 epochs of 1024 / 64 batches
        assert "global_step 96, iterations 96" in output


def test_the_lightning_module_trains_in_fp16(said: Callable[[str], str]) -> None:
    """Lightning scales and unscales the task gradient by itself; to give it its length in between taught nothing."""
    assert shifted_accuracy(said("lightning_module"), "in fp16") > 90


def test_the_lightning_module_goes_on_from_a_checkpoint(said: Callable[[str], str]) -> None:
    assert "resumed at iteration 22 of 44 same bits True" in said("lightning_module")


def test_the_lightning_module_accumulates_and_clips(said: Callable[[str], str]) -> None:
    """A correction and a rescaling for each update of Lightning's, which clips what it really applies."""
    assert "in parts (8, 8) as a whole True clipped True" in said("lightning_module")


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


@pytest.mark.slow
def test_a_method_of_ones_own_is_under_the_command_and_in_its_workers(repo_root: Path, tmp_path: Path) -> None:
    script = str(repo_root / "examples" / "own_method.py")
    line = "compare --methods erm,logit_pairing --seeds 1 --epochs 2 --workers 2 --device cpu -o logit_pairing.weight=2"
    done = subprocess.run(
        [sys.executable, script, *line.split(), "--output", str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["method"]: row for row in read_rows(tmp_path / "trials.jsonl")}
    assert rows["logit_pairing"]["config"]["weight"] == 2
    disagree = {name: row["metrics"]["pair_disagreement"] for name, row in rows.items()}
    assert disagree["erm"] > 0.9
    assert disagree["logit_pairing"] < 0.3

"""Ten ColoredMNIST trials of guided training with the paper's settings on one GPU, from start to end.

    python benchmarks/ten_trials.py --mnist mnist.npz --results runs/ten --write results/speed.jsonl

Trials of the study `colored_mnist_bf16`, 18 epochs each, each evaluated. Reading the data, making the pairs, capturing
iterations and keeping the rows are counted. Before them every process makes one shorter trial of the same kind, in
which the network is compiled and its kernels are chosen: starting the processes and that are given apart. Several
processes run side by side where there is NVIDIA's Multi-Process Service, and take turns elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from ipg.benchmarks.measure import Measurement
from ipg.benchmarks.rows import append, row
from ipg.experiments.attempt import Job
from ipg.experiments.progress import View
from ipg.experiments.runner import Place, place
from ipg.experiments.store import Store, read_rows
from ipg.experiments.study import Trial, find_study
from ipg.experiments.trial import run_trial
from ipg.training.device import LONG
from ipg.words import number_of

WARM_UP = "warm-up"
SEED = 1000
"""Of the first of the shorter trials."""
TRAINING_IMAGES = 37_335


def main(arguments: Sequence[str] | None = None) -> int:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mnist", required=True, help="MNIST as npz or folder")
    parser.add_argument("--results", type=Path, required=True, help="folder for the rows of the trials; must be empty")
    parser.add_argument("--workers", type=int, default=5, help="processes on the GPU (5)")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a try (cuda)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="append rows to FILE")
    given = parser.parse_args(arguments)
    if read_rows(given.results / "trials.jsonl"):
        parser.error(f"{given.results} holds rows already: trials that are done would not be run")
    study = find_study("colored_mnist_bf16")
    trials = [trial.on(given.device, data_path=given.mnist) for trial in study.trials]
    short = [shorter(trial, number) for number, trial in enumerate(trials[: given.workers])]
    with tempfile.TemporaryDirectory() as aside:
        stores = {study.name: Store(given.results, study.metrics_split), WARM_UP: Store(Path(aside))}
        job = Job(stores, study.metrics_split, run_trial)
        with View(Console(), stores, name=study.name, missing=len(short) + len(trials)) as view:
            start = time.perf_counter()
            with place(job, view, len(trials), given.device, given.workers, None) as where:
                work_off(where, short, view)
                ready = time.perf_counter()
                work_off(where, trials, view)
                end = time.perf_counter()
    if view.failed:
        parser.error(f"{number_of(view.failed, 'trial')} failed: there is nothing to report")
    how = ", one after the other" if given.workers == 1 else ""
    for case, value in (
        (f"ten colored_mnist trials{how}", end - ready),
        (f"compiling and capturing for them{how}", ready - start),
    ):
        print(f"{case}: {value:.1f} s")
        found = Measurement(benchmark="trials", case=case, value=value, unit="s", low=value, high=value, rounds=1)
        if given.write is not None:
            append(given.write, row(found, torch.device(given.device)))
    return 0


def shorter(trial: Trial, number: int) -> Trial:
    """A trial of the same kind with another seed, just long enough for all kernels to be tried as in a long one."""
    epochs = -(-LONG * trial.config.batch // TRAINING_IMAGES)
    config = trial.config.with_changes(seed=SEED + number, epochs=epochs)
    return replace(trial, study=WARM_UP, seed=SEED + number, config=config, known_as=None)


def work_off(where: Place, trials: Sequence[Trial], view: View) -> None:
    """Have all trials attempted."""
    by_key = {trial.key: trial for trial in trials}
    for ended in where.run(trials):
        view.ended(by_key[ended.key], ended)


if __name__ == "__main__":
    sys.exit(main())

"""Ten ColoredMNIST trials of guided training with the paper's settings on one GPU, from start to end.

    python benchmarks/ten_trials.py --mnist mnist.npz --results results/colored_mnist_bf16 --write results/speed.jsonl

Trials of the study `colored_mnist_bf16`, one after the other in this process: 18 epochs each, each evaluated. Loading
the data, making the pairs and keeping the rows are counted; compiling and capturing are given apart.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ipg.benchmarks.measure import Measurement
from ipg.benchmarks.rows import append, row
from ipg.experiments.runner import read_rows, run_study
from ipg.experiments.study import find_study


def main(arguments: Sequence[str] | None = None) -> int:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mnist", required=True, help="MNIST as npz or folder")
    parser.add_argument("--results", type=Path, required=True, help="folder for the rows of the trials; must be empty")
    parser.add_argument("--write", type=Path, metavar="FILE", help="append rows to FILE")
    given = parser.parse_args(arguments)
    if read_rows(given.results / "trials.jsonl"):
        parser.error(f"{given.results} holds rows already: trials that are done would not be run")
    study = find_study("colored_mnist_bf16")
    start = time.perf_counter()
    tally = run_study(study, given.results, data_path=given.mnist, device="cuda", workers=1)
    total = time.perf_counter() - start
    if tally.done != len(study.trials):
        parser.error(f"{len(study.trials) - tally.done} trials failed: there is nothing to report")
    preparing = sum(found["preparing_seconds"] for found in read_rows(given.results / "trials.jsonl"))
    for case, value in (
        ("ten colored_mnist trials", total - preparing),
        ("compiling and capturing for them", preparing),
    ):
        print(f"{case}: {value:.1f} s")
        found = Measurement(benchmark="trials", case=case, value=value, unit="s", low=value, high=value, rounds=1)
        if given.write is not None:
            append(given.write, row(found, torch.device("cuda")))
    return 0


if __name__ == "__main__":
    sys.exit(main())

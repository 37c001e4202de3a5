"""Runs what is missing of a study and keeps a row a trial, written as it ends."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ipg.evaluation.groups import predict
from ipg.experiments.study import Study, Trial, load_study
from ipg.training.device import autocast_dtype
from ipg.training.loop import train
from ipg.training.materials import gather, suited_model

__all__ = ["read_rows", "run_study", "run_trial"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows in a `trials.jsonl`; none where there is no file. A line cut by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []:
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def run_study(study: Study, results: Path, *, data_path: str | None = None, device: str = "auto") -> int:
    """Run the trials that have no row in `results` yet; returns how many failed."""
    file = results / "trials.jsonl"
    done = {row.get("key") for row in read_rows(file)}
    missing = [trial for trial in study.trials if trial.key not in done]
    print(f"{study.name}: {len(study.trials)} trials, {len(study.trials) - len(missing)} done", flush=True)
    results.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number, trial in enumerate(missing, start=1):
        trial = replace(trial, config=trial.config.with_changes(device=device, data_path=data_path))
        try:
            row = run_trial(trial, metrics_split=study.metrics_split)
        except Exception as error:
            failed += 1
            traceback.print_exc(file=sys.stderr)
            print(f"[{number}/{len(missing)}] {_title(trial)}: failed: {error}", flush=True)
            continue
        _append(file, row)
        average = row["metrics"]["average"]
        print(f"[{number}/{len(missing)}] {_title(trial)}: {average:.4f} in {row['seconds']:.1f} s", flush=True)
    return failed


def run_trial(trial: Trial, *, metrics_split: str = "test") -> dict[str, Any]:
    """Run one trial; a trial whose rows do not report the test split never evaluates it."""
    config = trial.config
    materials = gather(config)
    outcome = train(config, materials, evaluate_on=("validation", metrics_split))
    result = outcome.result
    selected = next(row for row in outcome.rows if row["epoch"] == result["selected_epoch"])
    part = materials.table.part(metrics_split)
    device = next(outcome.model.parameters()).device
    predictions = predict(outcome.model, part.images.to(device), autocast=autocast_dtype(config))
    settled = {name: value for name, value in result["config"].items() if name not in ("device", "data_path", "seed")}
    settled["model"] = config.model or suited_model(materials.table)

    def metrics(row: dict[str, Any]) -> dict[str, Any]:
        return {**row[metrics_split], "pair_disagreement": row["pair_disagreement"]}

    return {
        "key": trial.key,
        "study": trial.study,
        "dataset": trial.dataset,
        "method": trial.method,
        "protocol": trial.protocol,
        "seed": trial.seed,
        "config": {"weights": None, **settled},
        "selection": result["selection"],
        "split": metrics_split,
        "selected_epoch": result["selected_epoch"],
        "metrics": metrics(selected),
        "predictions": _pack(predictions.cpu().numpy(), part.num_classes),
        "last_metrics": metrics(outcome.rows[-1]),
        "curve": [row[metrics_split]["average"] for row in outcome.rows],
        "seconds": result["seconds"],
        **{name: result[name] for name in ("hardware", "versions", "commit", "date")},
    }


def _append(file: Path, row: dict[str, Any]) -> None:
    """Add a row as a line of its own, also after one that a kill has cut."""
    with file.open("a+b") as out:
        if out.tell():
            out.seek(-1, os.SEEK_END)
            if out.read() != b"\n":
                out.write(b"\n")
        out.write((json.dumps(row, ensure_ascii=False) + "\n").encode())


def _pack(predictions: np.ndarray[Any, Any], classes: int) -> str:
    """Predicted classes as base64: eight a byte where there are two classes, else one a byte (at most 256)."""
    packed = np.packbits(predictions.astype(bool)) if classes == 2 else predictions.astype(np.uint8)
    return base64.b64encode(packed.tobytes()).decode()


def _title(trial: Trial) -> str:
    config = trial.config
    pairs = f" {config.pairs} pairs, alpha {config.alpha:g}, every {config.every}" if config.pairs else ""
    options = "".join(f" {name}={value}" for name, value in config.options.items())
    return f"{trial.method}{options} ({trial.protocol}){pairs}, seed {trial.seed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study from the command line."""
    parser = argparse.ArgumentParser(description="Run what is missing of a study.")
    parser.add_argument("study", type=Path, help="study file (TOML)")
    parser.add_argument("--results", type=Path, help="folder of the rows; results/<study> where not given")
    parser.add_argument("--data-path", help="where the data set's files are")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    given = parser.parse_args(arguments)
    study = load_study(given.study)
    results = given.results or Path("results") / study.name
    return 1 if run_study(study, results, data_path=given.data_path, device=given.device) else 0


if __name__ == "__main__":
    sys.exit(main())

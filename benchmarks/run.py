"""Speed and memory, as ratios in one run.

    python benchmarks/run.py                     # all of it; some minutes on a laptop
    python benchmarks/run.py --only steps        # one benchmark
    python benchmarks/run.py --write             # keep what was measured in results/speed.jsonl

Close other programs first, or give --threads 1: threads that wait for each other on a core that is taken make times
a hundredfold. Cases take turns, so their ratios bear some load; their times do not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import distances
import evaluation
import startup
import steps
import torch
from measure import Measurement

from ipg.training.device import resolve_device
from ipg.training.provenance import provenance

BENCHMARKS: dict[str, Callable[..., Iterable[Measurement]]] = {
    "distances": distances.measure,
    "steps": steps.measure,
    "startup": startup.measure,
    "evaluation": evaluation.measure,
}
KEPT = Path(__file__).resolve().parents[1] / "results" / "speed.jsonl"
HEAD = ("case", "median", "unit", "quartiles", "ratio", "to", "ideal")
WIDTHS = (32, 10, 9, 18, 8, 26, 6)


def main(arguments: Sequence[str] | None = None) -> int:
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="this benchmark; may be given again")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--threads", type=int, help="threads of torch on the CPU; 1 where other programs run beside")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run? The figures mean nothing")
    parser.add_argument(
        "--write", nargs="?", type=Path, const=KEPT, metavar="FILE", help="append rows to FILE (results/speed.jsonl)"
    )
    given = parser.parse_args(arguments)
    if given.quick and given.write == KEPT:
        parser.error("the figures of --quick mean nothing: name another file to --write to")
    try:
        device = resolve_device(given.device)
    except (KeyError, ValueError) as error:
        parser.error(str(error))
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    for name in given.only or BENCHMARKS:
        origin = provenance(torch.device("cpu") if name == "startup" else device)
        print(f"\n{name} ({origin['hardware']})\n{_line(HEAD)}", flush=True)
        for found in BENCHMARKS[name](device, quick=given.quick):
            print(_line(_cells(found)), flush=True)
            if given.write is not None:
                _append(given.write, asdict(found) | origin)
    return 0


def _append(file: Path, row: dict[str, object]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps({name: _rounded(value) for name, value in row.items()}, ensure_ascii=False) + "\n")


def _rounded(value: object) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _cells(found: Measurement) -> tuple[str, ...]:
    spread = f"{found.low:.4g} to {found.high:.4g}" if found.low != found.high else ""
    ratio = "" if found.ratio is None else f"{found.ratio:.4g}"
    ideal = "" if found.ideal is None else f"{found.ideal:.4g}"
    return (found.case, f"{found.value:.4g}", found.unit, spread, ratio, found.baseline or "", ideal)


def _line(cells: Sequence[str]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


if __name__ == "__main__":
    sys.exit(main())

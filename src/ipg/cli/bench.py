"""`ipg bench`: speed and memory, as ratios in one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ipg.benchmarks.against import Change, Comparison

__all__ = ["EXAMPLES", "bench"]

EXAMPLES = """
**Examples**

`ipg bench`: all of it; a quarter of an hour on a laptop

`ipg bench steps loops --threads 1`: two benchmarks, on one core

`ipg bench --write results/speed.jsonl`: keep what was measured

`ipg bench steps --against results/speed.jsonl`: what changed by more than the noise
"""


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Which: distances, steps, loops, growth, gpu, pretrained, loading, evaluation, startup, "
            "threads; all by default.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of torch on the CPU; use 1 if other programs are running.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Append rows to this file.", metavar="FILE")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Say what changed since the rows of this file.", metavar="FILE")
    ] = None,
    repeat: Annotated[int, typer.Option(min=2, help="How often to measure for --against.")] = 3,
    fail: Annotated[bool, typer.Option("--fail", help="With --against: exit with 1 if something got worse.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: does it run? The figures mean nothing.")] = False,
) -> None:
    """Measure speed and memory. Cases take turns, so ratios hold under some load; times do not.

    Close other programs first, or give --threads 1: threads wait for each other, and on a busy core that takes longer.
    """
    import torch

    from ipg.benchmarks.against import compare_rows, require
    from ipg.benchmarks.rows import append, read
    from ipg.benchmarks.run import chosen, place, run
    from ipg.training.device import resolve_device
    from ipg.training.provenance import hardware

    if quick and (write or against):
        raise ValueError("the figures of --quick mean nothing: leave out --write and --against")
    if fail and against is None:
        raise ValueError("--fail says what to do about --against FILE, which is missing")
    if write is not None and write.is_dir():
        raise ValueError(f"{write} is a folder; name a file, e.g. --write {write / 'speed.jsonl'}")
    found = resolve_device(device)
    wanted = chosen(names)
    if threads is not None:
        torch.set_num_threads(threads)
    kept = read(against) if against is not None else []
    if against is not None:
        for name in wanted:
            require(kept, hardware(place(name, found)))
    measured: list[dict[str, Any]] = []
    for _ in range(repeat if against is not None else 1):
        for name in wanted:
            typer.echo(f"{name} ({hardware(place(name, found))})")
            before = len(measured)
            for row in run(name, found, quick=quick):
                typer.echo(f"  {_line(row)}")
                measured.append(row)
                if write is not None:
                    append(write, row)
            if len(measured) == before:
                typer.echo("  nothing to measure on this device")
    if against is not None:
        comparison = compare_rows(measured, kept)
        typer.echo("\n".join(_moved(comparison, repeat)))
        if fail and any(change.worse for change in comparison.moved):
            raise typer.Exit(1)


def _line(row: dict[str, Any]) -> str:
    """A row in words: `small_cnn ipg b32: 20.6 ms (20.1 to 21), 1.71 × small_cnn erm, ideal 1.5`."""
    spread = f" ({row['low']:.4g} to {row['high']:.4g})" if row["low"] != row["high"] else ""
    ratio = f", {row['ratio']:.4g} × {row['baseline']}" if row["baseline"] else ""
    ideal = f", ideal {row['ideal']:.4g}" if row["ideal"] else ""
    return f"{row['case']}: {row['value']:.4g} {row['unit']}{spread}{ratio}{ideal}"


def _moved(comparison: Comparison, repeat: int) -> Iterator[str]:
    """The lines that say what moved."""
    moved, total = comparison.moved, len(comparison.changes)
    yield f"\nMeasured {repeat} times: {len(moved)} of {total} cases moved by more than the noise."
    for change in moved:
        yield f"  {_change(change)}"
    for title, keys in (("without a row", comparison.new), ("in the rows alone", comparison.gone)):
        if keys:
            yield f"Cases {title}: {len(keys)}"
            yield from (f"  {benchmark}: {case}" for benchmark, case, *_ in keys)


def _change(change: Change) -> str:
    """`worse: steps, small_cnn ipg b32: 1.71 → 1.95 × small_cnn erm (14 % up, noise 5 %)`."""
    unit = f"× {change.baseline}" if not change.unit else change.unit
    way = "up" if change.factor > 1 else "down"
    share, noise = 100 * abs(change.factor - 1), 100 * (change.noise - 1)
    return (
        f"{'worse' if change.worse else 'better'}: {change.benchmark}, {change.case}: {change.then:.4g} → "
        f"{change.now:.4g} {unit} ({share:.0f} % {way}, noise {noise:.0f} %)"
    )

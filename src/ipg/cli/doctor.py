"""`ipg doctor`: what went wrong in a run, and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ipg.evaluation.doctor.log import RunLog

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = """
**Examples**

`ipg doctor runs/guided`: what went wrong, and what to do about it

`ipg doctor runs/guided runs/plain --json`: as JSON, for scripts
"""

MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "note": ("·", "bold")}
"""How a severity looks."""
SHARES = {
    "validation": "validation",
    "validation_worst_group": "worst group of the validation images",
    "pair_disagreement": "held-out pairs disagree",
    "train_pair_disagreement": "training pairs disagree",
}
"""The main figures of a run that are shares, and what they are called."""


def doctor(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, finished or not.", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of text.")] = False,
) -> None:
    """Say in plain words what went wrong in a run and what to do about it, from its log alone.

    Needs neither the data nor a GPU. Exits with 0 whatever it finds.
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from ipg.evaluation.doctor.diagnosis import diagnose, key_numbers

    logs = [(str(folder), *_read(folder)) for folder in runs]
    if as_json:
        found = {
            name: {"state": state, "findings": [asdict(f) for f in diagnose(log)], "numbers": key_numbers(log)}
            for name, log, state in logs
        }
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False)
    for number, (name, log, state) in enumerate(logs):
        if number:
            console.print()
        _print(console, name, log, state)


def _read(folder: Path) -> tuple[RunLog, str]:
    """The log of a run, and whether it is finished, failed or unfinished."""
    from ipg.evaluation.doctor.log import RunLog
    from ipg.training.folder import RunFolder

    home = RunFolder(folder)
    _, (config, _, origin) = home.configured()
    rows, failure = home.logged(), home.failed()
    state = "failed" if failure else "finished" if home.done.exists() else "unfinished"
    number = len(origin.get("classes", ())) or None
    return RunLog(config, rows, failure, classes=number, unfinished=state == "unfinished"), state


def _print(console: Console, name: str, log: RunLog, state: str) -> None:
    """What was found in a run, and its main figures."""
    from rich.text import Text

    from ipg.evaluation.doctor.diagnosis import diagnose

    done = f"{log.epochs} of {log.config.get('epochs', '?')} epochs"
    console.print(Text.assemble((name, "bold"), f": {log.config.get('method')}, {state}, {done}"))
    findings = diagnose(log)
    for finding in findings:
        mark, style = MARKS[finding.severity]
        console.print(Text(f"  {mark} {finding.name}", style=style))
        _say(console, finding.meaning)
        _say(console, f"Remedy: {finding.remedy}")
    if not log.rows:
        if not findings:
            console.print("  No epoch has ended yet: there is nothing to go by.")
        return
    if not findings:
        console.print(Text("  ✓ nothing wrong found", style="bold green"))
    _say(console, _figures(log))


def _figures(log: RunLog) -> str:
    """The main figures of a run, those that there are."""
    from ipg.cli.console import percent
    from ipg.evaluation.doctor.diagnosis import key_numbers

    values = key_numbers(log)
    loss = values["task_loss"]
    shown = [f"task loss {loss:.3f}"] if loss is not None else []
    shown += [f"{label} {percent(values[name])} %" for name, label in SHARES.items() if values[name] is not None]
    return ", ".join(shown)


def _say(console: Console, text: str) -> None:
    """A paragraph beneath what it belongs to."""
    import textwrap

    lines = textwrap.wrap(text, console.width - 1, initial_indent=" " * 4, subsequent_indent=" " * 4)
    console.print("\n".join(lines), markup=False)

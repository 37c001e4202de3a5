"""`ipg doctor`: what went wrong in a run, and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = """
**Examples**

`ipg doctor runs/guided`: what went wrong, and what to do about it

`ipg doctor runs/guided runs/plain --json`: as JSON, for scripts
"""

MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "note": ("·", "bold")}
"""How a severity looks."""


def doctor(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, finished or not.", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of text.")] = False,
) -> None:
    """Say in plain words what went wrong in a run and what to do about it, from its log alone.

    Needs neither the data nor a GPU. Exits with 0 whatever it finds.
    """
    import json
    import textwrap
    from dataclasses import asdict

    from rich.console import Console
    from rich.text import Text

    from ipg.cli.console import percent
    from ipg.evaluation.doctor.diagnosis import diagnose, key_numbers
    from ipg.evaluation.doctor.log import RunLog
    from ipg.training.folder import FolderError, RunFolder, read_json, read_jsonl

    def read(folder: Path) -> tuple[RunLog, str]:
        """The log of a run, and whether it is finished, failed or unfinished."""
        home = RunFolder(folder)
        if not home.config.exists():
            raise FolderError(f"{folder} is not the folder of a run: it has no config.json; `ipg train` makes one")
        begun = read_json(home.config)
        config, classes = begun.get("config"), (begun.get("origin") or {}).get("classes")
        if not isinstance(config, dict):
            raise FolderError(f"{home.config} is not of a run")
        rows = read_jsonl(home.metrics, unfinished=not home.done.exists()) if home.metrics.exists() else []
        if home.done.exists():
            home.verify()
        failure = read_json(home.failure) if home.failure.exists() else None
        state = "failed" if failure else "finished" if home.done.exists() else "unfinished"
        number = len(classes) if classes else None
        return RunLog(config, rows, failure, classes=number, unfinished=state == "unfinished"), state

    logs = [(str(folder), *read(folder)) for folder in runs]
    if as_json:
        found = {
            name: {"state": state, "findings": [asdict(f) for f in diagnose(log)], "numbers": key_numbers(log)}
            for name, log, state in logs
        }
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False)

    def say(text: str) -> None:
        lines = textwrap.wrap(text, console.width - 1, initial_indent=" " * 4, subsequent_indent=" " * 4)
        console.print("\n".join(lines), markup=False)

    for number, (name, log, state) in enumerate(logs):
        if number:
            console.print()
        done = f"{log.epochs} of {log.config.get('epochs', '?')} epochs"
        console.print(Text.assemble((name, "bold"), f": {log.config.get('method')}, {state}, {done}"))
        findings = diagnose(log)
        for finding in findings:
            mark, style = MARKS[finding.severity]
            console.print(Text(f"  {mark} {finding.name}", style=style))
            say(finding.meaning)
            say(f"Remedy: {finding.remedy}")
        if not log.rows:
            if not findings:
                console.print("  No epoch has ended yet: there is nothing to go by.")
            continue
        if not findings:
            console.print(Text("  ✓ nothing wrong found", style="bold green"))
        values = key_numbers(log)
        loss = values["task_loss"]
        shown = [f"task loss {loss:.3f}"] if loss is not None else []
        shown += [
            f"{label} {percent(values[key])} %"
            for key, label in (
                ("validation", "validation"),
                ("validation_worst_group", "worst group of the validation images"),
                ("pair_disagreement", "held-out pairs disagree"),
                ("train_pair_disagreement", "training pairs disagree"),
            )
            if values[key] is not None
        ]
        say(", ".join(shown))

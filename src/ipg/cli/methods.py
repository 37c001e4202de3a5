"""`ipg methods`: what can be trained with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ipg.experiments.verified import Verdict
    from ipg.methods import Method

__all__ = ["EXAMPLES", "methods"]

EXAMPLES = """
**Examples**

`ipg methods`: all methods

`ipg methods --long`: with what each needs and costs, its paper, and whether its published figures were made again

`ipg methods joint`: one method with its formula and its own options
"""


def methods(
    name: Annotated[str | None, typer.Argument(help="A method to describe in full.", metavar="NAME")] = None,
    long: Annotated[bool, typer.Option("--long", help="Say more of each.")] = False,
    results: Annotated[
        Path, typer.Option(help="Folder of the rows that methods are verified by, a folder a study.")
    ] = Path("results"),
) -> None:
    """List the training methods, or describe one.

    A method is verified when rows of its own protocol come as near to the figures of its paper as
    `ipg/methods/published.toml` asks for.
    """
    from rich.console import Console
    from rich.table import Table

    from ipg.experiments.verified import claims, result_rows, verdict
    from ipg.methods import METHODS, method_class

    console = Console()
    if name is None and not long:
        table = Table("method", "what it does", "needs")
        for kind in METHODS.values():
            table.add_row(kind.name, kind.summary, ", ".join(sorted(kind.needs)) or "–")
        console.print(table)
        return
    known, rows = claims(), result_rows(results)
    if name is not None:
        kind = method_class(name)
        _describe(console, kind)
        _facts(console, kind, verdict(name, known, rows))
        return
    for kind in METHODS.values():
        console.print(f"[bold]{kind.name}[/bold]: {kind.summary}", highlight=False)
        _facts(console, kind, verdict(kind.name, known, rows))


def _facts(console: Console, kind: type[Method], found: Verdict) -> None:
    """What a method needs and costs, where it comes from, and how it stands."""
    from rich.table import Table
    from rich.text import Text

    from ipg.methods.base import NEEDS
    from ipg.methods.citations import citation

    facts = {
        "needs": ", ".join(NEEDS[need] for need in sorted(kind.needs)) or "nothing but labels",
        "cost": f"{kind.cost} (plain training: 1)",
        "paper": citation(kind),
        found.state: found.reason,
    }
    table = Table.grid(padding=(0, 0, 0, 2), pad_edge=True)
    for title, text in facts.items():
        table.add_row(title, Text(text))
    console.print(table)


def _describe(console: Console, kind: type[Method]) -> None:
    """The method's formula and its own options."""
    import inspect
    import sys
    from typing import get_args, get_type_hints

    from ipg.methods.options import option_defaults

    for part in inspect.cleandoc(sys.modules[kind.__module__].__doc__ or kind.summary).split("\n\n"):
        formula = part.startswith(" ")
        text = part if formula else " ".join(part.split())
        console.print(f"{text}\n", markup=False, highlight=False, soft_wrap=formula)
    for option, default in option_defaults(kind).items():
        choices = "|".join(map(str, get_args(get_type_hints(kind.Options)[option])))
        typer.echo(f"-o {option}={choices or '…'} (default {default})")

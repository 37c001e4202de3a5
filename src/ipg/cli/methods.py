"""`ipg methods`: what can be trained with."""

from __future__ import annotations

import re
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

`ipg methods`: all methods with what each needs and costs, its paper, and whether its figures were reproduced

`ipg methods --long`: all in full, with the figures, or why they could not be reproduced

`ipg methods joint`: one method with its formula, its own options, and what `ipg search` looks at
"""


def methods(
    name: Annotated[str | None, typer.Argument(help="A method to describe in full.", metavar="NAME")] = None,
    long: Annotated[bool, typer.Option("--long", help="Describe each in full.")] = False,
    results: Annotated[
        Path,
        typer.Option(
            help="Folder of the rows that methods are verified by, one folder per study; if it has none, the verdicts "
            "that come with the package are shown."
        ),
    ] = Path("results"),
) -> None:
    """List the training methods, or describe one.

    A method is verified when rows of its own protocol come as near to the figures of its paper as
    `ipg/methods/published.toml` asks for.
    """
    from rich.console import Console
    from rich.table import Column, Table

    from ipg.experiments.summary import packaged_verdict
    from ipg.experiments.verified import claims, result_rows, verdict
    from ipg.methods import METHODS, method_class
    from ipg.methods.citations import citation

    console = Console()
    known, rows = claims(), result_rows(results)

    def standing(name: str) -> Verdict:
        """By the rows at hand, else by the project's own as the package tells of them."""
        return packaged_verdict(name) if rows is None else verdict(name, known, rows)

    if name is None and not long:
        table = Table("method", "what it does", Column("cost", max_width=12), Column("needs", max_width=13))
        for kind in METHODS.values():
            cost, _, _ = kind.cost.replace(" B_I", "\nB_I").partition("; ")  # behind it of some options alone
            mark = ", [green]verified[/green]" if standing(kind.name).state == "verified" else ""
            paper = citation(kind)  # one of a user's own may have none
            about = kind.summary + (f" [dim]{_short(paper)}[/dim]" if paper else "") + mark
            table.add_row(kind.name, about, cost, ", ".join(sorted(kind.needs)) or "–")
        console.print(table)
        console.print(
            "Cost: times plain training; B_I pairs a correction, at every k-th of batches of B_D, and E environments. "
            "Verified: rows make its published figures again. In full, with papers, and why others are not verified: "
            "ipg methods --long",
            highlight=False,
        )
        return
    if name is not None:
        kind = method_class(name)
        _describe(console, kind)
        _facts(console, kind, standing(name), searched=True)
        return
    for kind in METHODS.values():
        console.print(f"[bold]{kind.name}[/bold]: {kind.summary}", highlight=False)
        _facts(console, kind, standing(kind.name))


def _short(paper: str) -> str:
    """A citation in a few words: `Sagawa et al. 2020`."""
    names, _, rest = paper.partition(', "')
    first, *others = re.split(", | and ", names)
    alone = not others or first.endswith(" et al.")
    both = len(others) == 1
    name = first if alone else f"{first} and {others[0]}" if both else f"{first} et al."
    return f"{name} {rest[-4:]}"


def _facts(console: Console, kind: type[Method], found: Verdict, *, searched: bool = False) -> None:
    """What a method needs and costs, where it comes from, how it stands and, if asked for, where a search looks."""
    from rich.table import Table
    from rich.text import Text

    from ipg.experiments.search.space import told_of
    from ipg.methods.base import NEEDS
    from ipg.methods.citations import citation

    facts = ({"search": told_of(kind.name)} if searched else {}) | {
        "needs": ", ".join(NEEDS[need] for need in sorted(kind.needs)) or "nothing but labels",
        "cost": f"{kind.cost} (plain training: 1)",
        "paper": citation(kind) or "none named in the docstring of its file",
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

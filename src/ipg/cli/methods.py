"""`ipg methods`: what can be trained with."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["EXAMPLES", "methods"]

EXAMPLES = """
**Examples**

`ipg methods`: all methods

`ipg methods joint`: one method with its formula and its own options
"""


def methods(
    name: Annotated[str | None, typer.Argument(help="A method to describe in full.", metavar="NAME")] = None,
) -> None:
    """List the training methods, or describe one."""
    import inspect
    import sys
    from typing import get_args, get_type_hints

    from rich.console import Console
    from rich.table import Table

    from ipg.methods import METHODS, method_class
    from ipg.methods.options import option_defaults

    console = Console()
    if name is None:
        table = Table("method", "what it does", "needs")
        for kind in METHODS.values():
            table.add_row(kind.name, kind.summary, ", ".join(sorted(kind.needs)) or "–")
        console.print(table)
        return
    kind = method_class(name)
    for part in inspect.cleandoc(sys.modules[kind.__module__].__doc__ or kind.summary).split("\n\n"):
        formula = part.startswith(" ")
        text = part if formula else " ".join(part.split())
        console.print(f"{text}\n", markup=False, highlight=False, soft_wrap=formula)
    for option, default in option_defaults(kind).items():
        choices = "|".join(map(str, get_args(get_type_hints(kind.Options)[option])))
        typer.echo(f"-o {option}={choices or '…'} (default {default})")

"""The command line, a verb a file. Nothing here imports torch until a verb runs."""

from __future__ import annotations

import typer

from ipg.cli import data, demo, evaluate, methods, report, train
from ipg.cli.errors import clear

__all__ = ["app"]

app = typer.Typer(
    name="ipg",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train image classifiers that do not lean on a shortcut, from a handful of counterfactual pairs.",
    epilog="Start with `ipg demo`: in about half a minute it shows plain training fail and guided training hold.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=False)
def _main(
    version: bool = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True),
) -> None:
    if version:
        import ipg

        typer.echo(f"ipg {ipg.__version__}")
        raise typer.Exit


app.command("demo", epilog=demo.EXAMPLES)(clear(demo.demo))
app.command("train", epilog=train.EXAMPLES)(clear(train.train))
app.command("evaluate", epilog=evaluate.EXAMPLES)(clear(evaluate.evaluate))
app.command("report", epilog=report.EXAMPLES)(clear(report.report))
app.add_typer(data.app, name="data")
app.command("methods", epilog=methods.EXAMPLES)(clear(methods.methods))

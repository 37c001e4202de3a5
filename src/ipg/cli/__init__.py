"""The command line, a verb a file. Nothing here imports torch until a verb runs."""

from __future__ import annotations

from typing import Annotated

import typer

from ipg.cli import (
    bench,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    export,
    methods,
    pairs,
    predict,
    report,
    reproduce,
    search,
    study,
    table,
    train,
)
from ipg.cli.errors import Commands, clear, help_without_command

__all__ = ["app"]

app = typer.Typer(
    name="ipg",
    cls=Commands,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train image classifiers that do not lean on a shortcut, with a few dozen invariance pairs.",
    epilog="Start with `ipg demo`: in about half a minute it shows plain training fail and guided training succeed.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import ipg

        typer.echo(f"ipg {ipg.__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


@app.callback(invoke_without_command=True)
def _main(context: typer.Context, version: Version = False) -> None:
    help_without_command(context)


app.command("demo", epilog=demo.EXAMPLES)(clear(demo.demo))
app.command("train", epilog=train.EXAMPLES)(clear(train.train))
app.command("evaluate", epilog=evaluate.EXAMPLES)(clear(evaluate.evaluate))
app.command("predict", epilog=predict.EXAMPLES)(clear(predict.predict))
app.command("export", epilog=export.EXAMPLES)(clear(export.export))
app.command("doctor", epilog=doctor.EXAMPLES)(clear(doctor.doctor))
app.command("compare", epilog=compare.EXAMPLES)(clear(compare.compare))
app.command("study", epilog=study.EXAMPLES)(clear(study.study))
app.command("search", epilog=search.EXAMPLES)(clear(search.search))
app.command("table", epilog=table.EXAMPLES)(clear(table.table))
app.command("report", epilog=report.EXAMPLES)(clear(report.report))
app.command("reproduce", epilog=reproduce.EXAMPLES)(clear(reproduce.reproduce))
app.add_typer(data.app, name="data")
app.add_typer(pairs.app, name="pairs")
app.command("methods", epilog=methods.EXAMPLES)(clear(methods.methods))
app.command("bench", epilog=bench.EXAMPLES)(clear(bench.bench))

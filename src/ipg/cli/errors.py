"""Mistakes and mishaps as one clear line; tracebacks are for bugs."""

from __future__ import annotations

import errno
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["Commands", "clear", "help_without_command", "printable"]

MOST_LINES = 5
"""How many mistakes are named one by one."""
LONGEST_LINE = 1000
"""Characters of a line; the middle of a longer one is left out."""
INTERRUPTED = 130
"""The exit status after Ctrl-C."""
told: list[str] = []
"""The lines that were said."""

NO_MEMORY = ("allocate memory", "not enough memory", "bad_alloc", "failed to map segment", "can't start new thread")
"""What is said of memory by errors that are not of a kind of their own."""
REMEDIES = {
    errno.ENOSPC: "What was saved before is whole: free some space and run the command again.",
    errno.EDQUOT: "What was saved before is whole: free some space and run the command again.",
    errno.EFBIG: "What was saved before is whole: raise the limit on files (ulimit -f) and run the command again.",
}
"""What to do when a file cannot be written; reading has messages of its own where it happens."""
IN_THE_WAY = {errno.EEXIST: "A file", errno.ENOTDIR: "A file", errno.EISDIR: "A folder"}
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
PLACES = {"output": "--output", "results": "--results"}
"""Parameters of commands that say where to write, the likelier first, and their options."""


def clear(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let `command` end in one clear line and exit status 2 on what a user can mend, 130 when interrupted.

    Warnings are a line each, too.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters
    option = next((option for name, option in PLACES.items() if name in parameters), None)

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _warn
                return command(*arguments, **options)
        except KeyboardInterrupt as error:
            raise typer.Abort(str(error)) from None
        except Exception as error:
            lines = _explain(error, option)
            if lines is None:
                raise
            for line in lines:
                _say(line)
            raise typer.Exit(2) from None

    # Read here once, in place of four times by typer: a large part of what a command line takes to start.
    guarded.__signature__ = signature  # type: ignore[attr-defined]
    guarded.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return guarded


class Commands(TyperGroup):
    """The commands of a program; what is wrong with a command line is said in one line too."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and exit."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            if code == INTERRUPTED:  # Ctrl-C while the command line is read: typer says nothing, or raises Abort
                raise typer.Abort
        except typer.Abort as error:
            _say(str(error) or "interrupted")
            code = INTERRUPTED
        except Exception as error:
            if not standalone_mode or not hasattr(error, "format_message"):  # the base of usage errors has moved about
                raise
            context = getattr(error, "ctx", None)
            if meant := _called_here(getattr(error, "option_name", ""), context):
                error.possibilities = [meant]  # type: ignore[attr-defined]
            help_ = f"; see `{context.command_path} --help`" if context is not None else ""
            _say(error.format_message().replace(": Value error, ", ": ").rstrip(".") + help_)
            code = 2
        if standalone_mode:
            sys.exit(code)
        return code


def _called_here(option: str, context: Any) -> str | None:
    """An option of the command in `context` by the name it has here, where another is usual elsewhere: `--lr`.

    Those of methods' own, such as `--weight`, stand behind -o.
    """
    from ipg.config import ELSEWHERE, OPTIONS

    if context is None:
        return None
    name = option.removeprefix("--")
    own = name.replace("-", "_")
    if own in OPTIONS and any("-o" in each.opts for each in context.command.params):
        return f"-o {'METHOD.' if context.info_name == 'compare' else ''}{own}=…"
    name = ELSEWHERE.get(name, "")
    return f"--{name.replace('_', '-')}" if name in {each.name for each in context.command.params} else None


def printable(text: str) -> str:
    """A text on one line; what would steer a terminal, in the name of a file perhaps, is shown in place of sent."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))


def help_without_command(context: typer.Context) -> None:
    """Show the help of a group of commands when none of them is asked for."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _explain(error: Exception, option: str | None) -> list[str] | None:
    """The lines to show for an error of the user's or the machine's making; None for a bug.

    `option` is the one that says where the command writes, if it has one.
    """
    if isinstance(error, OSError) and error.errno != errno.ENOMEM:
        gone = error.errno == errno.EPIPE  # the reader has left: nobody to tell
        return None if gone else [_explain_os(error, option)]
    if not type(error).__module__.startswith("ipg.") and _is_of_memory(error):
        return ["out of memory: free some, or make the batches of a training smaller with --batch and --pair-batch"]
    problems = getattr(error, "problems", None)
    if isinstance(problems, list):
        more = 0 if getattr(error, "named_in_full", False) else len(problems) - MOST_LINES
        return problems if more <= 0 else [*problems[: MOST_LINES - 1], f"… and {more + 1} more mistakes"]
    if isinstance(error, ValueError) or type(error).__module__.startswith("ipg."):
        return [str(error)]
    return None


def _is_of_memory(error: Exception) -> bool:
    """Whether it says, in Python's words, torch's or the loader's of libraries, that there is not enough memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # the latter is torch's
        return True
    said = str(error).lower()
    return isinstance(error, OSError | RuntimeError | ImportError) and any(words in said for words in NO_MEMORY)


def _explain_os(error: OSError, option: str | None) -> str:
    name = f"{error.filename}: " if error.filename else ""
    remedy = _remedy(error.errno or 0, option)
    return f"{name}{error.strerror or error}" + (f". {remedy}" if remedy else "")


def _remedy(number: int, option: str | None) -> str | None:
    """What to do about the error of that number, in a command whose place to write is named by `option`."""
    if number in IN_THE_WAY:
        other = f"name another place with {option}" if option else "move it away"
        return f"{IN_THE_WAY[number]} is in the way: {other}."
    if number in FORBIDDEN:
        if option:
            return f"Name a place that you may write to with {option}."
        return "You may not write there: change who may, or work on a copy."
    return REMEDIES.get(number)


def _say(line: str) -> None:
    """One line of readable length."""
    told.append(_echo(line))


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning in a line, in place of Python's two with the source of the program."""
    _echo(f"warning: {message}")


def _echo(line: str) -> str:
    text = printable(line)
    cut = text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE // 2]} … {text[-LONGEST_LINE // 2 :]}"
    typer.echo(f"ipg: {cut}", err=True)
    return cut

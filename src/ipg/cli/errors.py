"""Mistakes and mishaps as one clear line; tracebacks are for bugs."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import Any

import typer

__all__ = ["clear"]


def clear(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let `command` end in one clear line and exit status 2 on what a user can mend, 130 when interrupted."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except KeyboardInterrupt as error:
            _say(str(error) or "interrupted")
            raise typer.Exit(130) from None
        except Exception as error:
            lines = _explain(error)
            if lines is None:
                raise
            for line in lines:
                _say(line)
            raise typer.Exit(2) from None

    return guarded


def _explain(error: Exception) -> list[str] | None:
    """The lines to show for an error of the user's or the machine's making; None for a bug."""
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        if error.errno == errno.ENOSPC:
            return [f"{name}no space left. What was saved before is whole: free some space and run the command again."]
        return [f"{name}{error.strerror or error}"]
    problems = getattr(error, "problems", None)
    if isinstance(problems, list):
        return problems if len(problems) < 5 else [*problems[:4], f"… and {len(problems) - 4} more mistakes"]
    own = type(error).__module__.startswith("ipg.")
    if own or isinstance(error, ValueError):
        return [str(error)]
    return None


def _say(line: str) -> None:
    typer.echo(f"ipg: {line}", err=True)

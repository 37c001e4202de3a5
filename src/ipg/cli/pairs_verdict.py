"""`ipg pairs reject` and `ipg pairs accept`: what somebody says of pairs who has looked at them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipg.words import are, number_of, ranges

if TYPE_CHECKING:
    from ipg.pairs.rows import Manifest

__all__ = ["ACCEPT_EXAMPLES", "REJECT_EXAMPLES", "accept", "reject"]

REJECT_EXAMPLES = """
**Examples**

`ipg pairs show pairs`: writes a page; click the pairs that would mislead, and copy the command that it puts together

`ipg pairs reject pairs 17 23 41 --reason "the hair has changed"`
"""
ACCEPT_EXAMPLES = """
**Examples**

`ipg pairs accept pairs 17`: takes back a verdict of yours, or overrules the audit
"""

Place = Annotated[Path, typer.Argument(help="A manifest, or the folder it is in.", metavar="MANIFEST")]
Numbers = Annotated[list[int], typer.Argument(help="Numbers of pairs, as ipg pairs show gives them.", metavar="NUMBER")]


def reject(
    manifest: Place,
    numbers: Numbers,
    reason: Annotated[str, typer.Option(help="Why, in your own words; kept in the manifest.")] = "",
) -> None:
    """Reject pairs by eye. They stay in the manifest and are left out of the training, also after an audit."""
    from ipg.pairs import by_eye
    from ipg.pairs.rows import Manifest

    _write(by_eye.reject(Manifest.read(manifest), numbers, reason=reason), numbers, "rejected")


def accept(manifest: Place, numbers: Numbers) -> None:
    """Accept pairs by eye that you or an audit rejected.

    A later audit rejects them only if an image is missing, of another split, or of another label.
    """
    from ipg.pairs import by_eye
    from ipg.pairs.rows import Manifest

    _write(by_eye.accept(Manifest.read(manifest), numbers), numbers, "accepted")


def _write(judged: Manifest, numbers: list[int], verdict: str) -> None:
    path = judged.write()
    left = sum(pair.status != "rejected" for pair in judged.pairs)
    which = "pair" if len(set(numbers)) == 1 else "pairs"
    typer.echo(
        f"{verdict} {which} {ranges(numbers)}; {left:,} of {number_of(len(judged), 'pair')} {are(left)} left in {path}"
    )

"""How somebody's own images are read: what the columns of their table are called, and which seed draws their split.

Importing this module is cheap: no torch.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ipg.config import RunConfig
from ipg.data.columns import Columns
from ipg.data.errors import DataError

__all__ = ["Reading", "likeliest", "require"]

USUAL: dict[str, tuple[str, ...]] = {
    "path": (
        *("path", "filename", "file", "file_name", "filepath", "file_path", "image", "img", "image_path", "img_path"),
        *("img_filename", "image_id", "image_file", "images", "files", "photo", "picture", "name", "id"),
    ),
    "label": (
        *("label", "class", "target", "y", "category", "labels", "classes", "class_name", "label_name", "class_id"),
        *("species", "diagnosis", "kind", "type"),
    ),
    "attribute": (
        *("attribute", "background", "place", "environment", "env", "domain", "context", "scene", "confounder"),
        *("shortcut", "bias", "hospital", "scanner", "site", "a"),
    ),
    "environment": ("environment", "env", "domain", "source", "hospital", "site", "center", "centre", "scanner"),
}
"""What people call the columns, the likeliest names first."""


@dataclass(frozen=True)
class Reading:
    """The settings of `RunConfig` that say how own images are read."""

    split_seed: int = 0
    """Draws the splits that the data does not have; not the seed of a run, whose images must not change with it."""
    path_column: str = "path"
    label_column: str = "label"
    attribute_column: str = "attribute"
    environment_column: str = "environment"

    @classmethod
    def of(cls, config: RunConfig) -> Reading:
        """As a run is told."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})

    @classmethod
    def kept(cls, settings: Mapping[str, Any]) -> Reading:
        """As the files of runs and pairs keep it; in those that keep no `split_seed` the seed drew the split.

        Raises:
            DataError: that is no number.
        """
        seed = settings.get("split_seed", settings.get("seed", 0))
        if not isinstance(seed, int):
            raise DataError(f"the split is drawn by a whole number, not by {seed!r}")
        names = [field.name for field in fields(cls) if field.name != "split_seed" and field.name in settings]
        return cls(split_seed=seed, **{name: str(settings[name]) for name in names})

    @property
    def renamed(self) -> dict[str, str]:
        """The columns that are called otherwise than usual, by what they hold."""
        columns = {role: str(getattr(self, f"{role}_column")) for role in USUAL}
        return {role: name for role, name in columns.items() if name != role}

    def check(self, columns: Columns) -> None:
        """DataError where columns are missing; it names the options that say what they are called, with a guess."""
        wanted = {"path": self.path_column, "label": self.label_column}
        require(columns, wanted | self.renamed)


def require(columns: Columns, wanted: Mapping[str, str]) -> None:
    """DataError where one of the columns, `wanted` by what they hold, is missing; it says how to name them."""
    taken = [name for name in wanted.values() if name in columns]
    others = [name for name in columns.values if name not in taken]
    missing = [role for role, name in wanted.items() if name not in columns]
    guesses = {role: likeliest(wanted[role], role, others) for role in missing}
    if not missing:
        return
    options = [f"--{role}-column {shlex.quote(guess)}" for role, guess in guesses.items() if guess]
    unknown = [f"--{role}-column" for role, guess in guesses.items() if not guess]
    asked = [f"is it {' '.join(options)}?"] if options else []
    asked += [f"say which it is with {' and '.join(unknown)}"] if unknown else []
    raise DataError(
        f"{columns.what} has no column {', '.join(wanted[role] for role in missing)}; its first line names "
        f"{', '.join(columns.values)[:200]}: {' '.join(asked)}"
    )


def likeliest(wanted: str, role: str, names: Sequence[str]) -> str | None:
    """Which of the columns `names` is most likely the one for `role`, looked for as `wanted`; None where none is."""
    plain = {name.lower().replace(" ", "_").replace("-", "_"): name for name in reversed(names)}
    for usual in (wanted.lower(), *USUAL[role]):
        if usual in plain:
            return plain[usual]
    near = difflib.get_close_matches(wanted.lower(), list(plain), n=1, cutoff=0.7)
    return plain[near[0]] if near else None

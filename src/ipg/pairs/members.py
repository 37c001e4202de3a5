"""Whom predictions in files speak of: the members of a manifest, by the names that the files have for images.

A name is the reference of a member (`images/1.png`, `data:photos/2.jpg`), the name of an image of the data set, or a
path, in full or from the manifest's folder, the data set's or the current one. Names that are none of these are
relative to another folder, as in what `ipg predict FOLDER` writes: it is taken to be the one in which they meet most
members.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from torch import Tensor

from ipg.data.errors import DataError
from ipg.pairs.opinions import Codes, Known, Opinions, read_opinions
from ipg.pairs.rows import DATA, Manifest

__all__ = ["Coverage", "read_for"]


@dataclass(frozen=True)
class Coverage:
    """How much of a manifest files say something of."""

    covered: int
    """Members of which something is said."""
    members: int
    asked: int
    """Pairs of both members of which the same kind of thing is said."""
    pairs: int
    folders: tuple[Path, ...] = ()
    """What names were taken to be relative to, where they fit nowhere else."""


def read_for(manifest: Manifest, paths: Sequence[Path], home: Path | None = None) -> tuple[Opinions, Coverage]:
    """Predictions from files, by the references of the manifest's members.

    Args:
        manifest: the pairs.
        paths: files as `read_opinions` takes them; of what several say of one member the last counts.
        home: the folder of the data set's images, where they are files.

    Raises:
        DataError: nothing is said of any member, or of both members of any pair.
    """
    members = _Members(manifest, home)
    codes: Codes = {}
    known: dict[str, dict[str, Tensor]] = {}
    folders: list[Path] = []
    example = ""
    for path in paths:
        said = _by_kind(read_opinions(path, codes))
        names = list(dict.fromkeys(name for numbers in said.values() for name in numbers))
        example = example or next(iter(names), "")
        found, folder = members.find(names, path)
        folders += [] if folder is None else [folder]
        for kind, numbers in said.items():
            own = known.setdefault(kind, {})
            own |= {reference: numbers[name] for reference, name in found.items() if name in numbers}
            if len({number.shape for number in own.values()}) > 1:
                raise DataError(f"{path} has other columns than {paths[0]}: files that belong together have the same")
    files = ", ".join(map(str, paths))
    covered = {reference for numbers in known.values() for reference in numbers}
    asked = sum(any(p.first in said and p.second in said for said in known.values()) for p in manifest.pairs)
    if not covered:
        raise DataError(
            f"{files}: it says nothing of any member of {manifest.path}. It names {example!r}, the manifest "
            f"{members.references[0]!r}: name images as the manifest does, or by their paths"
        )
    if not asked:
        lacking = next(reference for reference in members.references if reference not in covered)
        raise DataError(
            f"{files}: predictions cover {len(covered):,} of {len(members.references):,} members, but both members of "
            f"no pair, so that they decide nothing: {lacking!r} is missing, for one. Let the model say what the others "
            f"are, too, and give both files: --predictions {paths[0]} --predictions OTHERS"
        )
    coverage = Coverage(len(covered), len(members.references), asked, len(manifest), tuple(folders))
    return Opinions(**{kind: numbers for kind, numbers in known.items() if numbers}), coverage


class _Members:
    """The members of a manifest and where they lie."""

    def __init__(self, manifest: Manifest, home: Path | None) -> None:
        self.references = list(dict.fromkeys(name for pair in manifest.pairs for name in (pair.first, pair.second)))
        self.bases = [manifest.folder, *([] if home is None else [home]), Path()]
        self.written: dict[str, str] = {}  # the place as it is written → reference
        self.places: dict[str, list[str]] = {}  # the place that it leads to → references
        for reference in self.references:
            base = home if reference.startswith(DATA) else manifest.folder
            if base is not None:
                place = _written(base / reference.removeprefix(DATA))
                self.written.setdefault(place, reference)
                self.places.setdefault(os.path.realpath(place), []).append(reference)
        self.endings = {PurePath(place).name for place in (*self.written, *self.places)}

    def find(self, names: Sequence[str], path: Path) -> tuple[dict[str, str], Path | None]:
        """The name of each member that is among `names`, and the folder that some were taken to be relative to."""
        known = set(self.references)
        found: dict[str, str] = {name: name for name in names if name in known}
        left = []
        for name in names:
            if name in known:
                continue
            if (reference := DATA + name) in known:
                found.setdefault(reference, name)
            elif references := self._at(name):
                for reference in references:
                    found.setdefault(reference, name)
            else:
                left.append(name)
        folder = self._folder(left, path)
        if folder is not None:
            for name in left:
                if (member := self.written.get(_written(folder / name))) is not None:
                    found.setdefault(member, name)
        return found, folder

    def _at(self, name: str) -> list[str]:
        """The members that the path `name` leads to, from any of the folders."""
        if PurePath(name).name not in self.endings:
            return []
        places = (os.path.realpath(base / name) for base in self.bases)
        return next((self.places[place] for place in places if place in self.places), [])

    def _folder(self, names: Sequence[str], path: Path) -> Path | None:
        """The folder in which `names` meet most members; DataError where two meet as many."""
        wanted = {PurePath(os.path.normpath(name)).parts for name in names}
        most = max(map(len, wanted), default=0)
        met: Counter[Path] = Counter()
        for place in self.written:
            parts = Path(place).parts
            for count in range(1, min(most, len(parts) - 1) + 1):
                if parts[-count:] in wanted:
                    met[Path(*parts[:-count])] += 1
        best = [folder for folder, count in met.most_common(2) if count == max(met.values())]
        if len(best) > 1:
            raise DataError(
                f"{path}: its names fit images in {best[0]} and in {best[1]} alike; name images as the manifest does, "
                f"or by their paths"
            )
        return best[0] if best else None


def _written(path: Path) -> str:
    """A path in full, as it is written: links are not followed."""
    return os.path.normpath(path.absolute())


def _by_kind(opinions: Opinions) -> Mapping[str, Known]:
    """What a file says: labels, attributes, others and features, as far as it does."""
    said = {name: getattr(opinions, name) for name in ("label", "attribute", "others", "features")}
    return {name: numbers for name, numbers in said.items() if numbers is not None}

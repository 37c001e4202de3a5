"""Where the files of a run are, when it is read back from another folder than it was trained in, or they have moved.

A path in a run's record is as the user typed it, often relative to the folder they were in. Runs mostly lie somewhere
below that folder, so it is looked for from all folders above the run, which may have moved together with its files,
and then from the folder that the run was started in. Digests of the content tell whether what is found is what the run
was trained on.
"""

from __future__ import annotations

from pathlib import Path

from ipg.data.folder import is_table
from ipg.data.load import DATASETS

__all__ = ["find_data", "find_file"]


def find_data(
    data: str, path: str | None, *, run: Path, given: str | None = None, started_in: object = None
) -> tuple[str, str | None]:
    """What to load as the data of the run in the folder `run`: its name or path, and where its files are.

    Args:
        data: what the run calls it.
        path: where the run had its files.
        run: the folder of the run.
        given: where they are now, if the user says so; of a table of one's own also the folder that holds it.
        started_in: the folder that the run was started in, as it says itself.
    """
    if data.replace("-", "_") in DATASETS:
        return data, given or (None if path is None else find_file(path, run=run, started_in=started_in))
    found = find_file(data, run=run, started_in=started_in)
    if given is None:
        return found, None if path is None else find_file(path, run=run, started_in=started_in)
    inside = Path(given).expanduser() / Path(data).name
    if is_table(data) and inside.is_file() and not Path(found).expanduser().exists():
        return str(inside), None if path is None else given
    return found, given


def find_file(file: str, *, run: Path, started_in: object = None) -> str:
    """`file` as it is seen from here, from a folder above the run, or from where the run was started.

    As it is named where it is nowhere.
    """
    name = Path(file).expanduser()
    if name.exists():
        return file  # as it is written: ./folder is a folder, and folder the name of a data set
    places = [*run.resolve().parents, *([Path(started_in)] if isinstance(started_in, str) else [])]
    return str(next((place / name for place in places if (place / name).exists()), file))

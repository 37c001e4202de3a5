"""The tables of the results, made from the rows in `results/` and the paper's figures. No number is typed by hand.

    python -m ipg.experiments.table --write README.md    # what stands between the markers of this page and of
                                                         # docs/benchmarks.md beside it, its picture, results/README.md,
                                                         # and the summary that comes with the package
    python -m ipg.experiments.table --check README.md    # exits 1 where a page is not what the rows give

A page says where a table goes by `<!-- results:colored_mnist -->` and `<!-- /results:colored_mnist -->`: the name of a
data set, or of a study, or `headline` for the one table of all data sets.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ipg.experiments.arms import published
from ipg.experiments.reproduce.headline import find_headlines, headline_figure, headline_table
from ipg.experiments.store import read_rows
from ipg.experiments.study import STUDIES
from ipg.experiments.summary import FILE, summary_text
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rivals import ENDING, rivals_table
from ipg.experiments.tables.rows import measured
from ipg.experiments.tables.short import dataset_table, photographs_table
from ipg.experiments.tables.text import markdown, origin, short
from ipg.files import write_text

__all__ = ["fill", "markdown", "origin", "short"]

HEADLINE = "headline"
"""The name of the table of all data sets."""
BENCHMARKS = Path("docs", "benchmarks.md")
"""The page of the long tables, beside the README."""
PICTURE = Path("docs", "results", "headline.svg")
"""The picture of that table, shown by pages that name it."""


def fill(page: str, tables: Mapping[str, str]) -> str:
    """`page` with what stands between the markers of each data set in `tables` replaced.

    Raises:
        ValueError: a marker is missing, or a data set has markers and no table.
    """
    for dataset in {*tables, *re.findall(r"<!-- results:(\w+) -->", page)}:
        start, end = f"<!-- results:{dataset} -->", f"<!-- /results:{dataset} -->"
        if dataset not in tables:
            raise ValueError(f"the page has a place for {dataset!r}, of which there is no study")
        before, found, rest = page.partition(start)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no place for {dataset!r}; put {start} and {end} where it goes")
        page = f"{before}{start}\n{tables[dataset]}\n{end}{after}"
    return page


def _pages(readme: Path, results: Path, studies: Path) -> dict[Path, str]:
    """Every page that is made from rows, as it should be."""
    known, figures = measured(results, studies), published()
    benchmarks = readme.parent / BENCHMARKS
    files = [readme, *([benchmarks] if benchmarks.is_file() else [])]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    asked = {path: re.findall(r"<!-- results:(\w+) -->", text) for path, text in texts.items()}
    if not any(asked.values()):
        raise ValueError(f"{readme} has no place for a table; put <!-- results:DATASET --> and its end where one goes")
    datasets = {arm.dataset for study in known for arm in study.arms}
    alone = {study.name: study for study in known if study.name not in datasets}
    headlines = find_headlines(results, known) if HEADLINE in asked[readme] else []

    def table(name: str) -> str:
        if name == HEADLINE:
            return headline_table(headlines)
        if name in datasets:
            return dataset_table(name, known, figures)
        if name.endswith(ENDING):
            return rivals_table(alone[name], figures)
        return photographs_table(alone[name].arms, figures)

    made = {
        path: fill(texts[path], {name: table(name) for name in names if name in {HEADLINE, *datasets, *alone}})
        for path, names in asked.items()
        if names
    }
    if PICTURE.as_posix() in texts[readme]:
        made[readme.parent / PICTURE] = headline_figure(headlines)
    speed = read_rows(results / "speed.jsonl")
    pages = made | {results / "README.md": results_page(known, figures, speed)}
    package = readme.parent / "src" / "ipg" / "experiments"
    return pages | ({package / FILE: summary_text(results)} if package.is_dir() else {})


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(prog="ipg.experiments.table", description="Make the tables of the results.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--write",
        type=Path,
        metavar="README",
        help="fill in this page, and write results/README.md and the package's summary",
    )
    what.add_argument("--check", type=Path, metavar="README", help="exit 1 where a page is not what the rows give")
    parser.add_argument("--results", type=Path, help="folder of the rows; results beside the page where not given")
    parser.add_argument("--studies", type=Path, default=STUDIES, help="folder of the study files")
    given = parser.parse_args(arguments)
    readme: Path = given.write or given.check
    try:
        pages = _pages(readme, given.results or readme.parent / "results", given.studies)
    except (OSError, ValueError) as error:
        print(f"ipg.experiments.table: {error}", file=sys.stderr)
        return 2
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if given.write:
        for path in stale:
            write_text(path, pages[path])
            print(f"{path}: written")
        return 0
    for path in stale:
        print(
            f"{path} is not what the rows give; run python -m ipg.experiments.table --write {readme}", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

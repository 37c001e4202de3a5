"""The tables of the results, made from the rows in `results/` and the paper's figures. No number is typed by hand.

    python -m ipg.experiments.table --write README.md    # what stands between the markers of this page and of
                                                         # docs/benchmarks.md beside it, its picture, results/README.md,
                                                         # and the summary that comes with the package
    python -m ipg.experiments.table --check README.md    # exits 1 where a page is not what the rows give

A page says where a table goes by `<!-- results:colored_mnist -->` and `<!-- /results:colored_mnist -->`: the name of a
data set, or of a study, or `headline` for the one table of all data sets.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ipg.experiments.arms import published
from ipg.experiments.pages import bring_up_to_date, fill, page_parser
from ipg.experiments.reproduce.headline import find_headlines, headline_figure, headline_table
from ipg.experiments.store import read_rows
from ipg.experiments.study import STUDIES
from ipg.experiments.summary import FILE, summary_text
from ipg.experiments.tables.long import results_page
from ipg.experiments.tables.rivals import ENDING, rivals_table
from ipg.experiments.tables.rows import check_provenance, measured
from ipg.experiments.tables.short import dataset_table, photographs_table

__all__ = ["main"]

HEADLINE = "headline"
"""The name of the table of all data sets."""
BENCHMARKS = Path("docs", "benchmarks.md")
"""The page of the long tables, beside the README."""
PICTURE = Path("docs", "results", "headline.svg")
"""The picture of that table, shown by pages that name it."""


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
    check_provenance(speed, results / "speed.jsonl")
    pages = made | {results / "README.md": results_page(known, figures, speed)}
    package = readme.parent / "src" / "ipg" / "experiments"
    return pages | ({package / FILE: summary_text(results)} if package.is_dir() else {})


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them."""
    parser = page_parser("ipg.experiments.table", "Make the tables of the results.")
    parser.add_argument("--results", type=Path, help="folder of the rows; results beside the page where not given")
    parser.add_argument("--studies", type=Path, default=STUDIES, help="folder of the study files")
    given = parser.parse_args(arguments)
    return bring_up_to_date(
        parser.prog, given, lambda readme: _pages(readme, given.results or readme.parent / "results", given.studies)
    )


if __name__ == "__main__":
    sys.exit(main())

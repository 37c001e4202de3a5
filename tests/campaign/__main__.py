"""`python -m campaign NAME`, with this folder's parent on the path: run a campaign and keep a row of it.

make campaign                                       # all of them, rows in results/reliability.jsonl
python -m campaign rubbish --cases 300 --seed 5     # a short one; no row is kept
python -m campaign rubbish --only 1234              # one case again
python -m campaign size --minutes 20                # a training watched for longer
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from campaign import size
from campaign.drive import append, run
from campaign.interface import CAMPAIGNS, campaign

from ipg.training.provenance import commit


def main() -> int:
    """Exits with 1 where a case failed."""
    parser = argparse.ArgumentParser(prog="campaign", description="Try a promise on a great many cases.")
    parser.add_argument("name", choices=["all", *CAMPAIGNS], help="which")
    parser.add_argument("--cases", type=int, help="how many; those of the whole campaign where not given")
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="try one case alone")
    parser.add_argument("--progress", type=Path, metavar="DIR", help="folder in which progress is kept, to go on")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="add a row to this file at the end")
    parser.add_argument("--minutes", type=float, help="how long `size` watches a training")
    given = parser.parse_args()
    if given.minutes is not None:
        size.MINUTES = given.minutes
    failures = 0
    for name in CAMPAIGNS if given.name == "all" else [given.name]:
        found = campaign(name)
        if hasattr(found, "missing") and (lack := found.missing()) is not None:
            print(f"{name}: left out, {lack}")
            continue
        if given.only is not None:
            with tempfile.TemporaryDirectory(prefix="ipg-campaign-") as folder:
                wrong = found.attempt(found.prepare(Path(folder)), given.seed, given.only)
            print(f"{name} {given.only}: {wrong or 'as promised'}")
            failures += wrong is not None
            continue
        state = f"{name}-{given.seed}-{(commit() or 'unknown')[:12]}.jsonl"  # another commit begins anew
        progress = given.progress / state if given.progress else None
        cases = given.cases or found.CASES
        tally = run(found, seed=given.seed, cases=cases, progress=progress, tell=lambda line: print(line, flush=True))
        failures += len(tally.failures)
        if given.rows:
            append(given.rows, tally.row(name, given.seed))
            if progress is not None:
                progress.unlink(missing_ok=True)  # the next time is another campaign
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

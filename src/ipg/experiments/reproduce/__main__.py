"""`python -m ipg.experiments.reproduce`: the page of results from the rows."""

from __future__ import annotations

import sys

from ipg.experiments.reproduce.run import main

if __name__ == "__main__":
    sys.exit(main())

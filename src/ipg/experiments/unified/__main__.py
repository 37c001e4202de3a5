"""`python -m ipg.experiments.unified`: the study files of the unified protocol."""

from __future__ import annotations

import sys

from ipg.experiments.unified.run import main

if __name__ == "__main__":
    sys.exit(main())

"""The campaigns, importable as `campaign` here as from the command line."""

from __future__ import annotations

import sys
from pathlib import Path

HOME = str(Path(__file__).resolve().parents[1])
if HOME not in sys.path:
    sys.path.append(HOME)  # at the end: nothing else is found here before it is found elsewhere

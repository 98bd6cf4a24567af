"""Writes the table of Relax operators into a file: ``python -m tvmfun.interop.relax docs/ops.md``."""

import sys
from pathlib import Path

from tvmfun.interop.relax import markdown

Path(sys.argv[1]).write_text(markdown())
